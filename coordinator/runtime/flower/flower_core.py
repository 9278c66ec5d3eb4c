"""What the parts of Flower runs share: the run's row, its limits, and whom a change wakes."""

from __future__ import annotations

from collections.abc import Iterable

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.runtime.core import Core
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader

MIB = 1 << 20
WHOLE_MODEL = "get_parameters"
"""The kind of messages whose reply may be a model, though the message has none: older apps take the first model so."""


def device_key(device: str) -> str:
    """The signal of a device that waits for a message."""
    return f"flower:{device}"


def replies_key(run: str) -> str:
    """The signal of a ServerApp that waits for replies."""
    return f"flower-replies:{run}"


class FlowerCore:
    """The core of a coordinator, as Flower runs use it."""

    def __init__(self, core: Core) -> None:
        self.core = core

    @property
    def now(self) -> float:
        return self.core.clock.now()

    def run(self, run: str, reader: Reader | None = None) -> FlowerRunRow:
        """The run's row; ProblemError where there is no such run, or where it is no Flower run."""
        reader = reader or self.core.store
        row = reader.flower_run(run)
        if row is None and reader.run(run) is not None:
            raise problem("conflict", f"run {run} is not a Flower run: it has a plan, and takes no messages")
        if row is None:
            raise problem("unknown-run", f"there is no Flower run {run!r}")
        return row

    def running(self, run: str, reader: Reader | None = None) -> FlowerRunRow:
        """The run's row. ProblemError also *conflict* where it has ended."""
        row = self.run(run, reader)
        if row.over:
            raise ended(row)
        return row

    def max_reply(self, row: FlowerRunRow, message: FlowerMessageRow | None = None) -> int:
        """The longest accepted reply in bytes: to this message, or to any."""
        most = self.core.settings.max_update_bytes
        if row.max_reply is not None:
            return min(row.max_reply, most)
        if message is not None and message.kind.partition(".")[0] == WHOLE_MODEL:
            return most
        return min(max(2 * row.largest, MIB), most)

    def expired(self, row: FlowerRunRow) -> int:
        """How many of the run's messages have expired without an answer."""
        return self.core.store.flower_expired(row.run, row.ended_at or self.now)

    def wake(self, run: str, devices: Iterable[str] = ()) -> None:
        """Wakes who watches the run or pulls its replies, and these devices."""
        keys = [f"run:{run}", replies_key(run), *(device_key(device) for device in devices)]
        self.core.signals.wake_many(keys)


def ended(row: FlowerRunRow) -> ProblemError:
    why = f": {row.reason}" if row.reason else ""
    return problem("conflict", f"Flower run {row.run} has ended ({row.status}){why}")
