"""FCUBE, the synthetic data of NIID-Bench: points of a cube, with features that differ between four clients.

Li, Diao, Chen, He 2022, arXiv:2102.02079, section 4, and its authors' code: points uniform in the cube from -1 to 1 in
three dimensions, with the label 0 where x_1 > 0 and 1 elsewhere. The planes x_1 = 0, x_2 = 0 and x_3 = 0 cut the cube
into eight parts; each of four clients has the points of two parts that are opposite each other. Nothing is fetched.
"""

from __future__ import annotations

import numpy as np

from simulation.datasets.dataset import Dataset
from simulation.datasets.examples import LabelledExamples

_EACH = 1000
"""Training examples of a client, half of each label; also the examples of the test part, from the whole cube."""
_CLIENTS = 4


def fcube(seed: int = 0) -> Dataset:
    """4,000 points for training, by user, and 1,000 of the whole cube for the test. x [n, 3] float32, y [n] int64."""
    rng = np.random.Generator(np.random.PCG64(seed))
    points = 1.0 - rng.random((_CLIENTS * _EACH, 3))  # in (0, 1], so that no label hangs on a zero
    users = np.repeat(np.arange(_CLIENTS), _EACH)
    signs = np.stack([np.ones_like(users), 1 - 2 * (users // 2), 1 - 2 * (users % 2)], axis=1)
    labels = np.tile(np.arange(2), len(users) // 2)
    train = points * signs * (1 - 2 * labels[:, None])
    test = 1.0 - 2.0 * rng.random((_EACH, 3))
    return Dataset(
        "fcube",
        LabelledExamples(train.astype(np.float32), labels, users.astype(np.int32)),
        LabelledExamples(test.astype(np.float32), np.where(test[:, 0] > 0, 0, 1)),
        ("x1 above 0", "x1 below 0"),
        licence="",
        citation="Li, Diao, Chen, He 2022, arXiv:2102.02079",
        user_names=tuple(f"octants-{number}" for number in range(_CLIENTS)),
    )
