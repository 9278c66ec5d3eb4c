"""Loads a device's data, by name or from a file, selects this device's share, and finds its parts.

A name is an entry point of the group ``quorate.data``, by itself, with its package, or with that and a version: a
callable without arguments that gives an object with ``.train`` and ``.test``, each with ``.x`` and ``.y``. A path
ending in ``.npz`` holds arrays ``x`` and ``y``, and ``x_test`` and ``y_test`` where there is held-out data. A path
ending in ``.csv`` or ``.parquet``, followed by ``:`` and the column to predict, is a table (``tables.py``).
"""

from __future__ import annotations

import re
import sys
import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.data.tables import TableError, TableFile
from client_sdk.extensions import Extension, extensions

GROUP = "quorate.data"


class DataSourceError(Exception):
    """The data cannot be loaded or used: the message is one sentence."""


@dataclass(frozen=True, eq=False)
class Examples:
    """``x`` [n, ...] and ``y`` [n, ...]: as many inputs as targets."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Data:
    """Training examples, and held-out examples where there are any."""

    train: Examples
    test: Examples | None = None


@dataclass(frozen=True)
class Shard:
    """One of several equal shares: number ``index`` (from 1) of ``count``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``3/400``: the third of 400. ValueError, in a sentence, for anything else."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{text!r} is not a share of the data; 3/400 means the third of 400 equal shares.")
        return cls(int(match[1]), int(match[2]))

    def of(self, examples: Examples) -> Examples:
        """Every ``count``-th example from the ``index``-th on, as views."""
        return Examples(examples.x[self.index - 1 :: self.count], examples.y[self.index - 1 :: self.count])


def is_file(source: str) -> bool:
    """Whether ``source`` is a path, not the name of an installed data set."""
    return source.endswith(".npz") or TableFile.parse(source) is not None


def stem(source: str) -> str:
    """A short name of the data: a file's name without its ending, or that of the data set."""
    return re.sub(r"\.(npz|csv|parquet)(:.*)?$", "", source, flags=re.IGNORECASE).replace("\\", "/").rsplit("/", 1)[-1]


def with_target(source: str, target: str | None) -> str:
    """The source with the column to predict: ``mine.csv:outcome``. DataSourceError for a target of other data."""
    table = TableFile.parse(source)
    if table is None and target is not None:
        raise DataSourceError(f"--target names a column of a .csv or .parquet file; {source} has its own targets.")
    if table is None or target is None:
        return source
    return f"{table.path}:{target}"


def load_data(source: str, shard: Shard | None = None) -> Data:
    """The data called ``source``, or this share of it. DataSourceError where it cannot be loaded or the share is
    empty."""
    table = TableFile.parse(source)
    if table is not None:
        data = _from_table(table)
    else:
        data = _from_file(Path(source)) if source.endswith(".npz") else _from_entry_point(source)
    if shard is not None:
        data = Data(shard.of(data.train), shard.of(data.test) if data.test is not None else None)
    if len(data.train) == 0:
        part = f"The share {shard.index}/{shard.count} of {source}" if shard is not None else source
        raise DataSourceError(f"{part} has no examples.")
    if data.test is not None and len(data.test) == 0:
        data = Data(data.train)
    return data


def count(data: Any) -> int:
    """How many training examples ``data`` holds: of ``(x, y)``, of an object with ``.x``, or of anything with a
    length."""
    part = training_part(data)
    if isinstance(part, tuple | list) and len(part) == 2:
        return len(part[0])
    if hasattr(part, "x"):
        return len(part.x)
    if hasattr(part, "__len__"):
        return len(part)
    raise DataSourceError(f"A {type(part).__name__} does not say how many examples it has; give examples=.")


def training_part(data: Any) -> Any:
    """``data.train`` where there is one, else ``data``. A torch Dataset is a part itself, with any attributes: some
    have a flag ``.train``."""
    part = None if _is_dataset(data) else getattr(data, "train", None)
    return part if _is_data(part) else data


def held_out_part(data: Any) -> Any | None:
    """``data.held_out`` or ``data.test``; None where there is neither."""
    for name in () if _is_dataset(data) else ("held_out", "test"):
        part = getattr(data, name, None)
        if _is_data(part):
            return part
    return None


