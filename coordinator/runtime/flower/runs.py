"""Creates, shows and ends Flower runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from client_sdk.protocol.flower import CreateFlowerRun, EndFlowerRun, FlowerRunView
from client_sdk.protocol.problems import problem
from coordinator.engine.reasons import printable
from coordinator.runtime.flower.eligibility import app_of
from coordinator.runtime.flower.flower_core import FlowerCore, ended
from coordinator.store.flower_rows import FlowerRunRow
from coordinator.store.port import Conflict

_VALUES = 5
"""Values of the configuration that a refusal names."""
STOPPED = "stopped by the operator"
_WRITTEN = (
    "where the app itself has written into its folder (a .json, .md or .yaml), remove that file, and name such files "
    "in the app's .gitignore, which leaves them out of the hash"
)


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
        return FlowerRunView(
            run=row.run,
            app=app_of(row),
            config=row.config,
            status=row.status,
            reason=row.reason,
            number=row.number,
            created_at=row.created_at,
            ended_at=row.ended_at,
            messages=row.messages,
            replies=row.replies,
            errors=row.errors + expired,
            state=row.state,
            max_reply=self._flower.max_reply(row),
        )

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
