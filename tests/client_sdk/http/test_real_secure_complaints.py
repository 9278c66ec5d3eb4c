"""Lying dealers and false accusers among clients of a real coordinator, over several rounds: who was lied to counts in
each, each round commits in its first attempt, and nobody opens what two honest devices share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.secagg import device
from client_sdk.secagg.complaints import OpenedPairs
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shares import SharePair
from coordinator.store import open_store
from tests.client_sdk.http.operated import create, wait_for_end
from tests.client_sdk.http.secure_clients import Network, SecureFleet
from tests.client_sdk.http.test_real_secure_faults import DIMENSION, Drawn, logged, plan
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

LIAR, VICTIM, N, ROUNDS = 1, 2, 10, 3


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def is_thread_of(slot: int) -> bool:
    return threading.current_thread().name == f"d{slot}"


@dataclass
class Sent(httpx2.BaseTransport):
    """Notes what each device has sent in secure rounds: (slot, stage)."""

    inner: httpx2.BaseTransport
    slot: int
    stages: list[tuple[int, str]]
    complained: threading.Event

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.inner.handle_request(request)
        if request.method == "PUT" and "/secure/" in request.url.path:
            stage = request.url.path.rsplit("/", 1)[1]
            self.stages.append((self.slot, stage))
            if stage == "complain":
                self.complained.set()
        return answer


def lies(monkeypatch: pytest.MonkeyPatch, fleet: Callable[[], SecureFleet], answer: str) -> None:
    """The liar deals garbage to the victim alone, and answers its complaint as it likes."""
    deal, opened, pairs = device.deal, device.opened, {}

    def dealt(cohort: Any, place: int, secrets: Any, tools: Any) -> Any:
        bundle, own = deal(cohort, place, secrets, tools)
        if not is_thread_of(LIAR):
            return bundle, own
        wronged = cohort.place_of(fleet().device(VICTIM))
        key = secrets.share_key.agree(cohort.roster.entries[wronged].advertisement.share_key)
        ends = (place, cohort.device(place)), (wronged, cohort.device(wronged))
        sealed = next(row[1] for row in bundle.rows if row[0] == wronged)
        pairs[cohort.h] = tools.unseal(key, cohort.h, *ends, sealed)
        rows = tuple((to, bytes(len(one)) if to == wronged else one, digests) for to, one, digests in bundle.rows)
        return replace(bundle, rows=rows), own

    def answered(cohort: Any, place: int, secrets: Any, bundle: Any, accusations: Any, tools: Any) -> OpenedPairs:
        if not is_thread_of(LIAR):
            return opened(cohort, place, secrets, bundle, accusations, tools)
        if answer == "none":
            raise BadShare("it says nothing")
        pair = pairs[cohort.h]
        shown = pair if answer == "right" else SharePair(pair.mask_key, pair.self_mask)
        return OpenedPairs(place, {cohort.place_of(fleet().device(VICTIM)): shown})

    monkeypatch.setattr(device, "deal", dealt)
    monkeypatch.setattr(device, "opened", answered)


def accuses(monkeypatch: pytest.MonkeyPatch, fleet: Callable[[], SecureFleet]) -> None:
    """The liar cannot open what the victim sealed for it, it says."""
    take = device.take

    def taken(cohort: Any, place: int, secrets: Any, delivered: Any, tools: Any) -> Any:
        held, unopened = take(cohort, place, secrets, delivered, tools)
        if is_thread_of(LIAR):
            accused = cohort.place_of(fleet().device(VICTIM))
            del held[accused]
            unopened.append(next(row for row in delivered.rows if row[0] == accused))
        return held, unopened

    monkeypatch.setattr(device, "take", taken)


def played(
    real: Server, tmp_path: Path, lie: Callable[[Callable[[], SecureFleet]], None], kill: bool = False
) -> tuple[list[set[int]], set[tuple[int, str]]]:
    """(who counted in each round, what was sent by whom) of a run whose rounds all committed in their first attempt."""
    there: list[SecureFleet] = []
    lie(lambda: there[0])
    settings = plan(N, goal=N, quiet_s=4)
    settings["finish"] = {"rounds": ROUNDS, "abandoned": 2}
    run = create(real, settings, {"w": np.zeros(DIMENSION, np.float32)})
    stages: list[tuple[int, str]] = []
    complained = threading.Event()

    def network(slot: int) -> Network:
        return lambda inner: Sent(inner, slot, stages, complained)

    fleet = SecureFleet(
        real, tmp_path / "devices", [Drawn(slot) for slot in range(N)], {slot: network(slot) for slot in range(N)}
    )
    there.append(fleet)
    try:
        if kill:
            assert complained.wait(60)
            real.stop(signal.SIGKILL)
            port = int(real.url.rsplit(":", 1)[1])
            real = Server.start(real.folder, port=port)
        view = wait_for_end(real, run)
        assert (view.status, view.version) == ("finished", ROUNDS)
        names = {fleet.device(slot): slot for slot in range(N)}
        rows = real.http.get(f"/v1/runs/{run}/rounds").json()
        assert [(row["status"], row["attempt"]) for row in rows] == [("committed", 0)] * ROUNDS
        disputes = {names[name]: others for name, others in real.http.get(f"/v1/runs/{run}").json()["disputes"].items()}
    finally:
        fleet.end()
        real.stop()
    store = open_store(f"sqlite:///{real.folder / 'quorate.sqlite3'}")
    try:
        counted = [{names[row.device] for row in store.contributions(run, number)} for number in range(1, ROUNDS + 1)]
        assert logged(store, run, "Complained")
    finally:
        store.close()
    assert disputes == {LIAR: 1, VICTIM: 1}
    return counted, set(stages)


@pytest.mark.parametrize(
    "answer", [pytest.param(answer, marks=on_day(n, of=5)) for n, answer in enumerate(("right", "wrong", "none"))]
)
def test_a_lying_dealer_shuts_nobody_out(
    real: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    counted, stages = played(real, tmp_path, lambda fleet: lies(monkeypatch, fleet, answer))
    assert all(VICTIM in found for found in counted)
    others = set(range(N)) - {LIAR}
    assert all(others <= found for found in counted)
    assert (LIAR in counted[0]) == (answer == "right")
    assert {slot for slot, stage in stages if stage == "open"} == (set() if answer == "none" else {LIAR})
    assert {slot for slot, stage in stages if stage == "complain"} == {VICTIM}


@on_day(3, of=5)
def test_a_false_accuser_costs_nobody_its_part(real: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, stages = played(real, tmp_path, lambda fleet: accuses(monkeypatch, fleet))
    assert counted == [set(range(N))] * ROUNDS
    assert {slot for slot, stage in stages if stage == "open"} == {VICTIM}
    assert {slot for slot, stage in stages if stage == "complain"} == {LIAR}


@on_day(4, of=5)
def test_a_coordinator_that_is_killed_while_a_complaint_is_open_goes_on_with_it(
    real: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, _ = played(real, tmp_path, lambda fleet: lies(monkeypatch, fleet, "right"), kill=True)
    assert all(set(range(N)) - {LIAR} <= found for found in counted), (
        "it may be away for longer than an answer has time"
    )
