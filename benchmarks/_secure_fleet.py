"""Real devices in secure rounds of a server process: ``Client``s in threads of this process, whose requests are noted.

Each round has some devices that vanish: before they share, before they mask, or before they sign. They stop in the
middle of the exchange and come back after the round. All updates are multiples of one vector, so the committed model
tells to which sum it belongs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np

from benchmarks._wire import ServerProcess
from client_sdk.data import Data, Examples
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client, Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http
from client_sdk.identity import DeviceKey
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Policy, Task
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from client_sdk.update import Update
from simulation.virtual.device import NO_FLOORS

SECURE, PLAIN = "benchmarks:secure", "benchmarks:plain"
VANISH = ("Has shown its keys", "Is one of ", "Has sent its update under masks")
"""What a device says when it waits: for the roster, for the shares, for the list of survivors."""
WEIGHT_CAP = 1000
EXACT = 1e-4
"""Relative: with 10,000 parameters rounding to 16 bits is far below."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One request of a device that was answered."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """Empty of an update, which is sent from a file."""
    status: int
    answer: bytes
    """Of what is no file; else empty."""
    sent: int
    """Bytes with the request's head."""
    received: int
    """Bytes with the answer's head."""
    connection: str
    """The device's end of the connection on which it was sent: a device opens a new one after a pause."""
    sent_at_cpu_s: float
    """How many CPU seconds this process, with all devices in it, had used when it was sent."""

    @property
    def is_download(self) -> bool:
        """Whether it is the model's download."""
        return "/v1/checkpoints/" in self.path


@dataclass(slots=True)
class Notes:
    """The requests of one device, in order."""

    requests: list[Noted] = field(default_factory=list)
    _sent_at_cpu_s: float = 0.0
    """Of the request under way: there is one at a time."""

    @property
    def bytes(self) -> int:
        """Bytes sent and received, without the model's download."""
        return sum(noted.sent + noted.received for noted in self.requests if not noted.is_download)

    def http(self, url: str) -> httpx2.Client:
        """An HTTP client as devices have it, that notes what it sends and is answered."""
        http = open_http(url)
        http.event_hooks = {"request": [self._note_sent], "response": [self._note]}
        return http

    def _note_sent(self, request: httpx2.Request) -> None:
        self._sent_at_cpu_s = time.process_time()

    def _note(self, response: httpx2.Response) -> None:
        request = response.request
        path = request.url.raw_path.decode("ascii")
        # Before the answer is read: with its last byte the socket may be closed.
        connection = str(response.extensions["network_stream"].get_extra_info("client_addr"))
        length = int(response.headers.get("content-length", 0))
        head = len(f"{request.method} {path} HTTP/1.1\r\n\r\n") + _bytes_of(request.headers)
        answer_head = len(f"HTTP/1.1 {response.status_code} {response.reason_phrase}\r\n\r\n")
        body = b"" if path.endswith("/update") else request.read()
        is_file = "/v1/checkpoints/" in path
        noted = Noted(
            method=request.method,
            path=path,
            headers=tuple(request.headers.items()),
            body=body,
            status=response.status_code,
            answer=b"" if is_file else response.read(),
            sent=head + int(request.headers.get("content-length", 0)),
            received=answer_head + _bytes_of(response.headers) + length,
            connection=connection,
            sent_at_cpu_s=self._sent_at_cpu_s,
        )
        self.requests.append(noted)


def _bytes_of(headers: httpx2.Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.raw)


class Multiple:
    """A learner whose update is a multiple of the fleet's vector."""

    version = "1"

    def __init__(self, vector: Tensors, multiple: float) -> None:
        self.vector, self.multiple = vector, multiple

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        delta = {name: (array * np.float32(self.multiple)) for name, array in self.vector.items()}
        return Update(delta, examples=len(data.x))


class Member:
    """One device: its storage and what it sent in the round under way."""

    def __init__(self, server: ServerProcess, learner: str, number: int, multiple: float, vector: Tensors) -> None:
        self.number, self.multiple = number, multiple
        self.weight = 1 + 37 * number % WEIGHT_CAP
        self.key = DeviceKey.create()
        self.notes = Notes()
        self.told: list[str] = []
        self._server = server
        self._storage = MemoryStorage()
        data = Data(Examples(np.zeros((self.weight, 1)), np.zeros(self.weight)))
        self._trainer = LearnerTrainer(Catalogue({learner: Multiple(vector, multiple)}, installed=()), data)

    def play(self, smallest_cohort: int, vanishes: str = "", on_told: Callable[[str], object] = str) -> None:
        """Takes part in one round to its end, or until it says something that begins with ``vanishes``. ``on_told``
        hears what it says."""
        self.notes, self.told = Notes(), []
        stop = threading.Event()

        def heard(notice: Notice) -> None:
            self.told.append(notice.text)
            on_told(notice.text)
            if vanishes and notice.text.startswith(vanishes):
                stop.set()

        http = self.notes.http(self._server.url)
        with Client(
            self._server.url,
            self._storage,
            self._trainer,
            enrolment_token=self._server.token.text,
            policy=Policy(secure=NO_FLOORS.changed(smallest_cohort=smallest_cohort)),
            signer=self.key,
            http=http,
            pacing=Pacing(withdrawn_s=(0.0, 0.1)),
            on_notice=heard,
        ) as client:
            client.run(rounds=1, stop=stop)
        http.close()


