"""The state of a run between two events: small, frozen, and only what ``step`` needs to decide the next one.

Tensors are named by digest. The state is written as JSON at the end of each round, so that recovery folds only the tail
of the log.

What is of use in one round only is in ``Round``, which opening a round makes and ending it drops; what outlives
rounds, such as whose turn it is, is in ``RunState`` and ``Fallback``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from itertools import chain
from operator import not_
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from client_sdk.protocol.operators import AttemptView, Kind, Phase, Status
from client_sdk.secagg.header import Terms
from client_sdk.tensors.manifest import StatisticRole
from coordinator.engine.aggregation.section import times_of
from coordinator.engine.effects import Contribution
from coordinator.engine.event_fields import UNTREATED, Treated
from coordinator.engine.named_tensors import NamedTensors, Small
from coordinator.engine.plan import Plan
from coordinator.engine.reasons import grouped
from coordinator.engine.secure.disputes import Disputes
from coordinator.engine.secure.state import Barred, SecureRound
from coordinator.engine.secure.suspicion import Suspicion
from coordinator.engine.selection import NO_PACE, Known, Pace

Row = TypeVar("Row")
RoundPhase = Literal[
    "selecting",
    "collecting",
    "leasing",
    "training",
    "sharing",
    "masking",
    "agreeing",
    "unmasking",
    "committing",
]
"""Each has a file: in ``phases``, or in ``secure`` for what only secure rounds have."""
PHASES: tuple[RoundPhase, ...] = get_args(RoundPhase)
_TOGETHER = 64
"""Members of one tuple, which is copied where one of them changes."""
_DEPARTED = {
    "withdrawn": ("device withdrew", "devices withdrew"),
    "refused": ("update was refused", "updates were refused"),
    "expired": ("device sent no update in time", "devices sent no update in time"),
}
"""Statuses of members that have left the round, and how their reasons are introduced."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One device of the cohort."""

    examples: int
    """What it claimed when it was selected, capped."""
    status: Literal["selected", "training", "reported", "withdrawn", "refused", "expired"] = "selected"
    """*reported*: its update was acknowledged, of a secure round its masked vector. *withdrawn* and *refused* (its
    update is not valid) are final: it has left the round, for this ``reason``; *expired*, of buffered rounds: its time
    was up."""
    reason: str = ""
    since: int = 0
    """Of a buffered round: the round in which it was drawn, whose model it trains. 0 in others: in this round."""
    until: float | None = None
    """Of a buffered round: when its time is up. None in others: it is the round's."""
    lost: str = ""
    """Digest of its first update, whose stored bytes are gone: it was asked for another one, for which the round
    waits."""
    digest: str | None = None
    weight: int = 0
    bytes: int = 0
    steps: int = 0
    seconds: float | None = None
    """From the draw to its update, by the coordinator's clock; None: it has sent none in the clear."""
    partial: bool = False
    treated: Treated = UNTREATED
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    held_out_examples: int = 0
    held_out_weights: dict[str, float] = field(default_factory=dict)
    held_out_states: dict[str, list[float]] = field(default_factory=dict)


