"""Flower runs of one coordinator: what its parts do together. Safe from any thread.

::

    Runs             creates, shows and ends runs
    Nodes            who is there, and which message each device gets
    Messages         pushes messages and pulls replies, for the ServerApp
    ReplyRequests    takes replies and errors, from devices
    Contents         the bytes of messages and replies
    FlowerViews      shows them as all runs are shown
    FlowerRetention  deletes what nobody needs any more
"""

from __future__ import annotations

from coordinator.runtime.core import Core
from coordinator.runtime.flower.contents import Contents
from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.runtime.flower.messages import Messages
from coordinator.runtime.flower.nodes import Nodes
from coordinator.runtime.flower.replies import ReplyRequests
from coordinator.runtime.flower.retention import FlowerRetention
from coordinator.runtime.flower.runs import Runs
from coordinator.runtime.flower.views import FlowerViews


class FlowerRuns:
    def __init__(self, core: Core) -> None:
        flower = FlowerCore(core)
        self.runs = Runs(flower)
        self.nodes = Nodes(flower)
        self.messages = Messages(flower)
        self.replies = ReplyRequests(flower)
        self.contents = Contents(flower)
        self.views = FlowerViews(flower)
        self._retention = FlowerRetention(flower)

    def tick(self) -> float | None:
        """Handles what time does. Returns the next deadline in the clock's time, None where there is none."""
        self._retention.tick()
        return self.messages.tick()

    def locked(self) -> bool:
        """Whether any thread holds a lock that another would wait for."""
        return self.messages.locked()
