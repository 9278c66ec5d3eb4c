"""Reads a table of numbers, ``.csv`` or ``.parquet``, as examples: a column is the target, the others are the inputs.

``x`` is float32 [n, columns], in the order of the file: all devices of a run need the same columns in the same order.
``y`` is int64 where the target's values are whole numbers or booleans, which are labels; else float32. Text is refused,
since devices that number its values by themselves would not agree. A text column ``split`` is no input: it says
``train`` or ``test`` of each row, and the rows of ``test`` are held out. Needs the extra ``datasets`` (pyarrow).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
