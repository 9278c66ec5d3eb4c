"""What can go wrong on the way to a data set, and whose fault it is.

```
DatasetError              one plain sentence for the user, always with a way out
├── UnknownDataset        the name is not one of ours: use a known one
├── DataUnavailable       it cannot be had here and now (offline, no client, full disk): the message says what to do
└── DataCorrupt           what came is not what is pinned in this repository: it is not used, and nothing is cached
```
"""

from __future__ import annotations


class DatasetError(Exception):
    """Base of every error of this package; `str(error)` is meant for people."""


class UnknownDataset(DatasetError):
    """The name is none of the registry's."""


class DataUnavailable(DatasetError):
    """The data set cannot be had on this machine at the moment. Nothing is wrong with the data itself."""


class DataCorrupt(DatasetError):
    """An archive, a member or an array differs from its pinned digest or its declared shape."""
