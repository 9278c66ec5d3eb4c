"""A device's durable state, with which it can crash at any point: its key, its enrolment, the round under way, and
every round it joined.
"""

from __future__ import annotations

from typing import BinaryIO, Literal, Protocol

from pydantic import Field

from client_sdk.device.checkpoint_cache import CheckpointCache
from client_sdk.protocol.devices import Assignment, Enrolled, LoggedEvent
from client_sdk.protocol.names import Digest, Message
from client_sdk.secagg.memory import Memory

RECORD_FORMAT = 1


class StorageError(Exception):
    """The device's storage cannot be used: the text gives the reason, and what to do."""


class Record(Message):
    """All that the device must store between two steps of its session."""

    format: int = RECORD_FORMAT
    key_seed: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The secret half of the device's key; empty where a key store outside holds it."""
    coordinator: str = ""
    """URL that ``enrolled`` belongs to. Its token is never sent anywhere else."""
    enrolled: Enrolled | None = None
    assignment: Assignment | None = None
    """The round under way. At most one."""
    assigned_at: float = 0.0
    """Unix seconds, device's clock."""
    update_digest: Digest | None = None
    """The update of this round is trained, saved, and awaits its receipt."""
    withdrawal: str | None = None
    """The reason why the device withdraws from this round, as long as the withdrawal has no answer."""


class Joined(Message):
    """One round joined, and its end for this device. A record for the owner of how the data was used, and when."""

    run: str
    round: int
    attempt: int
    device: str
    coordinator: str
    plan_digest: Digest
    """What the device agreed to."""
    learner: str
    checkpoint: Digest
    """Where training started."""
    result: Literal["receipt", "refused", "withdrawn", "dropped"]
    """receipt: the update was acknowledged. refused: it was sent, and not accepted. withdrawn: the device announced
    that it would not report. dropped: the round went on without it."""
    reason: str = ""
    update_digest: Digest | None = None
    """Of the update that left the device; None where none did."""
    weight: int | None = None
    """As the receipt says."""
    logged: LoggedEvent | None = None
    """The event of the coordinator's log that counts the update, as the receipt names it; None: it names none."""
    joined_at: float
    """Unix seconds, device's clock; likewise the next."""
    ended_at: float

    def same_round(self, other: Joined) -> bool:
        """Whether both are of the same round: a crash between two writes may repeat a line, never add a false one."""
        mine = (self.coordinator, self.device, self.run, self.round, self.attempt)
        return mine == (other.coordinator, other.device, other.run, other.round, other.attempt)


class Storage(Protocol):
    """The port. After ``save`` returns, all of it survives a crash; a crash inside it leaves the old record or the new
    one."""

    @property
    def checkpoints(self) -> CheckpointCache: ...

    def load(self) -> Record | None:
        """The last record saved. Without an update that is missing or damaged: the device then trains again."""

    def save(self, record: Record, update: bytes | None = None, joined: Joined | None = None) -> None:
        """Store ``record``, with the update that it newly names, and append ``joined`` to the history (once, if
        repeated).

        Updates that the record does not name are deleted.
        """

    def load_secure(self) -> Memory:
        """This device's memory of secure rounds, with any coordinator; empty where it joined none. StorageError where
        it is damaged: a device that cannot know what it signed takes part in nothing."""

    def save_secure(self, memory: Memory) -> None:
        """Replace the stored memory by ``memory``, and erase the older one as far as the medium allows."""

    def update(self, digest: str) -> BinaryIO:
        """The saved update, open for reading from its start. StorageError where there is none."""

    def history(self) -> list[Joined]:
        """All rounds joined, oldest first."""
