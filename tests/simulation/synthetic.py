"""A data set that needs no network: ten kinds of images, each a pattern of its own under noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(path: Path, train: int = 600, test: int = 200, seed: int = 0) -> Path:
    """``train`` and ``test`` images [n, 28, 28] in float32 with labels 0..9, as ``.npz``."""
    rng = np.random.default_rng(seed)
    patterns = rng.random((10, 28, 28)).astype(np.float32)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count, dtype=np.int64) % 10
        rng.shuffle(y)
        noise = rng.random((count, 28, 28)).astype(np.float32)
        return (0.6 * patterns[y] + 0.4 * noise).astype(np.float32), y

    (x, y), (x_test, y_test) = part(train), part(test)
    np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test)
    return path
