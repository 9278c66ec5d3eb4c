"""Clients in secure rounds of a real ``quorate serve``, in threads: also one that vanishes, one that is killed and
started again, and one that is stopped while it waits."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.device.storage import FileStorage
from client_sdk.device.strategies import BUILT_IN
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Policy, SecureBounds, Task, Work
from client_sdk.tensors import Manifest, Tensors
from client_sdk.update import Update
from tests.client_sdk.bounds import any_work
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.client_sdk.http.secure_clients import LEARNER, SecureFleet
from tests.coordinator.secure.world import STAGES
from tests.coordinator.service.conftest import Server
from tests.ports import free_port
from tests.rotating import on_day, taking_turns

pytestmark = pytest.mark.slow

DEVICES = 5
ROUNDS = 2
PLAN: dict[str, Any] = {
    "name": "hidden",
    "task": {"learner": LEARNER, "learner_version": "1.0"},
    "cohort": {"select": DEVICES, "goal": DEVICES, "quorum": 0.5, "select_s": 20, "collect_s": 60},
    "aggregation": {"weighting": "examples", "weight_cap": 100, "partial": "refuse"},
    "finish": {"rounds": ROUNDS, "abandoned": 2},
    "secure": {"max_norm": 2.0, "max_abs": 1.0, "minimum_cohort": 3, "exchange_s": 4},
}


class Mark:
    """A learner whose update is a one-hot mark of device and round."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.trainings = 0
        self.seeds: list[int] = []

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        self.trainings += 1
        self.seeds.append(task.seed)
        mark = np.zeros((DEVICES, ROUNDS), np.float32)
        mark[self.slot, round - 1] = 1.0
        return Update({"marks": mark}, examples=len(data.x), metrics={"loss": 0.123456})


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def begun(server: Server, folder: Path) -> tuple[str, SecureFleet]:
    run = create(server, PLAN, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    return run, SecureFleet(server, folder, [Mark(slot) for slot in range(DEVICES)])


def test_two_rounds_of_clients_are_summed_and_nothing_clear_is_left_anywhere(real: Server, tmp_path: Path) -> None:
    run, fleet = begun(real, tmp_path / "devices")
    try:
        view = wait_for_end(real, run)
        for slot in range(DEVICES):
            fleet.wait_for(slot, "under masks.", times=ROUNDS)
    finally:
        fleet.end()
    assert (view.status, view.version) == ("finished", ROUNDS)
    weights = np.arange(10, 10 + DEVICES, dtype=np.float64)
    wanted = np.repeat((weights / weights.sum())[:, None], ROUNDS, axis=1)
    np.testing.assert_allclose(model_of(real, run)["marks"], wanted, atol=1e-3)
    for slot in range(DEVICES):
        folder = fleet.folder / f"d{slot}"
        assert not list(folder.glob("update-*")), "the clear update is gone"
        with FileStorage(folder) as storage:
            assert not storage.load_secure().live
            assert storage.load_secure().plain == frozenset()
            assert [(entry.result, entry.update_digest) for entry in storage.history()] == [("receipt", None)] * ROUNDS
        assert fleet.learners[slot].trainings == ROUNDS
    seeds = [seed for learner in fleet.learners for seed in learner.seeds]
    assert len({PLAN["task"].get("seed", 0), *seeds}) == 1 + DEVICES * ROUNDS


@on_day(1, of=2)
def test_repro_a_run_whose_work_the_owners_refuse_waits_and_says_why_once(real: Server, tmp_path: Path) -> None:
    """Its devices withdrew and were drawn again, round after round. The same devices take the same model in a plan of
    another batch, and other devices wake the run that waits."""
    halves = Policy(secure_only=True, secure=any_work(smallest_cohort=3, largest_batch=0.5))
    plan = {**PLAN, "finish": {"rounds": 1}, "cohort": {**PLAN["cohort"], "select_s": 1}}
    zeros = {"marks": np.zeros((DEVICES, ROUNDS), np.float32)}
    large = create(real, {**plan, "name": "large", "task": {**PLAN["task"], "batch_size": 8}}, zeros)
    fleet = SecureFleet(real, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)], policy=halves)
    others = None
    try:
        for slot in range(DEVICES):
            fleet.wait_for(slot, "the plan's batch of 8 may be more")
        with OperatorClient(real.url) as operator:
            deadline = time.monotonic() + 60
            while "5 have declined" not in (view := operator.run(large)).exhausted:
                assert time.monotonic() < deadline, operator.rounds(large)
                time.sleep(0.1)
            time.sleep(4)
            assert operator.run(large).round == view.round
            stalled = operator.run(large).stalled
            assert "it has declined this checkpoint: This device's owner allows 50% of its data in a batch" in stalled
        assert fleet.said("the plan's batch of 8 may be more") == 2 * DEVICES, "told and rested, once each"
        small = create(real, {**plan, "name": "small", "task": {**PLAN["task"], "batch_size": 2}}, zeros)
        assert wait_for_end(real, small).version == 1
        others = SecureFleet(real, tmp_path / "others", [Mark(slot) for slot in range(DEVICES)])
        assert wait_for_end(real, large).version == 1
    finally:
        fleet.end()
        if others is not None:
            others.end()


