"""The canonical encoding (``client_sdk.protocol.wire``) of the messages of secure rounds. Errors: BadMessage."""

from __future__ import annotations

from collections.abc import Sequence

from client_sdk.protocol.wire import CanonicalReader, CanonicalWriter
from client_sdk.secagg.errors import BadMessage


class WireWriter(CanonicalWriter):
    """Writes a message of secure rounds. BadMessage."""

    error = BadMessage


class WireReader(CanonicalReader):
    """Reads a message of secure rounds. BadMessage."""

    error = BadMessage


def require_ascending(places: Sequence[int], what: str, below: int | None = None) -> None:
    """Raise BadMessage unless every number is above the one before (and under ``below``): no duplicates, one order."""
    if list(places) != sorted(set(places)):
        raise BadMessage(f"{what}: places are not in ascending order, each once")
    if places and (places[0] < 0 or (below is not None and places[-1] >= below)):
        raise BadMessage(f"{what}: a place is not in the roster")
