"""Why a run stands still, in one line for people: rounds that were abandoned, devices that left the round, too few
eligible devices, no worker, a full disk, a reason against opening one.

It is made from the run's state, its last round's row, and what this process has in memory; it decides nothing. Part of
it is text of devices: see ``engine.reasons``.
"""

from __future__ import annotations

from typing import cast

from coordinator.engine.eligibility import lacks_learner
from coordinator.engine.named_tensors import called
from coordinator.engine.phases import opening
from coordinator.engine.phases.lifecycle import failures_in_a_row
from coordinator.engine.reasons import printable
from coordinator.engine.rounds import KINDS, kind_of
from coordinator.engine.secure.exhausted import why_unspendable
from coordinator.engine.state import RunState
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.identities import Identities
from coordinator.store.rows import RoundRow

_PATIENCE_S = 5.0
"""Seconds for which a round may look for its devices before it stands still."""
_LONGEST = 1500
"""Characters of the line."""
_LOOKED_AT = 20
"""How many abandoned rounds are looked at for one that devices left: they rest afterwards, and the rounds meanwhile
have no devices and no reasons of their own."""


class Standstill:
    def __init__(self, core: Core, fleet: Fleet, identities: Identities) -> None:
        self._core = core
        self.fleet = fleet
        self._identities = identities
        self._shortages: dict[str, CostlyValue[str]] = {}
        """By run: what ``_too_few`` says."""

    def of_run(self, state: RunState) -> str:
        """Returns why this run makes no progress; empty where nothing is known to be in its way, and where its status
        says it."""
        most = state.plan.finish.abandoned
        if state.status == "paused" and most is not None and state.abandoned >= most:
            return printable(self._left_before(state, state.round_number), _LONGEST)
        if state.status != "running":
            return ""
        if state.round is None:
            against = opening.reason_against(state, self._core.clock.now())
            return "" if against is None else f"no round opens: {printable(against.reason, _LONGEST)}"
        parts = [
            self._in_vain(state),
            self._left_before(state, state.round_number - (0 if state.current.missed else 1)),
            self._departures(state),
            self._no_worker(state),
            self.of_round(state),
        ]
        return printable("; ".join(part for part in parts if part), _LONGEST)

    def of_round(self, state: RunState) -> str:
        """Returns why the round under way does not go on, but for the devices that have left it; empty where nothing is
        known to be in its way."""
        if state.round is None:
            return ""
        last = self._core.store.round(state.run, state.round_number - 1)
        stored = last.closed_at if last is not None and last.status == "committed" else None
        failed = self._core.process.storage_errors.recent(since=stored)
        parts = [
            self._too_few(state),
            self._no_authority(state),
            self._lost(state),
            f"this coordinator could not store data: {failed}" if failed else "",
        ]
        return printable("; ".join(part for part in parts if part), _LONGEST)

    def _lost(self, state: RunState) -> str:
        """Which file of the model is damaged or gone: the run goes on by itself once its bytes are stored again."""
        wanted = {"the newest checkpoint": state.checkpoint}
        wanted |= {called(name): digest for name, digest in state.named_tensors.items()}
        lost = [f"{what} {digest}" for what, digest in wanted.items() if not self._core.blobs.has(digest)]
        return f"damaged or gone: {' and '.join(lost)}; store the right bytes again" if lost else ""

    def _in_vain(self, state: RunState) -> str:
        """The failures before: rounds that were abandoned, and selections that this one has missed; with the last
        reason."""
        current = state.current
        number = state.round_number - (0 if current.missed else 1)
        last = self._core.store.round(state.run, number) if state.abandoned else None
        if last is None or last.status != ("open" if current.missed else "abandoned"):
            return ""
        often = failures_in_a_row(state.abandoned, current.missed or cast("int", last.body.get("missed", 0)))
        if state.abandoned == 1:
            often = "the last attempt at a round failed" if current.missed else "the last round was abandoned"
        newest = "" if state.abandoned == 1 else "the last one "
        if _found_too_few(last) and not state.exhausted and self._too_few(state):
            # What follows says how many wait now, and why others are not eligible.
            return f"{often}{', ' if newest else ' '}{newest}for want of devices"
        why = ". ".join(str(part) for part in (last.reason, last.body.get("departures")) if part)
        return f"{often}, {newest}because {why}"

    def _left_before(self, state: RunState, last: int) -> str:
        """Why devices left an earlier one of the rounds that were abandoned in a row, the newest that any left; empty
        where devices left the ``last`` of them, which says so itself."""
        most = min(state.abandoned, _LOOKED_AT)
        rows = self._core.store.rounds(state.run, after=last - most, limit=most) if most else []
        for row in reversed(rows):
            if row.status == "committed":
                break
            if row.status == "abandoned" and row.body.get("departures"):
                return "" if row.round == last else f"in round {row.round}, {row.body['departures']}"
        return ""

    def _departures(self, state: RunState) -> str:
        """Why devices have left the round under way, where too few are left for its goal."""
        current = state.current
        left = len(current.members) - current.count("withdrawn", "refused")
        return current.departures if left < state.plan.cohort.goal else ""

    def _no_worker(self, state: RunState) -> str:
        """Says that the datacenter round waits, and why the run is not paused after so many abandoned rounds."""
        if state.phase != "leasing":
            return ""
        most, found = state.plan.finish.abandoned, f"no worker has the datacenter round ({state.current.because})"
        if unfit := self._core.process.unfit_workers.recent(state.run):
            found = f"{found}; {unfit}"
        if most is None or state.abandoned < most:
            return found
        return (
            f"{found}; that finish.abandoned = {most} is reached pauses the run only when the datacenter has "
            "tried: start a worker ('quorate datacenter join'), wait for devices, or pause the run"
        )

    def _no_authority(self, state: RunState) -> str:
        """Why a secure round has no header, or no roster: nobody vouches for its devices now."""
        return self._identities.trouble() if kind_of(state.current).awaits_authority(state) else ""

    def _too_few(self, state: RunState) -> str:
        kept = self._shortages.setdefault(state.run, CostlyValue(self._core.clock))
        return kept.get(lambda: self._shortage(state), of=state)[0]

    def _shortage(self, state: RunState) -> str:
        """How many devices the round waits for, and why others are not eligible."""
        current, now = state.current, self._core.clock.now()
        empty = state.plan.buffered is not None and kind_of(current).free(state) == state.plan.places
        if not (current.phase == "selecting" or empty) or now < current.opened_at + _PATIENCE_S:
            return ""
        least = state.plan.fewest_devices
        waiting, _ = self.fleet.count_eligible(state, self.fleet.counts)
        if state.plan.privacy is not None:
            waiting = len(self.fleet.waiting(self._core.store, state, now))
        if waiting >= least and empty:
            missing = state.plan.cohort.goal - current.count("reported")
            return f"nobody trains, and who waits has had its turn in this round: it needs {missing} more reports"
        if waiting >= least:
            return ""
        found = f"{waiting} eligible device{'s wait' if waiting != 1 else ' waits'}; a round needs at least {least}"
        store = self._core.store
        others = self.fleet.reasons_of_ineligible(store, state, store.waiting(now), now)
        learner = state.plan.task.learner
        lacks = lacks_learner(learner) in others
        way = f"Install {learner} on them, or start them with --learner {learner}" if lacks else ""
        parts = (found, self._unspendable(state), self._moved_nothing(state), others, way)
        return ". ".join(part for part in parts if part)

    def _unspendable(self, state: RunState) -> str:
        """How many devices wait that may contribute no more, and the ways out; empty where there are none."""
        counts = self.fleet.count_unspendable(state)
        others = why_unspendable(counts["spent"], counts["declined"], counts["barred"])
        if not others:
            return ""
        ways = ["more devices"]
        ways += ["a datacenter round"] if state.plan.datacenter is not None else []
        if counts["declined"] and state.version and state.plan.datacenter is not None:
            ways.append(f"a signature under a model of the datacenter ('quorate run sign {state.run}')")
        ways += [f"'quorate run unbar {state.run} DEVICE'"] if counts["barred"] else []
        if counts["spent"] or counts["declined"]:
            when = "" if state.exhausted else "once it is exhausted, and "
            allowed = f"{when}where devices' owners allow near models (--near-repeats 1)"
            ways.append(f"'quorate run advance {state.run}', {allowed}")
        return f"Others wait and are left out: {others}; the ways out: {', '.join(ways)}"

    def _moved_nothing(self, state: RunState) -> str:
        """Says that the newest model is the one before, so who has signed on that one is still spent."""
        made = self._core.store.checkpoint(state.run, state.version)
        row = None if made is None or made.round is None else self._core.store.round(state.run, made.round)
        if state.plan.secure is None or row is None or not row.body.get("zero_sum"):
            return ""
        return (
            f"The sum of round {row.round} was zero, so the model has not changed: what devices learned was rounded "
            "away. Raise secure.q, lower secure.max_abs, or raise the learning rate, in a new plan"
        )


def _found_too_few(row: RoundRow) -> bool:
    """Whether this abandoned round of devices never had a cohort."""
    funnel = row.body.get("funnel")
    return KINDS[row.kind].of_devices and isinstance(funnel, dict) and not funnel.get("selected")
