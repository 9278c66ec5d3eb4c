"""Partitions one data set among the devices of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from client_sdk.data import Data, Examples, load_data, stem
from simulation.partitioning import Indices, split_indices

By = Literal["iid", "dirichlet", "shards"]
"""The partition methods of the command ``fleet``."""

FEWEST = 8
"""A device gets at least this many examples, or half of an equal share where that is less."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A partition of one data set. Equal splits give equal shards, in every process. ValueError where there is no such
    method."""

    data: str
    """Name of an installed data set, or a file: ``mine.npz``, ``mine.csv:outcome``."""
    devices: int
    by: str = "dirichlet"
    alpha: float = 0.5
    size_sigma: float = 0.5
    """The last three: see ``simulation.partitioning.partition``. Methods that do not use one ignore it."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"--by {self.by}: known are {', '.join(get_args(By))}.")

    def shards(self, train: Examples) -> list[Indices]:
        """The positions of each device's examples. ValueError where there are too few, or labels are no integers."""
        if self.devices < 1:
            raise ValueError(f"devices={self.devices}: a fleet has at least one device")
        fewest = max(1, min(FEWEST, len(train) // (2 * self.devices)))
        alpha = self.alpha if self.by == "dirichlet" else None
        sigma = None if self.by == "shards" else self.size_sigma
        return split_indices(
            train.y,
            self.devices,
            cast("By", self.by),
            alpha=alpha,
            seed=self.seed,
            min_examples=fewest,
            size_sigma=sigma,
        )

    def label(self, device: int) -> str:
        """The label of device number ``device`` for operators: ``mnist/0007``. The number is that of its shard."""
        return f"{stem(self.data)[:48]}/{device:04d}"

    def number(self, label: str) -> int:
        """The inverse of ``label``. ValueError for a device that is not of this split."""
        digits = label.rsplit("/", 1)[-1]
        if not (digits.isdigit() and int(digits) < self.devices and self.label(int(digits)) == label):
            raise ValueError(f"the device {label!r} is not one of this fleet's {self.devices}")
        return int(digits)


def cut(split: Split, wanted: range | None = None) -> tuple[Data, dict[int, Examples]]:
    """Load the data and copy out the shards of the ``wanted`` devices (None: all): (data, device -> shard).

    Shards are copies, so that a caller who releases the data retains only its own part. DataSourceError where the data
    cannot be loaded.
    """
    data = load_data(split.data)
    parts = split.shards(data.train)
    numbers = range(split.devices) if wanted is None else wanted
    return data, {device: Examples(data.train.x[parts[device]], data.train.y[parts[device]]) for device in numbers}
