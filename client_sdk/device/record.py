"""A device's durable state, with which it can crash at any point: its key, its certificate, the round under way, and
every round it joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from pydantic import Field

from client_sdk.credentials.certificate import RevocationList
from client_sdk.device.checkpoint_cache import CheckpointCache
from client_sdk.protocol.devices import Assignment, LoggedEvent, PrivacyBounds, Registered
from client_sdk.protocol.names import Digest, Message
from client_sdk.protocol.secure import SecureRefusal
from client_sdk.secagg.memory import Memory

if TYPE_CHECKING:
    from client_sdk.device.data_ledger import Debit, Declined
    from client_sdk.device.states import States

RECORD_FORMAT: Literal[2] = 2


class StorageError(Exception):
    """The device's storage cannot be used: the text gives the reason, and what to do."""


class AuthorityRef(Message):
    """The authority that a device trusts: from its enrolment token, and from nobody else."""

    url: str
    digest: Digest
    """SHA-256 of the authority's public key."""
    public_key: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The public key itself, once the authority has shown it: what certificates and lists are checked with."""


class TrainedWork(Message):
    """What was trained for a secure round, beside the saved update: that is erased once a list of survivors is signed,
    and the exchanges go on."""

    agreed: Digest
    """Of the plan and the task that it was trained by: ``contribution.agreed``."""
    tensors: Digest
    """Of the checkpoint's tensors, see ``tensors.canonical_digest``."""
    dimension: int
    """Values that are masked."""
    left: int = -1
    """The newest attempt of the round that this device has left: it joins later ones only. -1: none."""
    sketch: str = Field(default="", pattern=r"^([0-9a-f]{2})*$")
    """Of the checkpoint's parameters: ``secagg.nearness``."""
    near: bool = False
    """Whether the checkpoint is near to one before, and the owner allows that."""


class Record(Message):
    """All that the device must store between two steps of its session."""

    format: Literal[2] = RECORD_FORMAT
    key_seed: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The secret half of the device's key; empty where a key store outside holds it."""
    next_key_seed: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The secret half of the key that is to replace it, from before the authority is asked until it has answered."""
    authority: AuthorityRef | None = None
    certificate: str = Field(default="", pattern=r"^([0-9a-f]{2})*$")
    """The bytes of the present certificate, in hexadecimal; empty where the device has none."""
    coordinator: str = ""
    """URL that ``registered`` belongs to."""
    registered: Registered | None = None
    """The coordinator's answer for the present certificate; None where there is none yet."""
    assignment: Assignment | None = None
    """The round under way. At most one."""
    assigned_at: float = 0.0
    """Unix seconds, device's clock."""
    update_digest: Digest | None = None
    """The update of this round is trained, saved, and awaits its receipt; with ``work``, it awaits the sum of a secure
    round, of this or of a later one, and is never sent."""
    work: TrainedWork | None = None
    """What was trained for a secure round."""
    secret: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """32 bytes, drawn once before the first secure round. By them this device rounds what it masks, and orders what it
    trains on in secure rounds. They never leave it."""
    withdrawal: str | None = None
    """The reason why the device withdraws from this round, as long as the withdrawal has no answer."""
    farewell: SecureRefusal | None = None
    """What the device tells when it leaves the present attempt of a secure round, as long as that has no answer."""
    states_left_out: int = 0
    """See ``DeviceFacts.states_left_out``; a crash may cost one."""


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
    """The update's weight, from the receipt; None where there is no receipt."""
    authority_inside: bool = False
    """Whether the coordinator had the authority's key itself, so that it could have made up other devices."""
    logged: LoggedEvent | None = None
    """The event of the coordinator's log that counts the update, as the receipt names it; None: it names none."""
    joined_at: float
    """When the device joined the round: Unix seconds, device's clock."""
    ended_at: float
    """When its part in the round ended: Unix seconds, device's clock."""

    def same_round(self, other: Joined) -> bool:
        """Whether both are of the same update of the same round: a crash between two writes may repeat a line, never
        add a false one. A device whose update was lost at the coordinator is asked for another."""
        mine = (self.coordinator, self.device, self.run, self.round, self.attempt, self.update_digest)
        return mine == (other.coordinator, other.device, other.run, other.round, other.attempt, other.update_digest)


class Storage(Protocol):
    """The port. After ``save`` returns, all of it survives a crash; a crash inside it leaves the old record or the new
    one."""

    @property
    def checkpoints(self) -> CheckpointCache: ...

    @property
    def states(self) -> States:
        """What the device keeps for strategies."""

    def load(self) -> Record | None:
        """The last record saved. Without an update that is missing or damaged: the device then trains again."""

    def save(self, record: Record, update: bytes | None = None, joined: Joined | None = None) -> None:
        """Store ``record``, with the update that it newly names, and append ``joined`` to the history (once, if
        repeated).

        Updates that the record does not name are overwritten and deleted.
        """

    def load_secure(self) -> Memory:
        """This device's memory of secure rounds, with any coordinator; empty where it joined none. StorageError where
        it is damaged: a device that cannot know what it signed takes part in nothing."""

    def keep(self, change: Callable[[Memory], Memory]) -> Memory:
        """Apply ``change`` to the newest memory of secure rounds, store what it returns, and return that; what was
        stored before is erased as far as the medium allows. No other change is applied meanwhile, in whichever thread
        or process. Where ``change`` raises, or returns the same object, nothing is stored. StorageError as
        ``load_secure``."""

    def spend(self, debit: Debit, bounds: PrivacyBounds, *, ahead: bool = False) -> Declined | None:
        """Debit what an answer costs, unless the bounds decline it; ``ahead``: only ask. No other answer of the same
        data is debited meanwhile, in whichever process. StorageError where it cannot be known what was debited
        before."""

    def load_revocations(self) -> RevocationList | None:
        """The newest revocation list that was saved."""

    def save_revocations(self, revocations: RevocationList) -> None:
        """Replace the stored list. The caller has checked that this one may follow it."""

    def forget(self) -> None:
        """Delete the record with its key, the update, the states and the checkpoints, and from the memory of secure
        rounds all but its marks. The history, the ledger and the revocation list stay. It may be repeated."""

    def update(self, digest: str) -> BinaryIO:
        """The saved update, open for reading from its start. StorageError where there is none."""

    def history(self) -> list[Joined]:
        """All rounds joined, oldest first."""
