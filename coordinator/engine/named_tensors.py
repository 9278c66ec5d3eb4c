"""What a run keeps beside its model. Tensors, such as the server optimizer's state: name -> SHA-256 of a blob. And a
small state, as JSON, which stands in the commit's event itself.

Each commit gives the whole map, with every name that the next round shall find; a round that learns nothing, in the
datacenter or where the owner advances the run, carries it over. What stores, sweeps, repairs and verifies such blobs
goes by the map alone, so that another name is a matter of the code that makes it. It must make another blob in each
round, also of equal values, by metadata of run and round: a blob is deleted with the updates of the round that read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import not_
from typing import Annotated, Any

from pydantic import Field

NamedTensors = Annotated[Mapping[str, str], Field(exclude_if=not_)]
"""Name -> digest. In canonical text it is absent where it is empty."""

Small = Annotated[Mapping[str, Any], Field(exclude_if=not_)]
"""A small state. In canonical text it is absent where it is empty."""
MOST_SMALL = 64 * 1024
"""Bytes of its canonical text."""

SERVER_OPTIMIZER = "server-optimizer"
CLIP = "clip"
"""In a small state: the clip of the next round, where it adapts."""
WITHIN = "within"
"""And the part of updates that were within that of the round, by the noised bits."""
RULE = "rule"
"""The last delta, of a rule that remembers it."""


def called(name: str) -> str:
    """These tensors, for people."""
    return f"the {name.replace('-', ' ')}'s state"


def changes(one: NamedTensors, other: NamedTensors) -> Iterator[tuple[str, str | None, str | None]]:
    """(name, digest in ``one``, digest in ``other``) of each name whose digests differ; None where it is absent."""
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield name, one.get(name), other.get(name)
