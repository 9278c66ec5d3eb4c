"""Clients in threads that take part in secure rounds of a real ``quorate serve``, each with a folder, a network and a
switch of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from client_sdk.data import Data, Examples
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import FileStorage
from client_sdk.http.client import Client, Notice
from client_sdk.http.transport import open_http
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Policy
from tests.client_sdk.bounds import any_work
from tests.coordinator.service.conftest import Server

LEARNER = "tests:mark"
POLICY = Policy(secure_only=True, secure=any_work(smallest_cohort=3))
WAIT_S = 120.0

Network = Callable[[httpx2.BaseTransport], httpx2.BaseTransport]
"""Puts something between a device and the coordinator."""


class SecureFleet:
    """Devices in threads: one for each learner. Device ``slot`` has 10 + slot examples."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        learners: list[Any],
        networks: Mapping[int, Network] | None = None,
        policy: Policy = POLICY,
    ) -> None:
        self.server, self.folder, self.learners, self.policy = server, folder, learners, policy
        self.networks = networks or {}
        self.stops = [threading.Event() for _ in learners]
        self.storages: dict[int, FileStorage] = {}
        self.told: list[tuple[int, Notice]] = []
        self.threads: list[threading.Thread] = []
        for slot in range(len(learners)):
            self.begin(slot)

    def begin(self, slot: int) -> None:
        self.stops[slot] = threading.Event()
        self.threads.append(threading.Thread(target=self._live, args=(slot, self.stops[slot]), name=f"d{slot}"))
        self.threads[-1].start()

    def _live(self, slot: int, stop: threading.Event) -> None:
        data = Data(Examples(np.zeros((10 + slot, 1)), np.zeros(10 + slot)))
        trainer = LearnerTrainer(Catalogue({LEARNER: self.learners[slot]}, installed=()), data)
        settings: dict[str, Any] = {"enrolment_token": self.server.token, "policy": self.policy}
        settings |= {"pacing": Pacing(retry_s=0.05, retry_most_s=0.3, withdrawn_s=(1, 2))}
        settings |= {"on_notice": lambda notice: self.told.append((slot, notice))}
        with FileStorage(self.folder / f"d{slot}", durable=False) as storage, open_http(self.server.url) as http:
            self.storages[slot] = storage
            if slot in self.networks:
                http._transport = self.networks[slot](http._transport)
            with Client(self.server.url, storage, trainer, http=http, **settings) as client:
                client.run(stop=stop)

    def device(self, slot: int) -> str:
        """The id of this device; empty until it has registered."""
        record = self.storages[slot].load()
        return record.registered.device if record is not None and record.registered is not None else ""

    def said(self, text: str, slot: int | None = None) -> int:
        """How often this was told: by one device, or by any."""
        return sum(text in str(told) for number, told in list(self.told) if slot in (None, number))

    def wait_for(self, slot: int | None, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.said(text, slot) < times:
            assert time.monotonic() < deadline, [str(told) for number, told in self.told if slot in (None, number)]
            time.sleep(0.01)

    def end(self) -> None:
        for stop in self.stops:
            stop.set()
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)
