"""One flat record for each round, for tables: the fields of ``quorate rounds``, and the number of counted updates; and
one for each exchange of a secure round: how many devices came, and how many it takes.

It reads the store through the coordinator's own views, so both show the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from client_sdk.protocol.names import copied
from client_sdk.protocol.operators import RoundView
from coordinator.engine import events, rounds
from coordinator.engine.phases.lifecycle import NOT_NEEDED
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.runtime import views
from coordinator.runtime.run_log import start_of
from coordinator.store.port import EventRow, Reader, RunRow

_PAGE = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """The outcome of one round. Times are the coordinator's clock, seconds since 1970 (virtual in a simulation)."""

    round: int
    kind: str
    """federated | secure | datacenter | buffered."""
    because: str = ""
    """Why the round has this kind; empty for a federated one."""
    status: str
    """open | committed | abandoned."""
    reason: str
    """Why it was abandoned; empty otherwise."""
    opened_at: float
    closed_at: float | None
    seconds: float | None
    """From opening to the end; None while it is open."""
    wall_s: float | None
    """Seconds that the simulation of this round took on this machine; None where that was not measured."""

    selected: int
    started: int
    """Devices that began to train."""
    reported: int
    """Devices that sent an update, or advertised keys in a secure round."""
    counted: int
    """Devices whose update is in the model: of those that reported, where the round was committed; in a secure round,
    of the survivors."""
    late: int
    dropped: int
    """Devices that were selected and sent nothing until the round closed."""
    withdrawn: int
    refused: int

    bytes: int
    """Of the accepted updates; in a secure round, of the messages of all exchanges."""
    downloaded: int | None
    """Bytes of the models that devices fetched before they began to train, each a whole one: a device that has an
    earlier checkpoint gets the difference from it, which is shorter. None in buffered rounds, whose devices train over
    rounds."""
    weight: int
    version: int | None
    """Version of the checkpoint that the round committed; None where it committed none."""
    digest: str | None
    metrics: dict[str, float] = field(default_factory=dict)
    """Training metrics of the accepted updates, averaged by weight."""

    clipped: int | None = None
    """Updates that were scaled down to ``aggregation.clip_norm``. This and what follows is None where it is not known:
    in secure rounds, and in datacenter rounds."""
    capped: int | None = None
    """Updates that weigh less than their examples, by ``aggregation.weight_cap`` or by the cap of the registration."""
    partial: int | None = None
    """Updates of work that a deadline or a time budget cut short."""
    statistics_cut: int | None = None
    """Updates with statistics that were cut to ``aggregation.statistics_range``."""
    rounding: float | None = None
    """The largest rounding error of an update, relative to its largest value; 0 below 0.001. Of a secure round about
    how much of the step is rounding; None below 0.3."""
    zero_sum: bool = False
    """Whether the updates added up to zero in every value."""
    raised: int = 0
    """Values of non-negative statistics that are 0, since what clients sent would have made them less."""
    duplicates: int = 0
    """Updates beside the first one of their device: of two processes with copies of one folder."""
    refused_for: dict[str, int] | None = None
    """Why updates were refused: reason -> how many; late ones left out."""
    missed: int = 0
    """How often its selection found too few devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWithdrawal:
    """A device that was selected and announced that it will not report."""

    round: int
    device: str
    reason: str
    """The text that the device sent."""


def read_rounds(
    reader: Reader, run: str, now: RunState, wall: Mapping[int, float] | None = None
) -> Iterator[RoundSummary]:
    """All rounds in order, without one that was open and not needed when a score finished the run. ``wall``: seconds by
    round, for the measured ones."""
    first = reader.checkpoint(run, 0)  # all of a run have its size
    for view in _views(reader, run, now):
        if not view.reason.startswith(NOT_NEEDED):
            yield _round(view, (wall or {}).get(view.round), 0 if first is None else first.bytes)


def _views(reader: Reader, run: str, now: RunState) -> Iterator[RoundView]:
    after = 0
    while page := reader.rounds(run, after):
        for row in page:
            yield views.round_view(reader, row, now, exact=True)
        after = page[-1].round


def read_events(reader: Reader, run: str, after: int = 0) -> Iterator[EventRow]:
    """The log after an event, in order."""
    while page := reader.events(run, after, _PAGE):
        yield from page
        after = page[-1].seq


def withdrawal_of(event: EventRow) -> DeviceWithdrawal | None:
    """The withdrawal in an event; None for any other event."""
    happened = events.from_json(event.kind, event.at, event.body) if event.kind == events.Withdrew.kind else None
    if not isinstance(happened, events.Withdrew):
        return None
    return DeviceWithdrawal(round=happened.round, device=happened.device, reason=happened.reason)


def current_state(reader: Reader, row: RunRow) -> RunState:
    """The run's current state: its snapshot, and the newer events of the log applied to it."""
    now, seq = start_of(row)
    for event in read_events(reader, row.run, seq):
        now, _ = rounds.step(now, events.from_json(event.kind, event.at, event.body))
    return now


def state_in(reader: Reader, row: RunRow, round: int) -> RunState:
    """The run's state when this round was opened."""
    now = rounds.begin(row.run, Plan.parse(row.plan), row.init)
    for event in read_events(reader, row.run, 0):
        if now.round_number >= round:
            break
        now, _ = rounds.step(now, events.from_json(event.kind, event.at, event.body))
    return now


def _round(view: RoundView, wall_s: float | None, model_bytes: int) -> RoundSummary:
    funnel, treated = view.funnel, view.treatment
    return copied(
        RoundSummary,
        view,
        funnel,
        treated,
        seconds=None if view.closed_at is None else view.closed_at - view.opened_at,
        wall_s=wall_s,
        started=funnel.training,
        bytes=view.bytes_in if view.secure is None else sum(one.bytes for one in view.secure.exchanges),
        downloaded=None if view.kind == "buffered" else funnel.training * model_bytes,
        refused_for=None if treated is None else treated.refused,
    )


# ------------------------------------------------------------ the exchanges of secure rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundExchange:
    """One exchange of the last attempt of a secure round."""

    round: int
    status: str
    """Of the round: open | committed | abandoned."""
    attempt: int
    """From 0."""
    exchange: str
    """advertise | share | mask | agree | unmask."""
    expected: int
    """Devices that could send this message."""
    came: int
    """Devices that have sent it."""
    needed: int
    """The fewest with which the round goes on. Of *advertise*, *share* and *mask* by the plan's quorum and the
    threshold, of *agree* the signatures that a device asks for, of *unmask* the threshold of the secret sharing."""
    bytes: int
    """Of these messages."""


def read_exchanges(reader: Reader, run: str, now: RunState) -> Iterator[RoundExchange]:
    """The exchanges of all rounds, in order; none of rounds that are not secure, or never had a cohort."""
    for view in _views(reader, run, now):
        if view.secure is None:
            continue
        for one in view.secure.exchanges:
            yield copied(RoundExchange, one, view, attempt=view.secure.attempts - 1)
