"""The errors of loading a data set, with their cause and remedy.

```
DatasetError              one sentence for the user, with a remedy
├── UnknownDataset        no data set has this name: the message lists the names
├── DataUnavailable       it cannot be fetched now (offline, no client, full disk): the message says what to do
└── DataCorrupt           the fetched bytes differ from the pinned digest: they are not used, and nothing is cached
```
"""

from __future__ import annotations


class DatasetError(Exception):
    """Base of every error of this package; `str(error)` is a sentence for the user."""


class UnknownDataset(DatasetError):
    """No data set has this name."""


class DataUnavailable(DatasetError):
    """The data set cannot be fetched on this machine at the moment. The data itself is correct."""


class DataCorrupt(DatasetError):
    """An archive, a member or an array differs from its pinned digest or its declared shape."""
