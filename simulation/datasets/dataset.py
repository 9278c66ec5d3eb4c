"""`Dataset`: a named data set in plain numpy, whatever the source, its examples and its natural clients; and `fcube`,
which is not fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# ------------------------------------------------------------ examples
# `LabelledExamples`: inputs with their labels and users; `Windows`: rows that overlap in one text.
#
# The 3.2 million samples of Shakespeare, 80 characters each, would fill 257 MB as rows; their text fills 4.


class Windows:
    """Stands for an array `[n, width]` of uint8 whose row i is `text[starts[i] : starts[i] + width]`.

    Indexing gives plain arrays, as copies; so does `numpy.asarray`, which makes all rows. `at` gives fewer windows of
    the same text, without making rows. Raises `ValueError` for windows that reach beyond the text.
    """

    dtype = np.dtype(np.uint8)
    ndim = 2

    def __init__(self, text: npt.NDArray[np.uint8], starts: npt.NDArray[np.integer], width: int) -> None:
        if text.dtype != np.uint8 or text.ndim != 1 or starts.ndim != 1 or width < 1:
            raise ValueError(
                f"windows need a text of uint8 codes [characters], starts [n] and a width, not {text.dtype}"
            )
        if len(starts) and not (starts.min() >= 0 and starts.max() + width <= len(text)):
            raise ValueError(f"windows of {width} reach beyond the text of {len(text)} characters")
        self._text, self._starts, self.width = np.ascontiguousarray(text), starts, width

    @property
    def shape(self) -> tuple[int, int]:
        """(windows, width)"""
        return len(self._starts), self.width

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, where: Any) -> npt.NDArray[np.uint8]:
        """Rows, by a number, a slice, or an array of numbers or truths."""
        starts = np.asarray(self._starts[where])
        # Each character begins a row of this view, so no character needs an index of 8 bytes.
        places = max(0, len(self._text) - self.width + 1)
        views: npt.NDArray[np.uint8] = np.ndarray((places, self.width), np.uint8, self._text, strides=(1, 1))
        rows: npt.NDArray[np.uint8] = views[starts[None]][0]  # a copy, also of one row
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("windows become an array only by copying")
        return self[:] if dtype is None else self[:].astype(dtype)

    def at(self, where: slice | npt.NDArray[np.integer]) -> Windows:
        """The windows at a slice or an array of numbers, still not made."""
        return Windows(self._text, self._starts[where], self.width)

    def range(self) -> tuple[int, int]:
        """The lowest and the highest code in the whole text; (0, 0) where it is empty."""
        return (int(self._text.min()), int(self._text.max())) if len(self._text) else (0, 0)


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """`n` inputs with their labels, in a fixed order.

    Raises `ValueError` when the arrays have different lengths or wrong types.
    """

    x: npt.NDArray[Any] | Windows
    """Inputs, `[n, ...]`: float32, or uint8 for codes of characters. Images of one channel are `[n, height, width]`,
    scaled to [0, 1]. `Windows` stand for an array whose rows are made at each access."""

    y: npt.NDArray[np.int64] | Windows
    """Labels, `[n]`: positions in `Dataset.classes`. As `Windows`, one label for each of a row's characters."""

    users: npt.NDArray[np.int32] | None = None
    """The user of each example, `[n]`: positions in `Dataset.user_names`. `None` where the data has no users."""

    def __post_init__(self) -> None:
        if self.x.dtype not in (np.float32, np.uint8) or self.x.ndim < 1:
            raise ValueError(
                f"x must be float32 (or uint8) of shape [n, ...], not {self.x.dtype} of shape {list(self.x.shape)}"
            )
        if not isinstance(self.y, Windows) and (self.y.dtype != np.int64 or self.y.ndim != 1):
            raise ValueError(f"y must be int64 of shape [n], not {self.y.dtype} of shape {list(self.y.shape)}")
        if len(self.x) != len(self.y):
            raise ValueError(f"x holds {len(self.x)} examples and y {len(self.y)}: they must agree")
        if self.users is not None and self.users.shape != (len(self.y),):
            raise ValueError(f"users are of shape {list(self.users.shape)} and y holds {len(self.y)}: they must agree")

    @classmethod
    def from_pixels(cls, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> LabelledExamples:
        """Scale 8-bit pixels to [0, 1] by x / 255, in float32 (every quotient is the nearest float32)."""
        if pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8, not {pixels.dtype}")
        x = pixels.astype(np.float32)
        x /= np.float32(255)
        return cls(x, labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> LabelledExamples:
        """The examples at `indices` (`[k]`, each in 0..n-1), in that order, as copies.

        Raises `IndexError` for an index outside, `ValueError` for anything that is not a list of integers.
        """
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or (chosen.size and not np.issubdtype(chosen.dtype, np.integer)):
            raise ValueError(f"indices must be a list of integers, not {chosen.dtype} of shape {list(chosen.shape)}")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"indices run from {chosen.min()} to {chosen.max()}; there are {len(self)} examples")
        chosen = chosen.astype(np.int64)
        return self._at(chosen)

    def span(self, start: int, stop: int) -> LabelledExamples:
        """The examples start..stop-1, as views where the data is arrays."""
        return self._at(slice(start, stop))

    def _at(self, where: slice | npt.NDArray[np.int64]) -> LabelledExamples:
        users = None if self.users is None else self.users[where]
        y = self.y.at(where) if isinstance(self.y, Windows) else self.y[where]
        x = self.x.at(where) if isinstance(self.x, Windows) else self.x[where]
        return LabelledExamples(x, y, users)


# ------------------------------------------------------------ dataset


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


# ------------------------------------------------------------ fcube
# FCUBE, the synthetic data of NIID-Bench: points of a cube, with features that differ between four clients.
#
# Li, Diao, Chen, He 2022, arXiv:2102.02079, section 4, and its code: points uniform in the cube from -1 to 1 in three
# dimensions, with the label 0 where x_1 > 0 and 1 elsewhere. The planes x_1 = 0, x_2 = 0 and x_3 = 0 cut the cube
# into eight parts; each of four clients has the points of two parts that are opposite each other. Nothing is fetched.


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
