"""Seeded bugs (mutants) that the explorer must find: if one survives, the explorer misses a class of bugs.

Each room of the product has a file here. A mutant is a function with a docstring under ``@mutant(name, breaks)``.
"""

from __future__ import annotations

from tests.explorer.mutants import (
    aggregation,
    answers,
    buffered,
    datacenter,
    device,
    disk,
    engine,
    flower,
    http,
    identities,
    lasting,
    offers,
    private,
    runtime,
    secure,
    secure_attempts,
    secure_groups,
    secure_variants,
    storage,
    written,
)
from tests.explorer.mutants.registry import MUTANTS, BuggyProduct, Mutant

__all__ = [
    "MUTANTS",
    "BuggyProduct",
    "Mutant",
    "aggregation",
    "answers",
    "buffered",
    "datacenter",
    "device",
    "disk",
    "engine",
    "flower",
    "http",
    "identities",
    "lasting",
    "offers",
    "private",
    "runtime",
    "secure",
    "secure_attempts",
    "secure_groups",
    "secure_variants",
    "storage",
    "written",
]
