"""Draws cohorts: in one transaction under the run's lock the devices that wait and may be selected are counted, drawn
from and claimed. Devices that contribute to the run's checkpoint no more (``marks.unspendable``), in whichever run that
came to be, are not drawn and are counted apart.

From what is drawn depends on the plan's selection. One that asks for ranks and for places in the sum of examples draws
from a tree that is kept (``waiting_pool``): the log gets the number of devices, the sum of their examples and the
tree's root, and a blob has what the tree shows of who was drawn. So a draw costs as much as the cohort, and what came
and left since the last one. Any other selection looks at each device, and a blob has the list of all of them, with
what the selection reads.

To make a blob durable takes up to three syncs of the disk (the file, its folder, the folder above where the former is
new). So it is written before the transaction, from a first look at the pool, while others write. The transaction looks
again: where the pool is another one by then, it draws nothing, and the blob is written anew. The next start of the
coordinator deletes a blob from which nothing was drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.engine import events as ev
from coordinator.engine.plan import selection_of
from coordinator.engine.plan_file import PlanError
from coordinator.engine.rounds import kind_of
from coordinator.engine.secure.suspicion import resting
from coordinator.engine.selection import Choice
from coordinator.engine.state import RunState
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import missing
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.marks import Why, unspendable
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import Reader, Transaction

_TRIES = 3
"""Blobs that are written before a transaction. Of a pool that changes faster than that it is written inside one."""


def draw_cohort(log: RunLog, fleet: Fleet, core: Core) -> None:
    """Draws a cohort if the run is selecting and its pool is full or its time is over, or devices for the free places
    of a buffered round; otherwise does nothing, so a wrong hint does no harm. MissingExtension where the plan's
    selection or strategy is not installed here; ExtensionError where the selection fails, or the strategy decides no
    task for devices without a class: a cohort would wait for it until the round's deadline."""
    state = log.state
    plan = state.plan
    if plan.strategy is not None and state.phase == "selecting":
        core.aggregator(log.run).algorithm.task(plan, state.version, state.small)
    try:
        choice = selection_of(plan, core.extensions(plan))
    except PlanError as error:
        raise missing(log.run, error) from None
    for _ in range(_TRIES):
        draw = _Draw(log, fleet, choice, core)
        draw.prepare()
        log.submit(draw.make)
        fleet.count_again()
        if draw.done:
            return
    log.submit(_Draw(log, fleet, choice, core, inside=True).make)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a pool that is due to be drawn from has found."""

    waiting: int
    unspendable: Counter[Why] = field(default_factory=Counter)
    drawn_from: object = None
    """All that the draw depends on. None: there are too few devices."""
    cohort: tuple[tuple[str, int], ...] = ()
    examples: int = 0
    root: str = ""
    body: object = None
    """Of the blob, as JSON."""


class _Moved(Exception):
    """The pool in memory is not what was read of it."""


class _Draw:
    """One attempt. ``done``: False where another blob is needed; ``inside``: the blob is written inside the
    transaction."""

    def __init__(self, log: RunLog, fleet: Fleet, choice: Choice, core: Core, *, inside: bool = False) -> None:
        self._log = log
        self._fleet = fleet
        self._choice = choice
        self._core = core
        self._inside = inside
        self._before: _Look | None = None
        self._digest = ""
        self.done = True

    def prepare(self) -> None:
        """Looks at the pool, and writes the blob."""
        state, now = self._log.state, self._core.clock.now()
        try:
            self._before = self._look(self._core.store, state, now)
        except _Moved:
            return
        if self._before is not None and self._before.drawn_from is not None:
            self._digest = self._written(self._before)

    def make(self, tx: Transaction, state: RunState, now: float) -> ev.Drawn | None:
        try:
            look = self._look(tx, state, now)
        except _Moved:
            if not self._inside:
                self.done = False
                return None
            look = self._look(tx, state, now, whole=True)
        if look is None:
            return None
        counts, waiting = look.unspendable, look.waiting
        drawn = ev.Drawn(
            at=now,
            round=state.round_number,
            cohort=(),
            waiting=waiting,
            unspendable=counts.total(),
            declined=counts["declined"],
            barred=counts["barred"],
        )
        if look.drawn_from is None:
            return replace(drawn, others=self._fleet.reasons_of_ineligible(tx, state, tx.waiting(now), now))
        if self._inside:
            self._digest = self._written(look)
        elif self._before is None or look.drawn_from != self._before.drawn_from:
            self.done = False
            return None
        return replace(drawn, cohort=look.cohort, pool=self._digest, examples=look.examples, root=look.root)

    def _look(self, reader: Reader, state: RunState, now: float, *, whole: bool = False) -> _Look | None:
        """None: there is nothing to be drawn, or not yet. ``whole``: all of the pool is read anew."""
        if state.round is None or not (free := kind_of(state.round).free(state)):
            return None
        seed = self._log.row.selection_seed + len(state.round.pools)
        why = unspendable(reader, state)
        if self._choice.ranked:
            return self._of_tree(reader, state, now, why, (seed, state.round_number, free), whole)
        return self._of_list(reader, state, now, why, (seed, state.round_number, free))

    def _of_list(
        self, reader: Reader, state: RunState, now: float, why: dict[str, Why], which: tuple[int, int, int]
    ) -> _Look | None:
        rows = reader.waiting(now)
        pool = self._fleet.eligible(state, rows, self._fleet.left_out(reader, state, [row.device for row in rows], why))
        if had_place := _without_place(state):
            pool = [one for one in pool if one[0] not in had_place]
        if not _is_due(state, len(pool), now):
            return None
        counts = Counter[Why]()
        if why:
            counts = Counter(why[device] for device, _ in self._fleet.eligible(state, rows, ()) if device in why)
        if len(pool) < state.plan.fewest_devices:
            return _Look(len(pool), counts)
        listed, (seed, number, free) = self._choice.rows(pool, state.known), which
        drawn_from = listed, which, state.pace.moved, state.suspicion
        if self._before is not None and self._before.drawn_from == drawn_from:
            return replace(self._before, unspendable=counts)
        chosen = self._choice.draw(
            listed, free, seed=seed, round=number, moved=state.pace.moved, suspicion=state.suspicion
        )
        sizes = dict(pool)
        cohort = tuple((device, sizes[device]) for device in chosen)
        return _Look(len(pool), counts, drawn_from, cohort, body=listed)

    def _of_tree(
        self,
        reader: Reader,
        state: RunState,
        now: float,
        why: dict[str, Why],
        which: tuple[int, int, int],
        whole: bool,
    ) -> _Look | None:
        fleet, pool, (seed, number, free) = self._fleet, self._fleet.pool, which
        done = fleet.done(state)
        out = {*fleet.left_out(reader, state, None, why), *done, *_without_place(state)}
        with pool.held(pool.read(reader, whole=whole), now) as stands:
            if not stands:
                raise _Moved
            found = fleet.in_tree(state, out)
            waiting = len(found.tree)
            if not _is_due(state, waiting, now):
                return None
            counts = Counter(
                reason
                for device, reason in why.items()
                if device not in done and found.fits(device, pool.place(device))
            )
            if waiting < state.plan.fewest_devices:
                return _Look(waiting, counts)
            suspected = [one for one in sorted(state.suspicion) if one not in out and found.fits(one, pool.place(one))]
            if rest := resting(state.suspicion, suspected, waiting - free, seed=seed, round=number):
                found = fleet.in_tree(state, out | rest)
            tree = found.tree
            drawn_from = tree.root, waiting, suspected, which
            if self._before is not None and self._before.drawn_from == drawn_from:
                return replace(self._before, unspendable=counts)
            ranks = [tree.rank(device) for device in self._choice.draw(tree, free, seed=seed, round=number)]
            cohort, shown = tuple(tree[rank] for rank in ranks), tree.shown(ranks)
            body = {"tree": shown, "suspected": suspected} if suspected else {"tree": shown}
            return _Look(waiting, counts, drawn_from, cohort, tree.total, tree.root, body)

    def _written(self, look: _Look) -> str:
        return self._core.blobs.put(json.dumps(look.body, separators=(",", ":")).encode())


def _is_due(state: RunState, waiting: int, now: float) -> bool:
    over = state.phase == "selecting" and state.deadline is not None and now >= state.deadline
    return over or waiting >= state.drawn_from


def _without_place(state: RunState) -> Sequence[str]:
    """Devices that may not be drawn for the round under way, into which they were drawn before."""
    current, kind = state.current, kind_of(state.current)
    return [device for device in current.members if not kind.drawable(current, device)]
