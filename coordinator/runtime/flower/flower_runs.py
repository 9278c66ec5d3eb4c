"""Flower runs of one coordinator: what its parts do together. Safe from any thread.

::

    Runs             creates, shows and ends runs
    Nodes            who is there, and which message each device gets
    Messages         pushes messages and pulls replies, for the ServerApp
    ReplyRequests    takes replies and errors, from devices
    Contents         the bytes of messages and replies
    FlowerViews      shows them as all runs are shown
    FlowerRetention  deletes what nobody needs any more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from client_sdk.protocol.flower import CreateFlowerRun, EndFlowerRun, FlowerRunView
from client_sdk.protocol.names import copied
from client_sdk.protocol.operators import FlowerSummary, Funnel, RoundView, RunView
from client_sdk.protocol.problems import problem
from coordinator.engine.reasons import printable
from coordinator.runtime.core import Core
from coordinator.runtime.flower.flower_core import FlowerCore, ended
from coordinator.runtime.flower.messages import Contents, Messages, ReplyRequests
from coordinator.runtime.flower.nodes import PRESENT_S, Nodes, app_of, ineligible, polls, said_by
from coordinator.runtime.flower.retention import FlowerRetention
from coordinator.store.flower_rows import FlowerRound, FlowerRunRow
from coordinator.store.paging import LOOKED_AT
from coordinator.store.port import Conflict

_VALUES = 5
"""Values of the configuration that a refusal names."""
_PAGE = 500
STOPPED = "stopped by the operator"
_NOBODY = "no device with {app} {version} is there; start one: quorate device --flower APP_DIR"
_WRITTEN = (
    "where the app itself has written into its folder (a .json, .md or .yaml), remove that file, and name such files "
    "in the app's .gitignore, which leaves them out of the hash"
)


class FlowerRuns:
    def __init__(self, core: Core) -> None:
        flower = FlowerCore(core)
        self.runs = Runs(flower)
        self.nodes = Nodes(flower)
        self.messages = Messages(flower)
        self.replies = ReplyRequests(flower)
        self.contents = Contents(flower)
        self.views = FlowerViews(flower)
        self._retention = FlowerRetention(flower)

    def tick(self) -> float | None:
        """Handles what time does. Returns the next deadline in the clock's time, None where there is none."""
        self._retention.tick()
        return self.messages.tick()


class Runs:
    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core

    def create(self, request: CreateFlowerRun, permitted: Callable[[str], bool]) -> FlowerRunView:
        """Creates the run, or finds it. ProblemError *not-permitted* where its name is not ``permitted``, *conflict*
        where the name is another run's, or the run has ended."""
        if not permitted(request.run):
            raise problem("not-permitted", f"the run would be named {request.run}, which is outside of your scope")
        store = self._core.store
        found = store.flower_run(request.run)
        if found is None:
            number = (int.from_bytes(self._core.entropy(8), "big") >> 1) or 1
            row = FlowerRunRow(
                run=request.run,
                number=number,
                app=request.app.name,
                version=request.app.version,
                digest=request.app.digest,
                config=dict(request.config),
                max_reply=request.max_reply,
                created_at=self._flower.now,
            )
            try:
                with store.transaction() as tx:
                    tx.insert_flower_run(row)
            except Conflict:
                found = store.flower_run(request.run)
                if found is None:
                    raise _taken(request.run) from None
            else:
                self._flower.wake(row.run)
                return self.view(row.run)
        if found.over:
            raise problem(
                "conflict", f"Flower run {found.run} has ended ({found.status}): choose another name for a new run"
            )
        differs = _difference(found, request)
        if differs:
            raise problem("conflict", f"Flower run {found.run} goes on already, and {differs}")
        return self.view(found.run)

    def view(self, run: str) -> FlowerRunView:
        row = self._flower.run(run)
        expired = self._flower.expired(row)
        limit = self._flower.max_reply(row)
        return copied(FlowerRunView, row, app=app_of(row), errors=row.errors + expired, max_reply=limit)

    def keep_state(self, run: str, content: str) -> None:
        """The ServerApp's Context.state is this content from now on."""
        with self._core.store.transaction(run) as tx:
            row = self._flower.running(run, tx)
            if tx.flower_content(run, content) is None:
                raise problem("conflict", f"the content {content} is not stored: send it before the state")
            tx.change_flower_run(replace(row, state=content))
        self._flower.wake(run)

    def end(self, run: str, end: EndFlowerRun) -> FlowerRunView:
        """The run ends. The same end again changes nothing; another one is a *conflict*."""
        with self._core.store.transaction(run) as tx:
            row = self._flower.run(run, tx)
            if row.over and row.status != end.status:
                raise ended(row)
            if not row.over:
                at = max(self._flower.now, row.latest_at)
                row = replace(row, status=end.status, reason=printable(end.reason), ended_at=at)
                tx.change_flower_run(row)
        since = self._flower.now - 86_400
        self._flower.wake(run, [node.device for node in self._core.store.flower_nodes(since)])
        return self.view(run)

    def stop(self, run: str) -> None:
        self.end(run, EndFlowerRun(status="stopped", reason=STOPPED))


