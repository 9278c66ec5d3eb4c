"""Loads a device's data, by name or from a file, selects this device's share, and finds its parts.

A name is an entry point of the group ``quorate.data``, by itself, with its package, or with that and a version: a
callable without arguments that gives an object with ``.train`` and ``.test``, each with ``.x`` and ``.y``. A path
ending in ``.npz`` holds arrays ``x`` and ``y``, and ``x_test`` and ``y_test`` where there is held-out data. A path
ending in ``.csv`` or ``.parquet``, followed by ``:`` and the column to predict, is a table.
"""

from __future__ import annotations

import re
import sys
import zipfile
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.extensions import Extension, extensions

# ------------------------------------------------------------ tables
# Reads a table of numbers, ``.csv`` or ``.parquet``, as examples: a column is the target, the others are the inputs.
#
# ``x`` is float32 [n, columns], in the order of the file: all devices of a run need the same columns in the same
# order. ``y`` is int64 where the target's values are whole numbers or booleans, which are labels; else float32. Text
# is refused, since devices that number its values by themselves would not agree. A text column ``split`` is no input:
# it says ``train`` or ``test`` of each row, and the rows of ``test`` are held out. Needs the extra ``datasets``
# (pyarrow).


SPLIT = "split"
"""The column that says of each row ``train`` or ``test``."""
_TABLE = re.compile(r"(?P<path>.+?\.(?:csv|parquet))(?::(?P<target>.+))?", re.IGNORECASE | re.DOTALL)
_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_LARGEST_CSV = 2**31 - 1
"""Bytes: pyarrow infers a column's type from one block, and its blocks are no larger."""


class TableError(ValueError):
    """The table is not one of numbers: the message is one sentence."""


