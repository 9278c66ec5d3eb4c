"""The actions that a session yields to its driver, and the replies that the driver sends back.

The session is ``session.participate``; its drivers are the HTTP client, the simulator and the fault explorer.

============ ================================================ ==========================================================
action       the driver                                       and sends back
============ ================================================ ==========================================================
Save         makes it durable                                 None, once it is
Recall       reads which state of a strategy awaits an        Recalled
             outcome
Settle       makes that state the current one, or deletes it  None, once it is durable
Keep         changes the memory of secure rounds, durably     MemoryKept, MemoryNotKept
Spend        debits what an answer costs, durably             Spent
Load         reads the saved update back                      Loaded
FetchList    has the authority's revocation list at hand      ListFetched, RequestRefused, Unreachable, Failed
Certify      asks the authority, once                         Certified, RequestRefused, Unreachable, Failed
Send         signs and delivers one request, once             Answered, RequestRefused, Unreachable (or Unreadable)
Fetch        has the checkpoint's bytes, checked, at hand     Fetched, RequestRefused, Unreachable, Failed
Train        trains, and encodes (in a secure round: the       Trained, Failed
             body of a ``contribution``)
Sleep        waits a time drawn from the window               None
============ ================================================ ==========================================================

``at`` is the time of the reply in Unix seconds, by the driver's clock: the session has no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, assert_never

from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.data_ledger import Debit, Declined
from client_sdk.device.record import AuthorityRef, Joined, Record, Storage
from client_sdk.device.states import Candidate, key_of
from client_sdk.protocol.devices import Assignment, CheckpointRef, PrivacyBounds
from client_sdk.protocol.names import TENSORS_MEDIA_TYPE, Message, Route
from client_sdk.protocol.problems import Problem
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.origin import First
from client_sdk.tensors import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Make this durable before anything else happens. See ``record.Storage.save``."""

    record: Record
    update: bytes | None = None
    joined: Joined | None = None
    state: Tensors | None = field(default=None, repr=False)
    """What the device keeps for the strategy of the round's run, if the update counts: stored before the update is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Read which state awaits the outcome of its round. ``key``: of ``states.key_of`` coordinator and run."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Make the state that awaits an outcome the current one, or delete it."""

    key: str
    keep: bool
    why: str = ""
    """A sentence for people where the outcome is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Debit an answer in the ledger of the device's data, unless the owner's bounds decline it. See
    ``record.Storage.spend``."""

    debit: Debit
    bounds: PrivacyBounds
    ahead: bool = False
    """Only ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request. ``answers`` are the message types that a good answer may have."""

    method: str
    route: Route
    answers: tuple[type[Message], ...]
    path: dict[str, str | int] = field(default_factory=dict)
    """Fills the route's template."""
    message: Message | None = None
    """The JSON body."""
    update: str | None = None
    """Digest of the saved update that is the body instead; a worker's result, whose report ``message`` is a header."""
    media_type: str = TENSORS_MEDIA_TYPE
    """What that body is."""
    octets: bytes | None = field(default=None, repr=False)
    """A message of a secure round that is the body instead; its ``SecureSigned`` ``message`` is a header."""
    note: str = ""
    """What the device waits for while this request is held, for people: one sentence."""

    @property
    def url(self) -> str:
        return self.route.format(**self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Make this checkpoint available, checked against its digest; from the cache where it is there."""

    checkpoint: CheckpointRef
    place: str | None = None
    """The path of its bytes, where they are no checkpoint but the content of a Flower message; None: at
    ``Route.CHECKPOINT``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Read the saved update of this digest back."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchList:
    """Have the authority's revocation list of this digest at hand: the saved one, or else the coordinator's, which is
    saved where it is newer than that one. Whether an attempt may begin by it is for the device's memory to say."""

    digest: bytes
    """SHA-256 of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certify:
    """Ask the authority for a certificate. The key in the record that was saved last signs."""

    what: Literal["enrol", "renew", "rotate"]
    authority: AuthorityRef
    token: EnrolmentToken | None = field(default=None, repr=False)
    """Of *enrol*: the permission to get the first certificate of a key."""
    label: str = ""
    """Of *enrol*: a name for display. Not verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train from the checkpoint that was fetched last, encode, and report; be done by ``due_at``."""

    assignment: Assignment
    due_at: float
    """Unix seconds, driver's clock: when the round's deadline passes."""
    secret: bytes = field(default=b"", repr=False)
    """Of a secure round: what the order of batches is drawn from (``contribution.in_private_order``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Sketch the checkpoint that was fetched last (``contribution.sketch_for``), before a secure round, by the secret
    of the memory of secure rounds (``Memory.sketching``)."""

    assignment: Assignment
    first: bool = False
    """Find out of the run's first model too: make it, or read the signed one, which was fetched before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Wait. The driver draws the time from the window, so that devices do not return all at once."""

    min_s: float
    max_s: float
    reason: str
    trouble: bool = False
    """Whether something is wrong (the coordinator does not answer), rather than nothing to do."""


SharedAction = Save | Certify | Send | Sleep
"""What a datacenter's worker does as well: both become known, ask and wait alike."""
Action = SharedAction | Keep | Spend | Load | FetchList | Fetch | Sketch | Train | Recall | Settle


@dataclass(frozen=True, slots=True)
class Answered:
    """The coordinator's good answer."""

    message: Message
    at: float


@dataclass(frozen=True, slots=True)
class Certified:
    """The authority's certificate. The driver has checked that the pinned authority has signed it for this key."""

    certificate: Certificate
    at: float
    authority_key: str = ""
    """The authority's public key in hexadecimal, which has the pinned digest."""


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The coordinator's problem document; for ``Fetch`` also ``digest-mismatch``, found by the driver."""

    problem: Problem
    at: float


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No answer. Whether the request arrived is not known."""

    reason: str
    at: float
    held_s: float = 0.0
    """Seconds for which a connection with the request was open before it broke; 0 where there was no connection."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An assignment that asks for something this SDK does not know, so that it cannot agree to it."""

    run: str
    round: int
    attempt: int
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """The checkpoint is available."""

    at: float


@dataclass(frozen=True, slots=True)
class Sketched:
    """The sketch. Empty: this driver keeps no account of models, as in simulations."""

    sketch: bytes
    tensors: bytes
    """``canonical_digest`` of the checkpoint's tensors."""
    at: float
    values: int = 0
    """How many parameters of it are averaged."""
    first: First = field(default_factory=First)
    """Of the run's first model, where that was asked for."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The encoded update, ready to be sent as it is."""

    body: bytes = field(repr=False)
    complete: bool
    """False where the device stopped before the whole task was done."""
    at: float
    state: Tensors | None = field(default=None, repr=False)
    """What the device keeps for the task's strategy, if this update counts."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The training whose state awaits its outcome; None: there is none."""

    candidate: Candidate | None
    at: float


@dataclass(frozen=True, slots=True)
class MemoryKept:
    """The memory of secure rounds, as it is stored now."""

    memory: Memory = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class MemoryNotKept:
    """The change refused the newest memory with this error. Nothing was stored."""

    error: SecaggError
    at: float


@dataclass(frozen=True, slots=True)
class Spent:
    """The answer was debited, or not, for this reason."""

    declined: Declined | None
    at: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The saved update."""

    body: bytes = field(repr=False)
    at: float


@dataclass(frozen=True, slots=True)
class ListFetched:
    """The authority's revocation list."""

    revocations: RevocationList
    at: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The device could not do it, for this reason: one sentence, shown to the operator. Of ``Certify``: who answered is
    not the pinned authority; of ``FetchList``: the list is not the authority's, or not the one that was asked for."""

    reason: str
    at: float


Reply = (
    Answered
    | Certified
    | RequestRefused
    | Unreachable
    | Unreadable
    | Fetched
    | Sketched
    | Trained
    | Recalled
    | MemoryKept
    | MemoryNotKept
    | Spent
    | Loaded
    | ListFetched
    | Failed
    | None
)


# ------------------------------------------------------------ performing
# Performs the actions that concern the device's storage alone: the same for every driver of a session.


Stored = Save | Keep | Spend | Load | Recall | Settle


def perform_stored(
    storage: Storage, action: Stored, at: float
) -> MemoryKept | MemoryNotKept | Spent | Loaded | Recalled | None:
    """Perform ``action`` on ``storage``, and return the reply. ``at``: Unix seconds. StorageError."""
    match action:
        case Save():
            work, digest = action.record.assignment, action.record.update_digest
            if action.state is not None and work is not None and digest is not None:
                training = Candidate(work.round, work.attempt, digest)
                storage.states.put(key_of(action.record.coordinator, work.run), training, action.state, at)
            storage.save(action.record, action.update, action.joined)
            return None
        case Keep():
            try:
                return MemoryKept(storage.keep(action.change), at)
            except SecaggError as error:
                return MemoryNotKept(error, at)
        case Spend():
            return Spent(storage.spend(action.debit, action.bounds, ahead=action.ahead), at)
        case Recall():
            return Recalled(storage.states.candidate(action.key), at)
        case Settle():
            storage.states.settle(action.key, keep=action.keep)
            return None
        case Load():
            with storage.update(action.digest) as file:
                return Loaded(file.read(), at)
        case _:
            assert_never(action)
