"""Splits one data set among the clients of a simulation, by one of several methods.

```python
from simulation.datasets import load
from simulation.partitioning import partition
clients = partition(load("mnist"), 1000, by="dirichlet", alpha=0.3, seed=0, held_out=0.2)
clients["client-0042"].train.x          # gathered at the first access
clients.draw("who-holds-what.svg")
```

``sampled`` makes a fleet of any size of it, whose clients draw their examples. ``split_indices`` returns the positions
alone, without data; ``label_skew`` measures how uneven they are.
"""

from __future__ import annotations

from simulation.clients.clients import label_skew
from simulation.partitioning.front import partition
from simulation.partitioning.indices import By, split_indices
from simulation.partitioning.methods import Indices
from simulation.partitioning.sampled import sampled

__all__ = ["By", "Indices", "label_skew", "partition", "sampled", "split_indices"]
