"""`Dataset`: a named data set in plain numpy, whatever the source, and its natural clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from simulation.datasets.examples import LabelledExamples, Windows
from simulation.datasets.natural import NaturalClients


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, split once and for all into train and test.

    Raises `ValueError` when a label has no class.
    """

    name: str
    """The registry's name, such as `fashion-mnist`."""

    train: LabelledExamples
    """The training part, which `simulation.partition` divides among clients."""

    test: LabelledExamples
    """The test part, for the evaluator; no client has it."""

    classes: tuple[str, ...]
    """The name of each label; `len(classes)` is the number of outputs that a classifier needs."""

    licence: str
    """Under which terms the data may be used; shown when it is first fetched."""

    citation: str
    """What to cite; shown when it is first fetched."""

    user_names: tuple[str, ...] = ()
    """The name of each user, valid as a client's id: `hamlet.horatio`. Empty where the data has no users."""

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            low, high = _range(examples.y)
            if not (low >= 0 and high < len(self.classes)):
                raise ValueError(f"{part} labels run from {low} to {high}; there are {len(self.classes)} classes")
            low, high = _range(examples.users)
            if not (low >= 0 and high < max(1, len(self.user_names))):
                raise ValueError(f"{part} users run from {low} to {high}; there are {len(self.user_names)} names")

    def clients(self, min_examples: int = 2) -> NaturalClients:
        """The natural clients: user's name -> this user's examples of `train` and `test`, made at each access.

        Users with fewer than `min_examples` training examples (from 1) are left out. `test` is `None` where a user
        has nothing held out. Raises `ValueError` where the data has no users.
        """
        if self.train.users is None:
            raise ValueError(f"{self.name} has no users: simulation.partition splits it among clients")
        return NaturalClients(self.train, self.test, self.user_names, min_examples)


def _range(codes: npt.NDArray[Any] | Windows | None) -> tuple[int, int]:
    """The lowest and the highest code; (0, 0) where there are none."""
    if isinstance(codes, Windows):
        return codes.range()
    return (0, 0) if codes is None or not len(codes) else (int(codes.min()), int(codes.max()))
