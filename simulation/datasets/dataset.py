"""`Dataset`: a named data set in plain numpy, whatever the source, and its natural clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.datasets.examples import LabelledExamples, Windows

# ------------------------------------------------------------ natural
# `NaturalClients`: one client for each user of a data set, with the examples of this user.


@dataclass(frozen=True, eq=False)
class UserData:
    """One client's data."""

    train: LabelledExamples
    test: LabelledExamples | None
    """Held out; `None` where the user has nothing held out."""


class NaturalClients(Mapping[str, UserData]):
    """User's name -> data, in the order of the names; data is made at each access. Made by `Dataset.clients`."""

    def __init__(
        self, train: LabelledExamples, test: LabelledExamples, names: Sequence[str], min_examples: int = 2
    ) -> None:
        """Raises `ValueError` where `min_examples` is below 1 or no user has as many."""
        if min_examples < 1:
            raise ValueError(f"min_examples={min_examples} must be 1 or more")
        self._train, self._test = _Owned(train, len(names)), _Owned(test, len(names))
        users = np.flatnonzero(self._train.counts >= min_examples)
        if not len(users):
            raise ValueError(f"no user has {min_examples} examples; the most is {self._train.counts.max(initial=0)}")
        self._numbers = {names[user]: user for user in users.tolist()}

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training examples of each client, `[clients]`, in order."""
        return self._train.counts[list(self._numbers.values())]

    def examples(self, name: str) -> int:
        """How many training examples this client has, without making them. `KeyError` for an unknown name."""
        return int(self._train.counts[self._numbers[name]])

    def __getitem__(self, name: str) -> UserData:
        user = self._numbers[name]
        return UserData(self._train.of(user), self._test.of(user) if self._test.counts[user] else None)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


class _Owned:
    """Examples, with the positions of each user's examples."""

    def __init__(self, examples: LabelledExamples, users: int) -> None:
        owners = examples.users if examples.users is not None else np.empty(0, np.int32)
        self._examples = examples
        self.counts: npt.NDArray[np.int64] = np.bincount(owners, minlength=users).astype(np.int64)
        self._ends = np.cumsum(self.counts)
        in_order = bool((owners[1:] >= owners[:-1]).all())
        self._order = None if in_order else np.argsort(owners, kind="stable")

    def of(self, user: int) -> LabelledExamples:
        """This user's examples, in their order; views where each user's lie together."""
        stop = int(self._ends[user])
        start = stop - int(self.counts[user])
        return self._examples.span(start, stop) if self._order is None else self._examples.take(self._order[start:stop])


# ------------------------------------------------------------ dataset


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
