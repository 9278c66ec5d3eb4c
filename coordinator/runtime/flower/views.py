"""Flower runs as operators see all runs: a group of messages is shown as a round. Reads only."""

from __future__ import annotations

from client_sdk.protocol.operators import FlowerSummary, Funnel, RoundView, RunView
from client_sdk.protocol.problems import problem
from coordinator.runtime.flower.eligibility import app_of, ineligible, said_by
from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.runtime.flower.nodes import PRESENT_S
from coordinator.store.flower_rows import FlowerRound, FlowerRunRow


class FlowerViews:
    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._store = flower.core.store

    def has(self, run: str) -> bool:
        """Whether there is a Flower run of this name."""
        return self._store.flower_run(run) is not None

    def runs(self) -> list[str]:
        """The ids of all Flower runs, oldest first."""
        return self._store.flower_run_ids()

    def run(self, run: str) -> RunView:
        """A run with its last group as the current round. ProblemError where there is no such Flower run."""
        row = self._flower.run(run)
        last = next(iter(self._rows(row, row.rounds - 1, 1)), None)
        expired = self._flower.expired(row)
        waits = last is not None and not row.over and last.open > 0
        return RunView(
            run=row.run,
            name=row.run,
            status=row.status,
            reason=row.reason,
            phase="collecting" if waits else "idle",
            round=row.rounds,
            version=0,
            checkpoint=None,
            rounds_committed=0,
            rounds_wanted=0,
            plan={},
            plan_digest=None,
            origin=f"{row.app} {row.version}",
            created_at=row.created_at,
            seq=0,
            funnel=Funnel() if last is None else _funnel(last),
            kind="flower",
            stalled=self._stalled(row) if waits else "",
            flower=FlowerSummary(
                app=row.app,
                version=row.version,
                messages=row.messages,
                replies=row.replies,
                errors=row.errors + expired,
            ),
        )

    def rounds(self, run: str, after: int, limit: int) -> list[RoundView]:
        """The groups numbered above ``after``, in order, at most ``limit``."""
        row = self._flower.run(run)
        return [self._round(row, found) for found in self._rows(row, after, limit)]

    def round(self, run: str, number: int) -> RoundView:
        """One group. ProblemError *unknown-round*."""
        found = self.rounds(run, number - 1, 1)
        if not found or found[0].round != number:
            raise problem("unknown-round", f"run {run} has no round {number}: it is at round {self.run(run).round}")
        return found[0]

    def _rows(self, row: FlowerRunRow, after: int, limit: int) -> list[FlowerRound]:
        return self._store.flower_rounds(row.run, row.ended_at or self._flower.now, max(after, 0), limit)

    @staticmethod
    def _round(row: FlowerRunRow, found: FlowerRound) -> RoundView:
        waits = not row.over and found.open > 0
        return RoundView(
            round=found.round,
            kind="flower",
            group=found.group_id,
            status="open" if waits else "ended",
            reason=f"the run has ended ({row.status})" if row.over and found.open > 0 else "",
            opened_at=found.opened_at,
            closed_at=None if waits else found.last_at,
            funnel=_funnel(found),
            bytes_in=found.bytes_in,
        )

    def _stalled(self, row: FlowerRunRow) -> str:
        """Why nobody answers; empty: a device that can serve the run is there."""
        nodes = self._store.flower_nodes(self._flower.now - PRESENT_S)
        reasons = [ineligible(app_of(row), said_by(one)) for one in nodes]
        if not nodes:
            return f"no device with {row.app} {row.version} is there; start one: quorate device --flower APP_DIR"
        return "" if not all(reasons) else f"of {len(nodes)} devices that are there none can serve it: {reasons[0]}"


def _funnel(found: FlowerRound) -> Funnel:
    return Funnel(
        selected=found.messages,
        training=found.delivered,
        reported=found.replies,
        refused=found.errors,
        dropped=found.expired,
    )
