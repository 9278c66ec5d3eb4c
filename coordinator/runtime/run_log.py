"""One run's state in this process: a cache of the fold of its log, tagged with the last sequence number.

A change of the run is submitted as a proposal. Proposals that arrive together share one transaction, which holds the
run's lock in the store: catch up with the events of other replicas, step, append, write the records. Only when that is
durable, the cache is updated, the proposals are answered, and the actions are issued.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from coordinator.engine import effects as fx
from coordinator.engine import events, rounds
from coordinator.engine import state as states
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.group_commit import GroupCommit
from coordinator.runtime import privacy_ledgers, records
from coordinator.runtime.clock import Clock
from coordinator.runtime.tracing import Traces
from coordinator.store.port import RUN_ROUND, FenceLost, RunRow, Store, Transaction
from coordinator.store.rows import MessageRow

Make = Callable[[Transaction, RunState, float], events.Event | None]
"""Makes an event from the newest state and the time, or None for no event. May read the transaction, but not write."""

_ACTIONS = get_args(fx.Action)
_PAGE = 5000
RECENT_S = 1.0
"""Seconds for which ``recent`` does not ask the store again."""


def start_of(row: RunRow) -> tuple[RunState, int]:
    """Returns (state, seq) from which the run's log is folded: its snapshot, or its beginning where there is none yet
    or another version of the coordinator wrote it. ValueError where the row cannot be read."""
    state = None if row.snapshot is None else states.from_json(row.snapshot)
    if state is None:
        return rounds.begin(row.run, Plan.parse(row.plan), row.init), 0
    if not isinstance(row.snapshot_seq, int):
        raise ValueError(f"the snapshot is of event {row.snapshot_seq!r}")
    return state, row.snapshot_seq


@dataclass(frozen=True, slots=True)
class _Proposal:
    make: Make
    fence: int | None
    cause: object = None
    """What the proposer does, for traces."""
    message: MessageRow | None = None


class RunLog:
    """``submit`` is safe from any thread; ``state`` is the newest durable state that this process has read."""

    def __init__(
        self,
        row: RunRow,
        store: Store,
        clock: Clock,
        hand_out: Callable[[str, list[fx.Action]], None],
        traces: Traces | None = None,
    ) -> None:
        self.run = row.run
        self.row = row
        """The run's row as it was read first: what is used of it was written once, when the run was created (plan,
        seed, first checkpoint, roles). What changes is in the state."""
        self._store = store
        self._clock = clock
        self._hand_out = hand_out
        self._traces = traces
        self.commits: GroupCommit[_Proposal, list[fx.Effect]] = GroupCommit(self._commit)
        self._cache = start_of(row)
        self._read_at: float | None = None
        """When the store was last asked for the newest event, by the clock."""
        self._unfolded: dict[str, bytes] = {}
        """Short updates that this process has stored, and that wait to be folded."""

    @property
    def state(self) -> RunState:
        return self._cache[0]

    @property
    def seq(self) -> int:
        return self._cache[1]

    def submit(self, make: Make, *, fence: int | None = None, message: MessageRow | None = None) -> list[fx.Effect]:
        """Applies the event and returns its effects once they are durable.

        ``fence``: FenceLost unless it is the run's newest; ``message``: stored in the event's transaction, where the
        event is logged and accepts it.
        """
        return self.enter(make, fence=fence, message=message)()

    def enter(
        self, make: Make, *, fence: int | None = None, message: MessageRow | None = None
    ) -> Callable[[], list[fx.Effect]]:
        """Queues the proposal. The function that it returns does the rest of ``submit``: those that are queued
        meanwhile share the transaction."""
        cause = None if self._traces is None else self._traces.cause()
        return self.commits.enter(_Proposal(make, fence, cause, message))

    def caught_up(self) -> tuple[RunState, int]:
        """Returns (state, seq) with the events of other replicas: one cheap read where there are none."""
        asked_at = self._clock.now()
        if self._store.head(self.run) != self._cache[1]:
            self.submit(lambda tx, state, now: None)
        else:
            self._read_at = asked_at
        return self._cache

    def catch_up(self) -> RunState:
        return self.caught_up()[0]

    def recent(self) -> RunState:
        """The newest state as of a moment ago: events of other replicas are in it after RECENT_S seconds. For hundreds
        of requests that look whether there is an answer yet."""
        age_s = -1.0 if self._read_at is None else self._clock.now() - self._read_at
        return self.state if 0 < age_s < RECENT_S else self.catch_up()

    def messages(self, digests: Collection[str]) -> dict[str, bytes]:
        """The contents of the run's short messages with these digests, as far as they are stored."""
        found = {digest: content for digest in digests if (content := self._unfolded.get(digest)) is not None}
        left = [digest for digest in digests if digest not in found]
        return {**found, **self._store.messages(self.run, left)} if left else found

    def folded(self, digest: str) -> None:
        """This update is read again only where its sum is lost."""
        self._unfolded.pop(digest, None)

    def take_fence(self, wanted: Callable[[RunState], bool]) -> int | None:
        """Raises the run's fence and returns it; None where ``wanted`` is false for the newest state.

        Both happen in one transaction: raised later, the fence could interrupt the work of another replica.
        """
        while True:
            state, seq = self.caught_up()
            if not wanted(state):
                return None
            with self._store.transaction(self.run) as tx:
                if tx.head(self.run) == seq:
                    return tx.raise_fence(self.run)

    def _commit(self, batch: Sequence[_Proposal]) -> list[list[fx.Effect] | BaseException]:
        results: list[list[fx.Effect] | BaseException] = []
        logged: list[tuple[float, str, dict[str, object]]] = []
        counting: dict[tuple[int, str], int] = {}
        """(round, device) -> the index in ``logged`` of the event that counts its update."""
        accepting: list[tuple[int, list[fx.Effect], int]] = []
        """(index of the result, result, index in ``logged`` of the event that counts its update)."""
        rows: list[tuple[float, fx.Record]] = []
        messages: dict[str, MessageRow] = {}
        discarded: list[int] = []
        """Rounds whose messages are deleted."""
        actions: list[fx.Action] = []
        traced = None if self._traces is None else self._traces.batch(self.run)
        with self._store.transaction(self.run) as tx:
            read_at = self._clock.now()
            before, seq = self._caught_up(tx, actions)
            state = before
            for proposal in batch:
                now = self._clock.now()
                try:
                    self._hold_fence(tx, proposal.fence)
                    event = proposal.make(tx, state, now)
                except Exception as error:  # noqa: BLE001 - the error is this proposer's, not the batch's
                    results.append(error)
                    continue
                if event is None:
                    results.append([])
                    continue
                for happened, following, effects in privacy_ledgers.stepped(tx, state, event):
                    recorded = refused = accepted = False
                    for effect in effects:
                        if isinstance(effect, fx.Accepted):
                            accepted = True
                        elif isinstance(effect, fx.Refused):
                            refused = True
                        elif isinstance(effect, records.RECORDS):
                            rows.append((happened.at, effect))
                            recorded = True
                        elif isinstance(effect, _ACTIONS):
                            actions.append(effect)
                    is_logged = following is not state or (recorded and not refused)
                    if accepted and isinstance(happened, events.Reported):
                        key = state.round_number, happened.device
                        if is_logged:
                            counting[key] = len(logged)
                        if key in counting:
                            accepting.append((len(results), effects, counting[key]))
                        else:  # the same bytes were sent again
                            effects = _with_place(effects, *self._place(tx, happened))
                    if is_logged:
                        logged.append((happened.at, happened.kind, events.to_json(happened)))
                        if accepted and proposal.message is not None:
                            message = replace(proposal.message, round=state.round_number)
                            messages[message.digest] = message
                        if isinstance(happened, events.Discarded):
                            discarded.append(happened.round)
                        if traced is not None:
                            traced.event(proposal.cause, happened, following.round_number, effects)
                    state = following
                results.append(effects)
            records.write(tx, self.run, records.without_counted(tx, self.run, rows))
            if messages:
                tx.insert_messages(messages.values())
            for number in discarded:
                tx.drop_messages(self.run, number)
            if state.over and not before.over:
                tx.drop_messages(self.run, RUN_ROUND)
            links: list[str] = []
            if logged:
                seq, links = tx.append(self.run, logged)
            ended = state.round_number != before.round_number or (state.round is None and before.round is not None)
            if ended or state.abandoned != before.abandoned:
                tx.snapshot(self.run, seq, states.to_json(state))
        if traced is not None:
            traced.durable()
        first = seq - len(links) + 1
        for index, effects, at in accepting:
            results[index] = _with_place(effects, first + at, links[at])
        folds = {action.contribution.digest for action in actions if isinstance(action, fx.Fold)}
        self._unfolded.update((digest, row.content) for digest, row in messages.items() if digest in folds)
        moved = seq != self._cache[1]
        self._cache, self._read_at = (state, seq), read_at
        if moved or actions:
            self._hand_out(self.run, actions)
        return results

    def _hold_fence(self, tx: Transaction, fence: int | None) -> None:
        """FenceLost for a proposal whose fence is not the run's newest.

        It is checked first: a refusal by the store would end the batch.
        """
        if fence is None:
            return
        row = tx.run(self.run)
        if row is None or row.fence != fence:
            raise FenceLost(f"another replica has taken the commit of run {self.run}")
        tx.require_fence(self.run, fence)

    def _place(self, tx: Transaction, again: events.Reported) -> tuple[int, str]:
        """(sequence number, link) of the event that counts these bytes, which were sent again."""
        beginning = {"round": again.round, "attempt": again.attempt, "device": again.device, "digest": again.digest}
        row = tx.find_event(self.run, again.kind, beginning)
        return (0, "") if row is None else (row.seq, row.link)

    def _caught_up(self, tx: Transaction, actions: list[fx.Action]) -> tuple[RunState, int]:
        """The state with the events that are not in the cache: of another replica, or of a transaction of this one that
        lost the database's acknowledgement. What such an event deletes is asked for again, since ``pending`` names
        only the newest deletion; to delete twice does no harm.
        """
        state, seq = self._cache
        head = tx.head(self.run)
        while seq < head:
            page = tx.events(self.run, seq, _PAGE)
            if not page:
                raise ValueError(f"the log ends at event {seq}, and the run's row says {head}")
            for row in page:
                state, effects = rounds.step(state, events.from_json(row.kind, row.at, row.body))
                actions += [effect for effect in effects if isinstance(effect, fx.Discard)]
                seq = row.seq
        return state, seq


def _with_place(effects: list[fx.Effect], seq: int, link: str) -> list[fx.Effect]:
    """The effects, in which an accepted update names the event that counts it."""
    return [replace(one, seq=seq, link=link) if isinstance(one, fx.Accepted) else one for one in effects]