@dataclass(frozen=True)
class TableFile:
    """``FILE.csv:COLUMN`` or ``FILE.parquet:COLUMN``: a file, and the column to predict where it is named."""

    path: Path
    target: str | None

    @classmethod
    def parse(cls, source: str) -> TableFile | None:
        """None where ``source`` names no table."""
        found = _TABLE.fullmatch(source)
        return None if found is None else cls(Path(found["path"]), found["target"])

    def read(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        """(x, y, which rows are held out; None where no column says so). TableError, OSError."""
        if not self.path.is_file():
            raise TableError(f"There is no file {self.path}")
        try:
            is_csv = self.path.suffix.lower() == ".csv"
            return self._split(self._csv() if is_csv else import_module("pyarrow.parquet").read_table(self.path))
        except ModuleNotFoundError:
            needs = "Reading .csv and .parquet needs pyarrow, which is not installed: pip install 'quorate[datasets]'"
            raise TableError(needs) from None
        except TableError:
            raise
        except UnicodeDecodeError:
            raise TableError(f"{self.path} is not in UTF-8: save it as UTF-8") from None
        except (ValueError, NotImplementedError) as error:  # pyarrow's errors are these
            kind = self.path.suffix[1:].lower()
            raise TableError(f"{self.path} cannot be read as {kind}: {str(error).splitlines()[0]}") from error

    def _csv(self) -> Any:
        with self.path.open("rb") as file:
            begin, size = file.read(4096), file.seek(0, 2)
        if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise TableError(f"{self.path} is in UTF-16: save it as UTF-8")
        first = begin.splitlines()[0] if begin else b""
        if b"," not in first and (other := re.search(b"[;\t|]", first)):
            raise TableError(f"{self.path} separates its columns by {other[0].decode()!r}: save it with commas")
        if size > _LARGEST_CSV:
            raise TableError(f"{self.path} is larger than 2 GiB: save it as .parquet")
        csv = import_module("pyarrow.csv")
        table = csv.read_csv(self.path, read_options=csv.ReadOptions(block_size=max(size, 1)))
        if any(import_module("pyarrow.types").is_binary(kind) for kind in table.schema.types):
            raise TableError(f"{self.path} is not in UTF-8: save it as UTF-8")
        return table

    def _split(self, table: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        names: list[str] = table.column_names
        self._check_names(names)
        if table.num_rows == 0:
            raise TableError(f"{self.path} has no rows")
        texts = {name for name in names if _is_text(table.schema.field(name).type)}
        held_out = None
        if SPLIT in texts and self.target != SPLIT:
            parts = np.array(table[SPLIT].to_pylist(), dtype=object)
            if others := sorted({str(part) for part in parts} - {"train", "test"}):
                raise TableError(f"{self.path}: the column {SPLIT} holds {others[0]!r}; it says train or test of a row")
            held_out = parts == "test"
        inputs = [name for name in names if name not in {self.target, SPLIT if held_out is not None else None}]
        if not inputs:
            raise TableError(f"{self.path} has no column but its target {self.target}")
        y = self._numbers(table, str(self.target))
        x = np.empty((table.num_rows, len(inputs)), np.float32)
        for place, name in enumerate(inputs):
            values = self._numbers(table, name)
            x[:, place] = values
            is_large = values.dtype == np.int64 and max(int(values.max()), -int(values.min())) > 2**24
            if is_large and len(np.unique(values)) != len(np.unique(x[:, place])):
                raise TableError(
                    f"{self.path}: the column {name} holds whole numbers, as {values[0]}, that float32 cannot tell "
                    "apart: leave out what identifies a row, subtract an offset, or give fractions"
                )
        return x, y if y.dtype == np.int64 else y.astype(np.float32), held_out

    def _check_names(self, names: list[str]) -> None:
        """TableError unless the columns have distinct names, and the target is one of them."""
        shown = ", ".join(map(str, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        if self.target is None:
            raise TableError(f"Name the column of {self.path} to predict, by --target COLUMN; its columns are {shown}")
        if all(re.fullmatch(r"[-+\d.eE ]*", name) for name in names):
            raise TableError(f"The first line of {self.path} must name its columns; it is {shown}")
        if unnamed := next((place for place, name in enumerate(names, 1) if _UNNAMED.fullmatch(name)), None):
            raise TableError(f"Column {unnamed} of {self.path} has no name: if it numbers the rows, leave it out "
                             "(pandas: index=False)")  # fmt: skip
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise TableError(f"{self.path} has two columns {twice!r}")
        if self.target not in names:
            near = get_close_matches(self.target, names, 1)
            meant = f"did you mean {near[0]!r}? Its columns" if near else "its columns"
            raise TableError(f"{self.path} has no column {self.target!r}; {meant} are {shown}")

    def _numbers(self, table: Any, name: str) -> npt.NDArray[Any]:
        """A column as int64 or float64, none of them missing and all in the range of float32."""
        column, where = table[name], f"{self.path}: the column {name}"
        kind = column.type
        types = import_module("pyarrow.types")
        if column.null_count:
            self._missing(where, np.asarray(column.is_null()))
        if _is_text(kind):
            value = next((text for text in column.to_pylist() if not _is_number(text)), column[0].as_py())
            raise TableError(
                f"{where} holds text, as {value!r}: give numbers, by one table of codes for all devices "
                "(each device's own would differ)"
            )
        if types.is_boolean(kind) or types.is_integer(kind):
            whole = column.to_numpy()
            if whole.dtype == np.uint64 and whole.size and int(whole.max()) > 2**63 - 1:
                raise TableError(f"{where} holds {int(whole.max())}, which is no int64")
            return np.asarray(whole.astype(np.int64))
        if not (types.is_floating(kind) or types.is_decimal(kind)):
            raise TableError(f"{where} holds values of the type {kind}: give numbers")
        values = np.asarray(column.cast("float64").to_numpy())
        if np.isnan(values).any():
            self._missing(where, np.isnan(values))
        if (large := np.abs(values) > np.finfo(np.float32).max).any():
            row = int(np.flatnonzero(large)[0])
            raise TableError(f"{where} holds {values[row]} in row {row + 1}, which is beyond float32")
        return values

    def _missing(self, where: str, missing: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(missing)
        count = "a value is" if len(rows) == 1 else f"{len(rows)} values are"
        raise TableError(f"{where}: {count} missing, first in row {rows[0] + 1}: fill them in, or leave these rows out")


def _is_text(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    while types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _is_number(text: object) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", str(text).strip()) is not None


# ------------------------------------------------------------ sources


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


def identity_of(source: str, shard: Shard | None = None) -> str:
    """One text for the same examples, however they are written: the file that a path leads to, whichever of its columns
    is predicted, or the full name of an installed data set; and the share. DataSourceError where none is installed."""
    table = TableFile.parse(source)
    file = Path(source) if table is None else table.path
    share = shard or Shard(1, 1)
    return f"{file.resolve() if is_file(source) else entry_of(source).name}\n{share.index}/{share.count}"


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
    if isinstance(part, tuple | list) and len(part) == 2 and not are_pairs(part):
        return len(part[0])
    if hasattr(part, "x"):
        return len(part.x)
    if hasattr(part, "__len__"):
        return len(part)
    raise DataSourceError(f"A {type(part).__name__} does not say how many examples it has; give examples=.")


def are_pairs(data: Any) -> bool:
    """Whether ``data`` lists its examples as pairs (input, target). Two things are such a list only where both are
    tuples within a list: ``(x, y)`` and ``[x, y]`` are inputs and targets."""
    if not isinstance(data, tuple | list) or not data:
        return False
    if len(data) == 2:
        return isinstance(data, list) and all(isinstance(item, tuple) and len(item) == 2 for item in data)
    return all(isinstance(item, tuple | list) and len(item) == 2 for item in data)


def training_part(data: Any) -> Any:
    """``data.train`` where there is one, else ``data``. A torch Dataset is a part itself, with any attributes: some
    have a flag ``.train``."""
    part = None if is_torch_dataset(data) else getattr(data, "train", None)
    return part if _is_data(part) else data


def held_out_part(data: Any) -> Any | None:
    """``data.held_out`` or ``data.test``; None where there is neither."""
    for name in () if is_torch_dataset(data) else ("held_out", "test"):
        part = getattr(data, name, None)
        if _is_data(part):
            return part
    return None


def is_torch_dataset(data: Any) -> bool:
    """Whether ``data`` is a torch Dataset. Torch is not imported: where nothing else has, no object can be one."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(data, torch_data.Dataset)


def _is_data(part: Any) -> bool:
    """Whether an attribute may be examples: no flag, text, path or method."""
    if part is None:  # of most data; the kinds below take twenty times as long to tell
        return False
    plain = isinstance(part, bool | int | float | str | bytes | PathLike | np.generic)
    return is_torch_dataset(part) or not (plain or callable(part))


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
