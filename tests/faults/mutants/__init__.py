"""Seeded bugs that the explorer must find: if one survives, the explorer has a blind spot.

Each lives in a file by the room it spoils. A new one is a function with a docstring under ``@mutant(name, breaks)``.
"""

from __future__ import annotations

from tests.faults.mutants import aggregation, datacenter, device, engine, runtime, storage
from tests.faults.mutants.registry import MUTANTS, Mutant, Spoilt

__all__ = ["MUTANTS", "Mutant", "Spoilt", "aggregation", "datacenter", "device", "engine", "runtime", "storage"]
