"""One table of what devices, workers and operators can ask: written once, served over HTTP, by the simulator and by the
fault explorer.

Synchronous and without sockets. Who is asking is resolved first (``callers``); then the request has one of three shapes
(``entry``), and whoever serves it waits and receives in a way of its own.
"""

from coordinator.requests.callers import OPERATOR, Caller, Operator, Permission, identify
from coordinator.requests.entry import Body, Direct, Entry, Held, Request, Shape
from coordinator.requests.table import TABLE, Table

__all__ = [
    "OPERATOR",
    "TABLE",
    "Body",
    "Caller",
    "Direct",
    "Entry",
    "Held",
    "Operator",
    "Permission",
    "Request",
    "Shape",
    "Table",
    "identify",
]