def _taken(run: str) -> Exception:
    return problem("conflict", f"run {run} exists already, and has a plan: choose another name")


def _difference(row: FlowerRunRow, request: CreateFlowerRun) -> str:
    """What the request wants otherwise than the run that goes on, for people; empty: nothing."""
    found = [
        f"{what} is {has}, not {wanted}"
        for what, has, wanted in (
            ("its app", row.app, request.app.name),
            ("the app's version", row.version, request.app.version),
            ("the hash of the app's files", row.digest[:12], request.app.digest[:12]),
            ("its longest reply", row.max_reply, request.max_reply),
        )
        if has != wanted
    ]
    if row.digest != request.app.digest and row.digest[:12] == request.app.digest[:12]:
        found.append("the hash of the app's files is another")
    if row.digest != request.app.digest and row.version == request.app.version:
        found.append(_WRITTEN)
    config: dict[str, object] = dict(request.config)
    names = sorted(name for name in row.config.keys() | config.keys() if not _same(row.config, config, name))
    found += [f"{name} is {row.config.get(name)!r}, not {config.get(name)!r}" for name in names[:_VALUES]]
    if len(names) > _VALUES:
        found.append(f"{len(names) - _VALUES} other values of the configuration differ")
    return "; ".join(found)


def _same(first: dict[str, object], second: dict[str, object], name: str) -> bool:
    """Whether both have this value, of the same type: 1, 1.0 and True are three values."""
    return name in first and name in second and (type(first[name]), first[name]) == (type(second[name]), second[name])


class FlowerViews:
    """Flower runs as operators see all runs: a group of messages is shown as a round. Reads only."""

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
        """Why nobody answers; empty: a device that can serve the run is there. Of many devices not all are looked at,
        which is said."""
        reasons, since, looked, after = list[str](), self._flower.now - PRESENT_S, 0, 0
        while looked < LOOKED_AT and (page := self._store.flower_nodes_after(after, _PAGE)):
            for node in page:
                if polls(node, since):
                    why = ineligible(app_of(row), said_by(node))
                    if not why:
                        return ""
                    reasons.append(why)
            after, looked = page[-1].node or 0, looked + len(page)
        others = bool(self._store.flower_nodes_after(after, 1))
        if reasons:
            found = f"of {len(reasons)} devices that are there none can serve it: {reasons[0]}"
            return f"{found}; others were not looked at" if others else found
        return "" if others else _NOBODY.format(app=row.app, version=row.version)


def _funnel(found: FlowerRound) -> Funnel:
    return Funnel(
        selected=found.messages,
        training=found.delivered,
        reported=found.replies,
        refused=found.errors,
        dropped=found.expired,
    )
