"""Answers that wait for a transaction: those that come together share one, and nobody waits for another run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from coordinator.group_commit import GroupCommit, PendingCommit
from coordinator.runtime.identities import Identities
from coordinator.runtime.run_log import RunLog
from coordinator.service import create_app
from coordinator.service.core import Service, at_once
from coordinator.settings import Settings
from coordinator.store.port import StoreError
from tests.coordinator.certified import key_of
from tests.coordinator.service.devices import Signing
from tests.coordinator.world import World

WHO: ContextVar[str] = ContextVar("who", default="nobody")


class Run:
    """The log of one run: its transactions are noted, and one can be held until the test lets it go on."""

    def __init__(self, service: Service) -> None:
        self.batches: list[list[str]] = []
        self.settled_as: list[str] = []
        self.queued = 0
        """How many requests have queued their item."""
        self.held, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.service = service
        self._log: GroupCommit[str, str] = GroupCommit(self._commit)

    def _commit(self, items: Sequence[str]) -> list[str | BaseException]:
        self.batches.append(list(items))
        self.held.set()
        assert self.go_on.wait(20)
        if "disk" in items:
            raise StoreError("the disk is full")
        return [ValueError(item) if item == "wrong" else item.upper() for item in items]

    def entered(self, item: str) -> PendingCommit:
        entered = self._log.enter(item)
        self.queued += 1

        def settle() -> str:
            self.settled_as.append(WHO.get())
            return entered()

        return PendingCommit(self._log, settle)

    async def _answer(self, item: str) -> str:
        WHO.set(item)
        return str(await self.service.settled(await self.service.work(self._taken, item)))

    def _taken(self, item: str) -> Any:
        return at_once(self.entered(item))

    def ask(self, item: str) -> asyncio.Task[str]:
        """A request whose answer waits."""
        return asyncio.create_task(self._answer(item))

    async def hold(self, item: str) -> asyncio.Task[str]:
        """A request whose transaction is under way until ``go_on`` is set."""
        self.go_on.clear()
        first = self.ask(item)
        await asyncio.to_thread(self.held.wait, 20)
        return first

    async def until_queued(self, count: int, waiting: int | None = None) -> None:
        """Until so many requests have queued their item, and so many of the run wait for the next transaction."""
        while self.queued < count or (waiting is not None and self._waiting != waiting):
            await asyncio.sleep(0.001)

    @property
    def _waiting(self) -> int | None:
        """None: nobody of the run has had to wait."""
        found = self._log._gathered
        return None if found is None else len(found)

    async def crowd(self) -> None:
        """Two requests that come at the same time are answered: now the next transaction is not begun at once."""
        first = await self.hold("first")
        second = self.ask("second")
        await self.until_queued(2)
        self.go_on.set()
        assert [await first, await second] == ["FIRST", "SECOND"]


@contextmanager
def serving() -> Iterator[Service]:
    world = World(1)
    service = Service(world.coordinator, Settings(threads=4), world.coordinator.core.signals)
    yield service
    service.close()


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_an_answer_that_waits_for_nothing_is_the_answer() -> None:
    async def scenario() -> None:
        with serving() as service:
            assert await service.settled(at_once("yes")) == "yes"
            assert await service.settled(at_once(None)) is None

    play(scenario())


def test_who_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCommit, "pause_s", lambda group, took_s: 3600.0)

    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            assert [await run.ask(item) for item in ("x", "y", "z")] == ["X", "Y", "Z"]
            assert run.batches == [["x"], ["y"], ["z"]]

    play(scenario())


def test_who_comes_while_another_is_settled_shares_the_next_transaction() -> None:
    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            first = await run.hold("first")
            others = [run.ask(f"other-{number}") for number in range(9)]
            await run.until_queued(10)
            assert not any(one.done() for one in (first, *others)), "nothing is answered that is not durable"
            run.go_on.set()
            assert [await one for one in others] == [f"OTHER-{number}" for number in range(9)]
            assert await first == "FIRST"
            assert [len(batch) for batch in run.batches] == [1, 9]
            own = ["first", *(f"other-{number}" for number in range(9))]
            assert sorted(run.settled_as) == own, "each in its own context"

    play(scenario())


def test_after_company_the_next_transaction_gathers_all_that_come_within_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GroupCommit, "pause_s", lambda group, took_s: 3.0)

    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            await run.crowd()
            later = []
            for item in ("p", "q", "r"):  # one after another
                later.append(run.ask(item))
                await asyncio.sleep(0.02)
            assert not any(one.done() for one in later)
            assert [await one for one in later] == ["P", "Q", "R"]
            assert run.batches == [["first"], ["second"], ["p", "q", "r"]]

    play(scenario())


def test_the_pause_ends_with_the_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one comes alone again, the next is not kept waiting."""
    monkeypatch.setattr(GroupCommit, "pause_s", lambda group, took_s: 0.2)

    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            await run.crowd()
            await run.ask("alone")
            monkeypatch.setattr(GroupCommit, "pause_s", lambda group, took_s: 3600.0)
            assert [await run.ask(item) for item in ("x", "y")] == ["X", "Y"]

    play(scenario())