class Members(Mapping[str, Member]):
    """The devices of a round, in the order in which they were drawn, and how many have which status.

    Frozen. Another condition of one member costs the square root of their number, and no walk over them: a round has up
    to tens of thousands, and each changes several times.
    """

    __slots__ = ("_counts", "_parts", "_places")

    def __init__(self, members: Mapping[str, Member] | None = None) -> None:
        members = members or {}
        self._places = {device: place for place, device in enumerate(members)}
        every = tuple(members.values())
        self._parts = tuple(every[first : first + _TOGETHER] for first in range(0, len(every), _TOGETHER))
        self._counts: Mapping[str, int] = Counter(member.status for member in every)

    def __getitem__(self, device: str) -> Member:
        part, place = divmod(self._places[device], _TOGETHER)
        return self._parts[part][place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, device: object) -> bool:
        return device in self._places

    def items(self) -> ItemsView[str, Member]:
        return self._whole().items()

    def values(self) -> ValuesView[Member]:
        return self._whole().values()

    def count(self, *statuses: str) -> int:
        """How many have one of these statuses."""
        return sum(self._counts.get(status, 0) for status in statuses)

    def _whole(self) -> dict[str, Member]:
        """A walk over a dict takes a tenth of the time of one that looks each member up."""
        return dict(zip(self._places, chain.from_iterable(self._parts), strict=True))

    def changed(self, device: str, member: Member) -> Members:
        """These, but the device, which is one of them, is in this condition."""
        part, place = divmod(self._places[device], _TOGETHER)
        old = self._parts[part]
        following = object.__new__(Members)
        following._places = self._places
        following._parts = (*self._parts[:part], (*old[:place], member, *old[place + 1 :]), *self._parts[part + 1 :])
        following._counts = self._counts
        if (before := old[place].status) != member.status:
            following._counts = {**self._counts, before: self._counts[before] - 1}
            following._counts[member.status] = self.count(member.status) + 1
        return following

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """An object of members by device."""
        plain = handler.generate_schema(dict[str, Member])
        as_dict = core_schema.wrap_serializer_function_ser_schema(
            lambda found, go_on: go_on(found._whole()), schema=plain
        )
        return core_schema.no_info_after_validator_function(cls, plain, serialization=as_dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedLease:
    """One worker's lease of a datacenter round. Live while the round is *training*; afterwards it shows who had it."""

    worker: str
    instance: str
    """The worker's process: another one of the same worker gets a grant of its own."""
    fence: int
    granted_at: float
    renewed_at: float
    """The last heartbeat that was logged, or the grant."""
    installation: str = ""
    """The worker's, where it named it: a process of the same one is a restart."""
    step: int = 0
    bytes: int = 0
    """Of the result, once there is one."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """The round under way: everything that is not needed after its end. Opening a round makes a new one."""

    number: int
    kind: Kind
    phase: RoundPhase
    opened_at: float
    attempt: int = 0
    """Re-keyings of a secure round, leases of a datacenter round."""
    collecting_at: float | None = None
    deadline: float | None = None
    """When the phase ends by itself, in the coordinator's time."""
    missed: int = 0
    """How often the time of its selection passed with too few devices. Each counts as an abandoned round does."""
    missed_at: float | None = None
    """The last time."""
    waiting: int = 0
    pool: str | None = None
    """Digest of the blob that lists the waiting devices."""
    members: Members = field(default_factory=Members)
    because: str = ""
    """Why it is a datacenter round, or why it is the fleet's again."""
    planned: bool = False
    """Whether the plan gives this round to the datacenter, however many devices wait."""
    lease: GrantedLease | None = None
    """The live one while *training*, else the last one."""
    give_up_at: float | None = None
    """When a datacenter round is abandoned, whichever worker has its lease. Set by its first one."""
    secure: SecureRound | None = None
    """The attempt under way of a secure round, from the cohort's selection to the round's end."""
    pools: tuple[str, ...] = ()
    """Of a buffered round: the list of who waited, for each draw."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Device -> why further attempts of this secure round are made without it."""
    earlier: tuple[AttemptView, ...] = ()
    """The attempts of this secure round that were given up, in order, for people: at most ``secure.attempts``."""
    seed: Annotated[str, Field(exclude_if=not_)] = ""
    """SHA-256 of the seed of the round's noise, once there is one."""
    advancing: str = ""
    """Who lets this round commit the model moved by one unit; empty in all others."""

    @property
    def departures(self) -> str:
        """Why devices left the round without an update that counts, for people; empty where none did."""
        left = {status: [m.reason for m in self.members.values() if m.status == status] for status in _DEPARTED}
        found = [grouped(reasons, *_DEPARTED[status]) for status, reasons in left.items() if reasons]
        return ". ".join(found)

    def count(self, *statuses: str) -> int:
        """How many members have one of these statuses."""
        return self.members.count(*statuses)

    def is_due(self, at: float) -> bool:
        """Whether the phase's time is up, or that of the whole round."""
        return any(until is not None and at >= until for until in (self.deadline, self.give_up_at))

    @property
    def lost(self) -> tuple[Contribution, ...]:
        """The updates that were acknowledged and then lost, by device id; without those of which the same bytes came
        again."""
        return tuple(
            Contribution(device=device, digest=member.lost, weight=0)
            for device, member in sorted(self.members.items())
            if member.lost not in ("", member.digest)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """The part of a run's state that decides whether the next round is the fleet's or the datacenter's."""

    abandoned_in_a_row: int = 0
    """Federated rounds, since the last commit or since devices came back."""
    away_since: int | None = None
    """The round in which the run fell back to the datacenter: it stays there until enough devices wait."""
    fleet_first: bool = False
    """Whether the next round is the fleet's turn, whatever else speaks for the datacenter: the last was given up."""
    tried: bool = False
    """Whether the run has fallen back since its last commit, or since it was resumed."""
    back_with: int | None = None
    """Eligible devices that waited when the last datacenter round was committed, where they were enough to return."""
    failures: int = 0
    """Datacenter rounds in a row that a worker reported as impossible to train."""
    failure: str = ""
    """The reason that it gave last."""
    rests_until: float | None = None
    """After several such rounds: until then none goes to the datacenter."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    run: str
    plan: Plan
    checkpoint: str
    """Digest of the current model."""
    tensors: str = ""
    """Digest of its canonical tensors, which devices go by; empty where the plan has no secure rounds."""
    named_tensors: NamedTensors = field(default_factory=dict)
    """The tensors that go with the current model."""
    small: Small = field(default_factory=dict)
    """The small state that goes with it."""
    version: int = 0
    """Of the current model; each commit adds one, so it is also the number of committed rounds."""
    status: Status = "running"
    reason: str = ""
    ending: tuple[Literal["finished", "stopped"], str] | None = None
    """Set when the run ends while a round is committing: it ends once that is over."""

    renamed: str = ""
    """The name that an operator gave it; empty: the plan's."""
    begun: bool = False
    """Whether ``Created`` has happened. An operator may have paused or stopped the run before."""
    weight_unit: int = 1
    """In how many parts of an example updates are weighed: set when the run begins, and the same for all its rounds."""
    roles: Mapping[str, StatisticRole] = field(default_factory=dict)
    """The model's statistics, set when the run begins; its other tensors are parameters."""
    roles_digest: str = ""
    """What devices agree to about them: see ``events.Created``."""

    round: Round | None = None
    """The round under way."""
    round_number: int = 0
    """Of the round under way, or of the last one; 0 before the first."""
    fallback: Fallback = Fallback()
    abandoned: int = 0
    """Rounds of any kind abandoned in a row, since the last commit or since the run was resumed, and selections that
    were missed. Datacenter rounds that ended because devices came back are not counted."""
    fence: int = 0
    """Leases granted in this run so far: the number of the last one."""

    spent: tuple[str, ...] = ()
    """Devices that have signed a survivor list on this checkpoint in this run, sorted: none of them can contribute to
    it again."""
    declined: Mapping[str, str] = field(default_factory=dict)
    """Device -> why it takes part in no attempt on this checkpoint any more, without being spent."""
    vouched: Annotated[tuple[int, str] | None, Field(exclude_if=not_)] = None
    """The last version that somebody has signed, and the signature: see ``events.Vouched``."""
    barred: Mapping[str, Barred] = field(default_factory=dict)
    """Devices that take part in no secure round of the run for some rounds."""
    disputes: Annotated[Disputes, Field(exclude_if=not_)] = field(default_factory=dict)
    """Who has complained of whose shares in the last secure rounds, and when: of two devices nobody knows which one
    lied, and a device that is in dispute with several others is the likely one."""
    suspicion: Annotated[Suspicion, Field(exclude_if=not_)] = field(default_factory=dict)
    """Devices that rest in some of the secure rounds, since sums of their groups were bad."""
    lists_lost: tuple[int, ...] = ()
    """Of the last survivor lists: how many thousandths of the devices on them vanished before the sum."""
    margin_missed: int = 0
    """Attempts that failed for want of the list's margin, since a list had the whole of it."""
    exhausted: str = ""
    """Why the run cannot go on from this checkpoint with the devices it has: too many are spent or have declined.
    Empty: it can."""
    participation: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Device -> (committed rounds for which it was selected and neither withdrew nor had its update refused, those in
    which it counted), where the plan weighs by 1/p or bounds the latter; empty in others. In private secure rounds both
    are the rounds of which it was on a list that was shown."""
    counted_at: Annotated[Mapping[str, int], Field(exclude_if=not_)] = field(default_factory=dict)
    """Device -> the last version that has its update, where the plan has ``cohort.apart``."""
    made_by: tuple[int, ...] = ()
    """Of a run with buffered rounds: the rounds that made its last versions, as many as a report may be stale, and one
    more. Of one with secure rounds: the round that made its model."""
    known: Mapping[str, Known] = field(default_factory=dict)
    """Device -> what is known of it from rounds that are over, where the plan's selection reads it; empty in others."""
    pace: Annotated[Pace, Field(exclude_if=NO_PACE.__eq__)] = NO_PACE
    """Of a plan whose selection has a pacer."""
    leftovers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Secure round that has ended -> its blobs, until they are known to be deleted."""

    best: float | None = None
    """The best value so far of the metric that the plan watches."""
    unimproved: int = 0
    """Scored checkpoints since then."""
    last_scored: int = -1
    """The latest version scored for that metric."""

    @property
    def phase(self) -> Phase:
        """Of the round under way; *idle* where there is none."""
        return "idle" if self.round is None else self.round.phase

    @property
    def deadline(self) -> float | None:
        """When the phase under way ends by itself; None: it does not, or there is none."""
        return None if self.round is None else self.round.deadline

    @property
    def waits(self) -> bool:
        """Whether the round waits for devices, however long that takes: its draw has no time of its own."""
        return self.phase == "selecting" and self.deadline is None

    @property
    def drawn_from(self) -> int:
        """From how many eligible devices that wait a cohort is drawn at once."""
        return self.plan.fewest_devices if self.waits else self.plan.pool_count

    @property
    def name(self) -> str:
        """By which it is shown."""
        return self.renamed or self.plan.name

    def times(self, device: str) -> int:
        """By how many parts its update is weighed by 1/p: see ``weights.times_of``."""
        return times_of(self.plan.aggregation, *self.participation.get(device, (0, 0)))

    def has_done_all(self, device: str) -> bool:
        """Whether its update has counted in as many rounds as the plan allows."""
        most = self.plan.cohort.most_rounds
        return most is not None and self.participation.get(device, (0, 0))[1] >= most

    def rests(self, device: str) -> bool:
        """Whether the plan's ``cohort.apart`` keeps it from the next committed round."""
        apart, last = self.plan.cohort.apart, self.counted_at.get(device)
        return apart is not None and last is not None and self.version + 1 - last < apart

    @property
    def marked_on(self) -> str:
        """What devices are spent on, over all runs: the current model's tensors."""
        return self.tensors or self.checkpoint

    @property
    def terms(self) -> Terms | None:
        """What secure rounds of this run are held to; None: its rounds with devices are plain."""
        return self.plan.terms_with(self.roles)

    @property
    def secure(self) -> SecureRound | None:
        """The attempt under way; None: no secure round has a cohort."""
        return None if self.round is None else self.round.secure

    @property
    def current(self) -> Round:
        """The round under way, for what happens only while there is one."""
        if self.round is None:
            raise AssertionError(f"run {self.run} has no round under way")
        return self.round

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped")

    def with_round(self, round: Round) -> RunState:
        """This state, but the round under way is in this condition."""
        return altered(self, round=round)

    def with_member(self, device: str, member: Member) -> RunState:
        """This state, but the device, which is in the round, is in this condition."""
        current = self.current
        return altered(self, round=altered(current, members=current.members.changed(device, member)))


def altered(row: Row, **changes: object) -> Row:
    """What ``dataclasses.replace`` gives of a row without slots and without a ``__post_init__``, at a fraction of its
    price."""
    following: Row = object.__new__(type(row))
    object.__setattr__(following, "__dict__", row.__dict__ | changes)
    return following


_FORMAT = 3
"""Of a stored state. Raised whenever this version could not read, or would misread, what an older one has written."""
_ADAPTER: TypeAdapter[RunState] = TypeAdapter(RunState)


def to_json(state: RunState) -> dict[str, object]:
    return {"format": _FORMAT, **_ADAPTER.dump_python(state, mode="json")}


def from_json(body: Mapping[str, object]) -> RunState | None:
    """The state of a snapshot. None: another version wrote it in a format of its own, and the log is to be folded."""
    if body.get("format") != _FORMAT:
        return None
    return _ADAPTER.validate_python({name: value for name, value in body.items() if name != "format"})


def membership(state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
    """Why this device has no open place in this round: (kind, reason), or None."""
    current = state.round
    if round > state.round_number:
        return "stale", f"round {round} has not been opened: the run is at round {state.round_number}"
    if current is None or round < current.number:
        return "late", f"round {round} is over"
    if attempt > current.attempt:
        return "stale", f"attempt {attempt} of round {round} has not been opened: it is at attempt {current.attempt}"
    if device not in current.members:
        return "not-selected", f"device {device} was not selected for round {round}"
    if attempt < current.attempt:
        return "stale", f"attempt {attempt} of round {round} is over: it is at attempt {current.attempt}"
    return None