def _is_dataset(data: Any) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(data, torch_data.Dataset)


def _is_data(part: Any) -> bool:
    """Whether an attribute may be examples: no flag, text, path or method."""
    if part is None:  # of most data; the kinds below take twenty times as long to tell
        return False
    plain = isinstance(part, bool | int | float | str | bytes | PathLike | np.generic)
    return _is_dataset(part) or not (plain or callable(part))


def names() -> list[str]:
    """The data sets that installed packages offer, without their packages' names."""
    return sorted({entry.entry.name for entry in extensions(GROUP).values()})


def entry_of(name: str) -> Extension:
    """The installed data set called ``name``: ``mnist``, ``quorate:mnist`` or ``quorate:mnist@0.2.0.dev0``.
    DataSourceError where there is none, none in that version, or one in each of several packages."""
    wanted, _, version = name.partition("@")
    found = [entry for entry in extensions(GROUP).values() if wanted in (entry.name, entry.entry.name)]
    if len(found) > 1:
        raise DataSourceError(
            f"Several packages have data {name!r}: name one of {', '.join(entry.name for entry in found)}."
        )
    if not found:
        known = ", ".join(names()) or "none"
        files = "a path that ends in .npz, .csv or .parquet"
        raise DataSourceError(f"There is no data {name!r}; there are {known}, or {files}.")
    if version and found[0].version != version:
        raise DataSourceError(f"The data {found[0].name} is installed in version {found[0].version}, not {version}.")
    return found[0]


def require_source(source: str) -> None:
    """Raise DataSourceError where there is no file, or no installed data set, called ``source``. Nothing is loaded."""
    table = TableFile.parse(source)
    if not is_file(source):
        entry_of(source)
    elif not (path := Path(source) if table is None else table.path).is_file():
        raise DataSourceError(f"There is no file {path}.")


def installed(name: str) -> Any:
    """The unchanged result of the entry point of this name. DataSourceError where it cannot be loaded."""
    entry = entry_of(name)
    try:
        return entry.entry.load()()
    except ModuleNotFoundError as error:
        raise DataSourceError(f"The data {name} needs the module {error.name}, which is not installed.") from error
    except DataSourceError:
        raise
    except Exception as error:
        raise DataSourceError(f"The data {name} cannot be loaded: {error}") from error


def _from_entry_point(name: str) -> Data:
    found = installed(name)
    test = held_out_part(found)
    return Data(_examples(training_part(found), name), None if test is None else _examples(test, name))


def _from_table(table: TableFile) -> Data:
    try:
        x, y, held_out = table.read()
    except TableError as error:
        raise DataSourceError(f"{error}.") from error
    except OSError as error:
        raise DataSourceError(f"{table.path} cannot be read: {error.strerror or error}.") from error
    if held_out is None:
        return Data(Examples(x, y))
    return Data(Examples(x[~held_out], y[~held_out]), Examples(x[held_out], y[held_out]))


def _from_file(path: Path) -> Data:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataSourceError(f"{path} is not an .npz file, or is cut short; numpy.savez writes one.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "x" not in arrays or "y" not in arrays:
                raise DataSourceError(
                    f"{path} must hold the arrays x and y; it holds {', '.join(arrays.files) or 'none'}."
                )
            train = _pair(arrays["x"], arrays["y"], str(path))
            if "x_test" not in arrays:
                return Data(train)
            if "y_test" not in arrays:
                raise DataSourceError(f"{path} holds x_test and no y_test.")
            return Data(train, _pair(arrays["x_test"], arrays["y_test"], str(path)))
    except FileNotFoundError:
        raise DataSourceError(f"There is no file {path}.") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataSourceError(f"{path} cannot be read as .npz: {error}.") from error


def _examples(part: Any, name: str) -> Examples:
    if not hasattr(part, "x") or not hasattr(part, "y"):
        raise DataSourceError(f"The data {name} gives a {type(part).__name__}, which has no .x and .y.")
    return _pair(np.asarray(part.x), np.asarray(part.y), name)


def _pair(x: npt.NDArray[Any], y: npt.NDArray[Any], where: str) -> Examples:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataSourceError(f"{where} must hold as many inputs x as targets y; it holds {x.shape} and {y.shape}.")
    return Examples(x, y)
