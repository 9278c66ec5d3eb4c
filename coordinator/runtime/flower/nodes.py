"""Who is there, which device may serve a Flower run, and which message each device gets.

A device may serve a run where it has the run's app, with equal name, version and hash, and its policy lets it take part
in plain runs. The reason is a sentence for the device's owner. A device that polls is there for a minute. It is given
the message that it was given before as long as that waits for its answer, else the oldest; so two polls of one device
never get two messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import FlowerApp, FlowerNode, FlowerNodes, FlowerPoll, FlowerTask, FlowerWait
from client_sdk.protocol.names import copied
from client_sdk.protocol.problems import problem
from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.store.declared import Json
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.paging import page_of
from coordinator.store.port import Conflict, Reader, Transaction
from coordinator.store.rows import DeviceRow

SECURE_ONLY = (
    "its policy is 'secure only', and Flower runs are plain: the coordinator and the ServerApp see its replies"
)
_SHORT = 12
"""Digits of a hash that people are shown."""


def app_of(run: FlowerRunRow) -> FlowerApp:
    return FlowerApp(name=run.app, version=run.version, digest=run.digest)


def facts_of(poll: FlowerPoll) -> Json:
    """What a device's row has of its poll. The same apps in any order are the same facts."""
    apps = sorted(poll.apps, key=lambda app: (app.name, app.version, app.digest))
    return {"apps": [app.model_dump() for app in apps], "secure_only": poll.secure_only}


def said_by(node: DeviceRow) -> FlowerPoll:
    """What a node said of itself when it polled last."""
    return FlowerPoll.model_validate(node.facts)


def ineligible(wanted: FlowerApp, said: FlowerPoll) -> str:
    """Why a device that says this of itself cannot serve a run of the ``wanted`` app; empty: it can."""
    if said.secure_only:
        return SECURE_ONLY
    named = [app for app in said.apps if app.name == wanted.name]
    if not named:
        has = ", ".join(sorted({app.name for app in said.apps}))
        return f"the app is {has}, and the run needs {wanted.name}"
    versions = [app for app in named if app.version == wanted.version]
    if not versions:
        return f"{wanted.name} has version {named[0].version}, and the run needs {wanted.version}"
    if all(app.digest != wanted.digest for app in versions):
        has, needs = versions[0].digest[:_SHORT], wanted.digest[:_SHORT]
        return f"the files of {wanted.name} {wanted.version} have the hash {has}, and the run needs {needs}"
    return ""


def serves_no_run(running: Iterable[FlowerRunRow], said: FlowerPoll) -> str:
    """Why a device that says this of itself can serve none of these runs that go on; empty: it can serve one, or there
    is none."""
    reasons = []
    for row in running:
        why = ineligible(app_of(row), said)
        if not why:
            return ""
        reasons.append(f"run {row.run}: {why}")
    return "; ".join(reasons)


PRESENT_S = 60.0
"""Seconds for which a device is there after its poll."""
_NOTED_S = 15.0
"""Seconds after which another poll of a device is noted: each is a write."""
_BUSY_AGAIN_S = (5.0, 15.0)
_AGAIN_S = (0.0, 1.0)
_REASON = 1500


def polls(row: DeviceRow, since: float) -> bool:
    """Whether a device was there for Flower runs at this time or later."""
    return row.node is not None and (row.last_seen_at or 0.0) >= since and "apps" in row.facts