class Fleet:
    """``n`` devices of one server, and one secure run of all of them."""

    def __init__(
        self, server: ServerProcess, n: int, parameters: int, exchange_s: float, rounds: int, groups: int = 1
    ) -> None:
        """``exchange_s``: how long an exchange lasts where a device has vanished. ``groups``: of each round."""
        self.server, self.n, self.groups, self.smallest = server, n, groups, min(n // groups // 2, 64)
        rng = np.random.default_rng(0)
        self.vector: Tensors = {"w": rng.standard_normal(parameters, np.float32) * np.float32(0.003)}
        self.members = [Member(server, SECURE, number, (number + 1) / n, self.vector) for number in range(n)]
        self.operator = OperatorClient(server.url, key=server.key)
        self.model = to_bytes({"w": np.zeros(parameters, np.float32)})
        self._begin(self.operator.upload_checkpoint(self.model), exchange_s, rounds)

    def begin_again(self, exchange_s: float, rounds: int) -> None:
        """A new run that goes on from the last one's newest model: no device contributes to one model twice."""
        newest = self.operator.checkpoints(self.run)[-1].digest
        self.model = self.operator.checkpoint(newest)
        self._begin(newest, exchange_s, rounds)

    def _begin(self, checkpoint: str, exchange_s: float, rounds: int) -> None:
        n = self.n
        plan: dict[str, object] = {
            "name": "secure",
            "task": {"learner": SECURE},
            "cohort": {"select": n, "goal": n, "quorum": 0.5, "select_s": 600, "collect_s": 600},
            "aggregation": {"weighting": "examples", "partial": "refuse", "weight_cap": WEIGHT_CAP},
            "finish": {"rounds": rounds},
            "secure": {
                "max_norm": 10.0,
                "max_abs": 0.1,
                "minimum_cohort": self.smallest,
                "exchange_s": exchange_s,
                "quiet_s": exchange_s,
                "attempts": 1,
                "groups": self.groups,
            },
        }
        self.run = self.operator.create_run(plan, checkpoint, "a benchmark").run
        self._last = from_bytes(self.model)["w"]

    def vanishing(self, each: int) -> dict[int, str]:
        """Devices, spread over all, by what they wait for when they vanish: ``each`` in each of three exchanges."""
        count = each * len(VANISH)
        numbers = range(1, self.n, self.n // count) if count else ()
        return {number: VANISH[place % len(VANISH)] for place, number in enumerate(list(numbers)[:count])}

    def play(self, vanishing: dict[int, str], on_told: Callable[[str], object] = str) -> float:
        """One round of all devices, to its end for each that does not vanish. CPU seconds of the server."""
        began = self.server.cpu_s()
        self._in_threads(self.members, vanishing, on_told)
        return self.server.cpu_s() - began

    def longest_exchange_s(self, number: int) -> float:
        """How long the longest of the exchanges of round ``number`` took, in seconds."""
        view = self.operator.round(self.run, number)
        exchanges = view.secure.exchanges if view.secure is not None else ()
        return max(exchange.ended_at - exchange.began_at for exchange in exchanges if exchange.ended_at is not None)

    def come_back(self, vanishing: dict[int, str]) -> None:
        """Who vanished learns that the round is over."""
        self._in_threads([self.members[number] for number in vanishing], {})

    def require_right(self, number: int, vanishing: dict[int, str]) -> None:
        """SystemExit unless round ``number`` was committed in its first attempt with the sum of all that masked."""
        view = self.operator.round(self.run, number)
        if view.status != "committed" or view.digest is None or view.attempt:
            raise SystemExit(
                f"round {number} is {view.status} in attempt {view.attempt} ({view.reason}): {self._told()}"
            )
        model = from_bytes(self.operator.checkpoint(view.digest))["w"]
        survivors = [m for m in self.members if vanishing.get(m.number) not in VANISH[:2]]
        weight = sum(member.weight for member in survivors)
        wanted = sum(member.weight * member.multiple for member in survivors) / weight
        vector = self.vector["w"].astype(np.float64)
        found = float((model - self._last) @ vector / (vector @ vector))
        self._last = model
        came = {exchange.exchange: exchange.came for exchange in view.secure.exchanges} if view.secure else {}
        if came.get("mask") != len(survivors) or abs(found / wanted - 1) > EXACT:
            raise SystemExit(
                f"{came.get('mask')} devices masked in round {number}, and it moved the model by {found:.6f} "
                f"times the vector, not by the {wanted:.6f} of "
                f"{len(survivors)} devices: wrong results are not reported"
            )

    def close(self) -> None:
        self.operator.close()

    def _in_threads(
        self, members: Sequence[Member], vanishing: dict[int, str], on_told: Callable[[str], object] = str
    ) -> None:
        threads = [
            threading.Thread(target=member.play, args=(self.smallest, vanishing.get(member.number, ""), on_told))
            for member in members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _told(self) -> str:
        return " | ".join(sorted({text for member in self.members for text in member.told[-1:]}))


def plain_round(server: ServerProcess, parameters: int) -> Notes:
    """What one device sends and is answered in a plain round of float32."""
    vector = {"w": np.zeros(parameters, np.float32)}
    member = Member(server, PLAIN, 0, 1.0, vector)
    with OperatorClient(server.url, key=server.key) as operator:
        plan: dict[str, object] = {
            "name": "plain",
            "task": {"learner": PLAIN},
            "cohort": {"select": 1, "goal": 1, "select_s": 600, "collect_s": 600},
            "finish": {"rounds": 1},
        }
        run = operator.create_run(plan, operator.upload_checkpoint(to_bytes(vector)), "a benchmark").run
        member.play(64)
        deadline = time.monotonic() + 30
        while operator.run(run).version < 1:
            if time.monotonic() > deadline:
                raise SystemExit("the plain round was not committed")
            time.sleep(0.05)
    return member.notes