class Tap(httpx2.BaseTransport):
    """Copies each request, as it goes to the network."""

    def __init__(self, inner: httpx2.BaseTransport, sent: list[httpx2.Request]) -> None:
        self._inner, self._sent = inner, sent

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self._sent.append(request)
        return self._inner.handle_request(request)


def names_in(found: Any) -> set[str]:
    """The names of all fields, at any depth."""
    if isinstance(found, dict):
        return set(found).union(*map(names_in, found.values()))
    return set().union(*map(names_in, found)) if isinstance(found, list) else set()


@on_day(0, of=2)
def test_of_size_metrics_and_times_no_byte_leaves_a_device_of_secure_rounds_only(real: Server, tmp_path: Path) -> None:
    sent: list[httpx2.Request] = []
    run = create(real, PLAN, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    networks = {2: lambda inner: Tap(inner, sent)}
    fleet = SecureFleet(real, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)], networks)
    try:
        view = wait_for_end(real, run)
        fleet.wait_for(2, "under masks.", times=ROUNDS)
    finally:
        fleet.end()
    assert view.version == ROUNDS
    fields: dict[str, set[str]] = {}
    for request in sent:
        headers = "".join(f"{name}: {value}\n" for name, value in request.headers.items())
        for told in (request.content, headers.encode(), str(request.url).encode()):
            assert not any(word in told for word in (b"loss", b"0.123456", b"seconds", b"metric"))
        if request.headers.get("content-type") == "application/json":
            message = json.loads(request.content)
            assert message.get("examples", 0) == 0, "it has 12"
            fields.setdefault(request.url.path.rsplit("/", 1)[-1], set()).update(names_in(message))
        else:
            assert not request.content or request.method == "PUT"
    rules = set(Policy.model_fields) | set(SecureBounds.model_fields)
    said = {"examples", "learners", LEARNER, "strategies", *BUILT_IN, "policy", "secure", "process", "facts", "sdk"}
    assert fields.pop("checkins") - rules == (said | {"hold_s"}) - rules
    assert fields == {
        "devices": {"certificate", "examples", "label"},
        "started": {"attempt"},
        "secure": {"hold_s"},
        "answer": {"hold_s"},
    }
    lengths: dict[str, set[int]] = {}
    for request in sent:
        if request.method == "PUT":
            lengths.setdefault(request.url.path.rsplit("/", 1)[-1], set()).add(len(request.content))
    assert lengths.keys() == set(STAGES), "the exchanges alone"
    assert [len(lengths[stage]) for stage in ("advertise", "mask")] == [1, 1], "as long whatever the data"


@on_day(1, of=2)
def test_repro_after_its_first_secure_round_a_device_says_its_size_no_more(real: Server, tmp_path: Path) -> None:
    """Its data goes in clear for no learner then, so that nobody needs to know; it said its exact size for ever."""
    sent: list[httpx2.Request] = []
    run = create(real, PLAN, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    networks = {2: lambda inner: Tap(inner, sent)}
    open_policy = Policy(secure=any_work(smallest_cohort=3))
    fleet = SecureFleet(
        real, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)], networks, policy=open_policy
    )
    try:
        wait_for_end(real, run)
        fleet.wait_for(2, "under masks.", times=ROUNDS)
    finally:
        fleet.end()
    asked = [json.loads(request.content)["examples"] for request in sent if request.url.path.endswith("/checkins")]
    assert (asked[0], asked[-1]) == (12, 0)
    assert asked == sorted(asked, reverse=True), "never again"


@pytest.mark.parametrize("moment", taking_turns("Has shown its keys", "Has sent its update", "Has signed"))
def test_a_client_that_is_stopped_in_an_exchange_goes_on_with_the_same_attempt(
    real: Server, tmp_path: Path, moment: str
) -> None:
    run, fleet = begun(real, tmp_path / "devices")
    try:
        fleet.wait_for(2, moment)
        began = time.monotonic()
        fleet.stops[2].set()
        fleet.threads[2].join(10)
        assert time.monotonic() - began < 2
        fleet.begin(2)
        view = wait_for_end(real, run)
        fleet.wait_for(2, "under masks.", times=ROUNDS)
    finally:
        fleet.end()
    assert (view.version, fleet.learners[2].trainings) == (ROUNDS, ROUNDS)


