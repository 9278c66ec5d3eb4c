"""The table of requests of devices, workers and operators: written once, served over HTTP, by the simulator and by the
fault explorer.

It is synchronous and has no sockets. The caller is resolved first. A request has one of three shapes (``entry``); each
server implements in its own way how it waits for an answer and receives a body. The table leaves out what only HTTP
has: the stream of a run's events and the download of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinator.requests import access, devices, flower, insight, operators, privacy, secure, workers
from coordinator.requests.entry import Body as Body
from coordinator.requests.entry import Caller as Caller
from coordinator.requests.entry import Credentials as Credentials
from coordinator.requests.entry import Direct as Direct
from coordinator.requests.entry import Entry as Entry
from coordinator.requests.entry import Held as Held
from coordinator.requests.entry import NotYet as NotYet
from coordinator.requests.entry import Permission as Permission
from coordinator.requests.entry import Request as Request
from coordinator.requests.entry import Shape as Shape
from coordinator.requests.entry import check_credentials as check_credentials
from coordinator.requests.entry import identify as identify


class Table:
    """Entries in the order in which their templates are tried."""

    def __init__(self, entries: Iterable[Entry[Shape]]) -> None:
        self._entries = {(entry.method, str(entry.route)): entry for entry in entries}

    def __iter__(self) -> Iterator[Entry[Shape]]:
        return iter(self._entries.values())

    def find(self, method: str, route: str) -> Entry[Shape]:
        """Returns the entry. KeyError where there is none."""
        return self._entries[method, str(route)]


TABLE = Table(
    entry for room in (devices, secure, insight, privacy, operators, workers, flower, access) for entry in room.ENTRIES
)
