"""Ways to split one data set among clients."""

from __future__ import annotations

from simulation.clients.skew import label_skew
from simulation.partitioning.indices import split_indices
from simulation.partitioning.options import By
from simulation.partitioning.ways import Indices

__all__ = ["By", "Indices", "label_skew", "split_indices"]