@on_day(0, of=2)
def test_a_client_that_vanishes_costs_no_round(real: Server, tmp_path: Path) -> None:
    run, fleet = begun(real, tmp_path / "devices")
    try:
        fleet.wait_for(4, "Has shown its keys")
        fleet.stops[4].set()
        view = wait_for_end(real, run)
    finally:
        fleet.end()
    assert view.version == ROUNDS


class Hold(httpx2.BaseTransport):
    """Sends a masked vector only when it is let go."""

    def __init__(self, inner: httpx2.BaseTransport, go: threading.Event) -> None:
        self._inner, self._go = inner, go

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PUT" and request.url.path.endswith("/mask"):
            self._go.wait(60)
        return self._inner.handle_request(request)


@on_day(0, of=2)
def test_repro_an_exchange_has_its_time_again_after_an_outage(tmp_path: Path) -> None:
    """A coordinator was killed while a list was made, and was away for longer than an exchange lasts: it ended the
    exchange when it was there again, before a device could come back."""
    port, go = free_port(), threading.Event()
    server = Server.start(tmp_path / "data", port=port)
    plan = {**PLAN, "secure": {**PLAN["secure"], "exchange_s": 6, "quiet_s": 6}}
    run = create(server, plan, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    networks = {slot: lambda inner: Hold(inner, go) for slot in range(1, DEVICES)}
    fleet = SecureFleet(server, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)], networks)
    try:
        fleet.wait_for(0, "Has sent its update under masks")
        server.stop(signal.SIGKILL)
        time.sleep(7)
        server = Server.start(tmp_path / "data", port=port)
        fleet.server = server
        go.set()
        view = wait_for_end(server, run)
        with OperatorClient(server.url) as operator:
            first = operator.round(run, 1)
    finally:
        go.set()
        fleet.end()
        server.stop()
    assert view.version == ROUNDS
    assert first.secure is not None
    assert (first.status, first.secure.attempts, first.funnel.reported) == ("committed", 1, DEVICES)


class Pull:
    """Four plain SGD steps towards a value of its own, steeper the higher its number is."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.target, self.steep = float(slot - 1), 1 + slot / 2

    def train(self, model: Tensors, data: Any, task: Task, *, offset: Tensors | None = None, **_: Any) -> Update:
        now, correction = model["w"].copy(), (offset or {}).get("w", np.float32(0))
        for _step in range(4):
            now -= np.float32(task.learning_rate) * (
                np.float32(self.steep) * (now - np.float32(self.target)) + correction
            )
        return Update({"w": now - model["w"]}, 10, work=Work(steps=4, steps_planned=4), model=Manifest.of(model))


@on_day(1, of=2)
def test_scaffold_under_masks_keeps_what_belongs_to_updates_in_sums_also_of_a_client_that_was_stopped(
    real: Server, tmp_path: Path
) -> None:
    """The paper's algorithm to the rounding of masks: what each device keeps, and the variate of all, which travels
    under the masks too."""
    plan = {
        **PLAN,
        "name": "scaffold",
        "task": {**PLAN["task"], "learning_rate": 0.1},
        "aggregation": {"weighting": "equal", "partial": "refuse"},
        "finish": {"rounds": 3, "abandoned": 2},
        "secure": {**PLAN["secure"], "max_norm": 50.0, "max_abs": 8.0},
        "strategy": {"name": "scaffold", "parameters": {"population": DEVICES}},
    }
    run = create(real, plan, {"w": np.zeros(6, np.float32)})
    learners = [Pull(slot) for slot in range(DEVICES)]
    fleet = SecureFleet(real, tmp_path / "devices", learners)
    try:
        fleet.wait_for(2, "Has shown its keys", times=2)
        fleet.stops[2].set()
        fleet.threads[2].join(10)
        fleet.begin(2)
        view = wait_for_end(real, run)
    finally:
        fleet.end()
    assert view.version == 3
    x, c, own = 0.0, 0.0, [0.0] * DEVICES
    for _round in range(3):
        ends = []
        for slot, one in enumerate(learners):
            y = x
            for _step in range(4):
                y -= 0.1 * (one.steep * (y - one.target) + c - own[slot])
            ends.append(y)
        after = [own[slot] - c + (x - y) / 0.4 for slot, y in enumerate(ends)]
        c += sum(new - old for new, old in zip(after, own, strict=True)) / DEVICES
        x, own = sum(ends) / DEVICES, after
    found = model_of(real, run)
    np.testing.assert_allclose(found["w"], x, atol=5e-3)
    np.testing.assert_allclose(found["~c/w"], c, atol=2e-2)