def test_an_error_is_its_own_and_one_of_the_machine_is_noted_for_people(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            first = await run.hold("first")
            others = [run.ask(item) for item in ("good", "wrong", "better")]
            await run.until_queued(4)
            run.go_on.set()
            found = await asyncio.gather(first, *others, return_exceptions=True)
            assert [str(one) for one in found] == ["FIRST", "GOOD", "wrong", "BETTER"]
            assert isinstance(found[2], ValueError)
            assert service.coordinator.core.process.storage_errors.recent() == ""
            another = Run(service)
            first = await another.hold("first")
            disk = another.ask("disk")
            await another.until_queued(2, waiting=0)
            another.go_on.set()
            assert await first == "FIRST"
            with pytest.raises(StoreError, match="the disk is full"):
                await disk
            assert service.coordinator.core.process.storage_errors.recent() == "the disk is full"
            assert await run.ask("again") == "AGAIN"

    with caplog.at_level(logging.CRITICAL):
        play(scenario())


def test_a_run_does_not_wait_for_another() -> None:
    async def scenario() -> None:
        with serving() as service:
            slow, quick = Run(service), Run(service)
            first = await slow.hold("first")
            assert await quick.ask("x") == "X"
            assert not first.done()
            slow.go_on.set()
            assert await first == "FIRST"

    play(scenario())


def test_what_a_cancelled_request_has_queued_is_settled_and_the_others_are_answered() -> None:
    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            first = await run.hold("first")
            gone, stays = run.ask("gone"), run.ask("stays")
            await run.until_queued(3)
            gone.cancel()
            run.go_on.set()
            assert await stays == "STAYS"
            assert await first == "FIRST"
            assert gone.cancelled()
            assert run.batches == [["first"], ["gone", "stays"]]

    play(scenario())


def test_a_service_that_is_closed_ends_all_that_wait() -> None:
    """Their devices have no answer, and send their messages again."""

    async def scenario() -> None:
        with serving() as service:
            run = Run(service)
            first = await run.hold("first")
            second = run.ask("second")
            await run.until_queued(2, waiting=0)
            third = run.ask("third")
            await run.until_queued(3, waiting=1)
            closing = asyncio.create_task(asyncio.to_thread(service.close))
            while not service.closed:
                await asyncio.sleep(0.001)
            run.go_on.set()
            assert [await first, await second] == ["FIRST", "SECOND"], "threads have them"
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(third, 10)
            await closing

    play(scenario())


def test_devices_that_register_together_over_http_share_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    many, batches = 40, list[int]()
    commit = Identities._register_together

    def counted(self: Identities, batch: Sequence[Any]) -> Any:
        batches.append(len(batch))
        time.sleep(0.02)  # as on a disk
        return commit(self, batch)

    monkeypatch.setattr(Identities, "_register_together", counted)
    world = World(0)
    keys = [key_of(f"newcomer {number}") for number in range(many)]

    async def scenario() -> list[httpx2.Response]:
        app = create_app(world.coordinator, Settings(threads=4))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:

            async def register(key: DeviceKey) -> httpx2.Response:
                auth, said = Signing(key, world.clock.now), {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
                certificate = world.authority.certificate(key, at=world.clock.at).encoded.hex()
                return await http.post(Route.REGISTER, json={"certificate": certificate}, headers=said, auth=auth)

            found = await asyncio.gather(*map(register, keys))
        await asyncio.to_thread(app.state.service.close)
        return found

    found = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [answer.status_code for answer in found] == [201] * many
    assert sorted(answer.json()["device"] for answer in found) == [row.device for row in world.store.devices()]
    assert sum(batches) == many
    assert len(batches) < many / 2


def test_updates_that_come_together_over_http_share_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 24
    batches: list[int] = []
    commit = RunLog._commit

    def counted(self: RunLog, batch: Sequence[Any]) -> Any:
        batches.append(len(batch))
        time.sleep(0.02)  # as on a disk
        return commit(self, batch)

    monkeypatch.setattr(RunLog, "_commit", counted)
    world = World(many)
    world.create(cohort={"select": many, "goal": many, "quorum": 1.0})
    world.check_in()
    batches.clear()
    path = Route.UPDATE.format(run="marks", round=1, attempt=0)

    async def scenario() -> list[httpx2.Response]:
        app = create_app(world.coordinator, Settings(threads=4))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:

            async def put(number: int) -> httpx2.Response:
                auth, said = Signing(world.keys[number], world.clock.now), {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
                return await http.put(path, content=world.body(number), headers=said, auth=auth)

            found = await asyncio.gather(*(put(number) for number in range(many)))
        await asyncio.to_thread(app.state.service.close)
        return found

    receipts = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [receipt.status_code for receipt in receipts] == [200] * many
    assert sum(batches) >= many
    assert len(batches) < many / 2
    for number, receipt in enumerate(receipts):
        assert receipt.json()["digest"] == hashlib.sha256(world.body(number)).hexdigest(), "each has its own"
    world.settle()
    world.require({1: list(range(many))})
