"""Forty real clients, of which 8 % vanish at each exchange of a round, and a coordinator that is killed again and
again: every round commits, with the devices that had masked and no others.

What a seed decides is who vanishes where, and when the coordinator is killed. It rotates by the day; ``KILLS_SEED``
overrides it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Policy, Task
from client_sdk.protocol.secure import Stage
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.store import open_store
from tests.client_sdk.bounds import any_work
from tests.client_sdk.http.operated import create, model_of
from tests.client_sdk.http.secure_clients import LEARNER, Network, SecureFleet
from tests.conftest import SOAK_SECONDS
from tests.coordinator.secure.world import STAGES
from tests.coordinator.service.conftest import Server
from tests.coordinator.verify.history import violations
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

SEED = int(os.environ.get("KILLS_SEED", str(int(time.time() // 86_400))))
DEVICES, VANISH = 40, 0.08
LAST_S = 240.0
"""No round lasts longer, whatever is killed meanwhile: all of its phases, and their time again after each outage."""
SENT = re.compile(r"/rounds/(\d+)/attempts/\d+/secure/(\w+)$")
POLICY = Policy(secure_only=True, secure=any_work(smallest_cohort=3, sums_a_day=None))


def plan() -> dict[str, Any]:
    """The roster is complete when all have advertised who do not vanish before."""
    return {
        "name": "killed",
        "task": {"learner": LEARNER, "learner_version": "1.0"},
        "cohort": {
            "select": DEVICES,
            "goal": DEVICES - round(VANISH * DEVICES),
            "quorum": 0.5,
            "select_s": 30,
            "collect_s": 30,
        },
        "aggregation": {"partial": "refuse"},
        "finish": {"rounds": 100_000},
        "secure": {"max_norm": 2.0, "max_abs": 1.0, "minimum_cohort": 10, "reserve": 0, "exchange_s": 20, "quiet_s": 4},
    }


class Mark:
    """A learner whose update moves the value of its device by 1: the model shows who was in which sum, and how
    often."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        mark = np.zeros(DEVICES, np.float32)
        mark[self.slot] = 1.0
        return Update({"w": mark}, examples=len(data.x))


@dataclass
class Killed:
    """A run whose coordinator is killed after each of these pauses, in seconds."""

    folder: Path
    seed: int
    round: int = 1
    """The one under way, as far as is known: who has vanished in it comes back in the next one."""
    since: float = field(default_factory=time.monotonic)
    """When that was first known."""
    phases: Counter[str] = field(default_factory=Counter)
    """In which phases it was killed."""

    def vanishing(self, number: int) -> dict[int, Stage]:
        """Who vanishes in the round of this number, and before which message: of those still there 8 % at each."""
        left, found = np.random.default_rng((self.seed, number)).permutation(DEVICES).tolist(), dict[int, Stage]()
        for stage in STAGES:
            gone = round(VANISH * len(left))
            found |= dict.fromkeys(left[:gone], stage)
            left = left[gone:]
        return found

    def network(self, slot: int) -> Network:
        return lambda inner: Vanishing(inner, slot, self)

    def play(self, pauses: Iterable[float], rounds: int) -> None:
        """Until all pauses are over, and so many more rounds have ended."""
        self.server = Server.start(self.folder / "data")
        port = int(self.server.url.rsplit(":", 1)[1])
        self.run = create(self.server, plan(), {"w": np.zeros(DEVICES, np.float32)})
        networks = {slot: self.network(slot) for slot in range(DEVICES)}
        marks = [Mark(slot) for slot in range(DEVICES)]
        fleet = SecureFleet(self.server, self.folder / "devices", marks, networks, POLICY)
        try:
            for pause in pauses:
                view = self._watch(time.monotonic() + pause)
                self.phases[view["phase"]] += 1
                self.server.stop(signal.SIGKILL)
                self.server = Server.start(self.folder / "data", port=port)
            self._watch(over=self._view()["round"] + rounds - 1)
            with OperatorClient(self.server.url) as operator:
                self.rounds = [row for row in operator.rounds(self.run) if row.status != "open"]
            self.model = model_of(self.server, self.run)["w"]
            self.slots = {fleet.device(slot): slot for slot in range(DEVICES)}
        finally:
            fleet.end()
            self.server.stop()

    def _view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.http.get(f"/v1/runs/{self.run}").json()
        if found["round"] != self.round:
            self.round, self.since = found["round"], time.monotonic()
        assert time.monotonic() < self.since + LAST_S, f"round {self.round} stands still: {found}"
        return found

    def _watch(self, until: float = float("inf"), over: float = float("inf")) -> dict[str, Any]:
        """The view of the run at this time, or once the round of this number is over."""
        while (view := self._view())["round"] <= over and time.monotonic() < until:
            time.sleep(0.1)
        return view

    def require_all_committed(self) -> int:
        """Each round that has ended was committed, of devices that had not vanished before they masked, and the model
        is that of these devices. How many rounds they are."""
        ended = [(row.status, row.missed, row.reason) for row in self.rounds]
        assert ended == [("committed", 0, "")] * len(ended)
        expected = np.zeros(DEVICES)
        store = open_store(f"sqlite:///{self.folder / 'data' / 'quorate.sqlite3'}")
        try:
            for row in self.rounds:
                counted = {self.slots[one.device] for one in store.contributions(self.run, row.round)}
                vanished = self.vanishing(row.round)
                assert all(vanished.get(slot) not in STAGES[:3] for slot in counted)
                expected[sorted(counted)] += 1 / len(counted)
        finally:
            store.close()
        np.testing.assert_allclose(self.model, expected, atol=1e-3)
        assert violations(self.folder / "data") == []
        return len(self.rounds)


@dataclass
class Vanishing(httpx2.BaseTransport):
    """A network that is gone from one message of a round until that round is over."""

    inner: httpx2.BaseTransport
    slot: int
    killed: Killed
    gone: int = 0
    """In this round."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = SENT.search(request.url.path) if request.method == "PUT" else None
        if sent is not None and self.killed.vanishing(int(sent[1])).get(self.slot) == sent[2]:
            self.gone = int(sent[1])
        if self.gone >= self.killed.round:
            raise httpx2.ConnectError("the device has vanished")
        return self.inner.handle_request(request)


def pauses(seed: int, least_s: float, most_s: float) -> Iterator[float]:
    """Without an end."""
    draw = np.random.default_rng((seed, 0))
    while True:
        yield draw.uniform(least_s, most_s)


@on_day(1, of=2)
def test_rounds_commit_though_devices_vanish_and_the_coordinator_is_killed(tmp_path: Path) -> None:
    print(f"KILLS_SEED={SEED}")
    killed = Killed(tmp_path, SEED)
    killed.play(islice(pauses(SEED, 3, 12), 2), rounds=1)
    assert killed.require_all_committed()


@pytest.mark.soak
def test_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: a kill every 10 to 75 s, for SOAK_SECONDS."""
    ends, killed = time.monotonic() + SOAK_SECONDS, Killed(tmp_path, int(time.time()))
    killed.play(takewhile(lambda pause: time.monotonic() + pause < ends, pauses(killed.seed, 10, 75)), rounds=2)
    number = killed.require_all_committed()
    with capsys.disabled():
        print(f"\nseed {killed.seed}: {number} rounds, all committed; kills: {dict(killed.phases)}")