class Nodes:
    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core

    def there(self, run: str, after: int = 0, limit: int = 1000) -> FlowerNodes:
        """Devices that are there now: those that can serve the run, and why the others cannot."""
        wanted, reasons, since = app_of(self._flower.run(run)), Counter[str](), self._flower.now - PRESENT_S

        def show(row: DeviceRow) -> FlowerNode | None:
            if not polls(row, since):
                return None
            if why := ineligible(wanted, said_by(row)):
                reasons[why] += 1
                return None
            return FlowerNode(node=node_id(row.device), device=row.device)

        def read(after: str, limit: int) -> list[DeviceRow]:
            return self._core.store.flower_nodes_after(int(after), limit)

        found = page_of(read, lambda row: row.node, show, str(after), limit)
        return FlowerNodes(nodes=tuple(found), ineligible=dict(reasons), next=found.next)

    def poll(self, device: str, poll: FlowerPoll) -> FlowerTask | FlowerWait | None:
        """The device's message, or why there is none for it; None: it waits for one."""
        self._note(device, poll)
        if poll.secure_only:
            return self._refused(SECURE_ONLY)
        if poll.busy is not None:
            least, most = _BUSY_AGAIN_S
            reason = self._busy(device, poll.busy)
            return FlowerWait(reason=reason, again_min_s=least, again_max_s=most, over=self._over(poll))
        task = self._task(device, poll)
        if task is not None:
            return task
        why = serves_no_run(self._core.store.flower_running(), poll)
        return self._refused(why) if why else None

    def hold_over(self, poll: FlowerPoll) -> FlowerWait:
        """The answer where the hold has expired."""
        runs = [row.run for row in self._core.store.flower_running()]
        reason = f"no message from {', '.join(runs)}" if runs else "no Flower run is going on"
        least, most = _AGAIN_S
        return FlowerWait(reason=reason[:_REASON], again_min_s=least, again_max_s=most, over=self._over(poll))

    # ------------------------------------------------------------ inside

    def _over(self, poll: FlowerPoll) -> tuple[str, ...]:
        """The device's runs that have ended. Runs that are not known here may be another coordinator's."""
        rows = ((run, number, self._core.store.flower_run(run)) for run, number in poll.runs.items())
        return tuple(run for run, number, row in rows if row is not None and row.number == number and row.over)

    def _note(self, device: str, poll: FlowerPoll) -> None:
        row = self._core.store.device(device)
        same = row is not None and row.node is not None and row.facts == facts_of(poll)
        if row is not None and same and 0 <= self._flower.now - (row.last_seen_at or 0.0) < _NOTED_S:
            return
        try:
            with self._core.store.transaction() as tx:
                self._put(tx, device, poll)
        except Conflict:
            detail = f"another device has the node id {node_id(device)}; enrol this one anew"
            raise problem("conflict", detail) from None

    def _put(self, tx: Transaction, device: str, poll: FlowerPoll) -> None:
        """Notes that the device is there, unless it has left since this poll was let in: its messages have errors."""
        if not tx.put_flower_node(device, node_id(device), facts_of(poll), self._flower.now):
            raise problem("unregistered", f"{device} has left")

    def _task(self, device: str, poll: FlowerPoll) -> FlowerTask | None:
        found = self._first(self._core.store, device, poll)
        while found is not None and found[1].delivered_at is None:
            run = found[0].run
            with self._core.store.transaction(run) as tx:
                self._put(tx, device, poll)  # locks the device: another poll of it waits here
                found = self._first(tx, device, poll)
                if found is not None and found[0].run == run:
                    if found[1].delivered_at is None:
                        tx.deliver_flower_message(run, found[1].message, self._flower.now)
                    break
        if found is None:
            return None
        row, message = found
        if message.delivered_at is None:
            self._core.signals.wake(f"run:{row.run}")
        return self._given(row, message)

    def _first(self, reader: Reader, device: str, poll: FlowerPoll) -> tuple[FlowerRunRow, FlowerMessageRow] | None:
        """The message that the device gets now."""
        for message in reader.flower_open(device, self._flower.now):
            row = reader.flower_run(message.run)
            if row is not None and not ineligible(app_of(row), poll):
                return row, message
        return None

    def _given(self, row: FlowerRunRow, message: FlowerMessageRow) -> FlowerTask:
        content = self._core.store.flower_content(row.run, message.content)
        if content is None:
            raise problem("busy", f"the content of message {message.message} is not there; ask again", retry_after_s=5)
        return copied(
            FlowerTask,
            message,
            row,
            app=app_of(row),
            group=message.group_id,
            bytes=content.bytes,
            ttl_s=round(message.expires_at - message.created_at, 6),
            expires_in_s=max(0.0, message.expires_at - self._flower.now),
            max_reply=self._flower.max_reply(row, message),
        )

    def _busy(self, device: str, message: str) -> str:
        waits = any(row.message == message for row in self._core.store.flower_open(device, self._flower.now))
        return "the device is busy" if waits else "the message that it works on waits for no answer any more"

    def _refused(self, reason: str) -> FlowerWait:
        settings = self._core.settings
        return FlowerWait(reason=reason[:_REASON], again_min_s=settings.pace_min_s, again_max_s=settings.pace_max_s)
