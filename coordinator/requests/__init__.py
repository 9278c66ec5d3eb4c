"""The table of requests of devices, workers and operators: written once, served over HTTP, by the simulator and by the
fault explorer.

It is synchronous and has no sockets. The caller is resolved first (``callers``). A request has one of three shapes
(``entry``); each server implements in its own way how it waits for an answer and receives a body.
"""

from coordinator.requests.callers import Caller, Credentials, Permission, check_credentials, identify
from coordinator.requests.entry import Body, Direct, Entry, Held, NotYet, PendingCommit, Request, Shape
from coordinator.requests.table import TABLE, Table

__all__ = [
    "TABLE",
    "Body",
    "Caller",
    "Credentials",
    "Direct",
    "Entry",
    "Held",
    "NotYet",
    "PendingCommit",
    "Permission",
    "Request",
    "Shape",
    "Table",
    "check_credentials",
    "identify",
]
