"""No byte of an uncounted body enters a sum: uploads that are broken off anywhere, and values that are no numbers.

Everything goes through the whole application, over a folder of files. A client that goes away is the message
*disconnect* in the middle of its body. A round's sum is compared, bit by bit, with one in which only the others send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from client_sdk.protocol.names import Route
from coordinator.blobs import FileBlobs
from coordinator.blobs.blocks import BLOCK
from coordinator.network_settings import MIB
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.served import RUN, Phone, Served
from tests.coordinator.service.wire import ORIGIN, Sent, Wire, kind
from tests.rotating import taking_turns

DIMENSION = 400_000
"""Values of the model: an update takes 1.6 MB, a masked vector about as much."""
BROKEN, WRONG = 0, 4
"""The device whose uploads are broken off, and the one that sends what is no number."""
GONE = 499
"""In place of an answer that nobody was there to read."""


def cuts(size: int) -> Iterator[int]:
    """After how many bytes a body of this size is broken off: at each boundary of its blocks, in the middle of one,
    before its first byte and its last one."""
    yield from (0, BLOCK // 2, size // BLOCK * BLOCK - BLOCK // 2, size - 1)
    yield from range(BLOCK, size, BLOCK)


class Tight(Wire):
    """The service with room on its disk for one body, and a slot for one body of each device: whatever an upload has
    taken is missed by the next one. ``cut``: after how many bytes of its body the client of the next request goes away;
    None: it stays. ``announced``: whether it has said how long the body is."""

    def __init__(self, coordinator: Any, announced: bool) -> None:
        settings = Settings(max_hold_s=0, upload_disk_bytes=3 * MIB, uploads_per_caller=1)
        self.app = create_app(coordinator, settings)
        self.announced = announced
        self.cut: int | None = None

    def send(self, request: Sent) -> httpx2.Response:
        if self.cut is None:
            return super().send(request)
        asyncio.run(self._broken_off(request, request.body[: self.cut]))
        return httpx2.Response(GONE, json={"type": "/problems/gone"})

    async def _broken_off(self, request: Sent, begun: bytes) -> None:
        length = (b"content-length", str(len(request.body)).encode())
        framing = length if self.announced else (b"transfer-encoding", b"chunked")
        named = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        parts = [begun[at : at + BLOCK] for at in range(0, len(begun), BLOCK)]

        answers = list[Any]()

        async def receive() -> dict[str, Any]:
            if not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": True}

        async def send(message: Any) -> None:
            answers.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", ORIGIN.removeprefix("http://").encode()), framing, *named],
            "client": ("127.0.0.1", 50_000),
            "server": ("localhost", 80),
        }
        with suppress(ClientDisconnect):
            await self.app(scope, receive, send)
        assert not answers, "before the body has ended there is nothing to say"

    def close(self) -> None:
        self.app.state.service.close()


class Torn(Served):
    """A world in which the long uploads of one device are broken off at each of ``cuts``, and then never sent where
    ``silent``, else sent again. Its devices have different values in all places."""

    def __init__(self, folder: Path, devices: int, *, torn: bool, silent: bool, announced: bool = True) -> None:
        self.folder = folder
        super().__init__(devices, dimension=DIMENSION, blobs=FileBlobs(folder))
        self.close()
        self.wire: Tight = Tight(self.coordinator, announced)
        self.wires = [self.wire]
        self.torn, self.silent = torn, silent
        self.breaks = 0
        for phone in self.phones:
            phone.member.values = self.values(phone.number)

    def values(self, number: int, round: int = 1) -> np.ndarray[Any, Any]:
        draws = np.random.default_rng([number, round])
        return draws.uniform(-1e-3, 1e-3, DIMENSION).astype(np.float32)

    def left(self) -> set[str]:
        """The names of all files of the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def ask(
        self, phone: Phone, method: str, route: str, message: Any = None, *, body: bytes | None = None, **more: Any
    ) -> httpx2.Response:
        if phone.number != BROKEN or body is None or len(body) <= BLOCK:
            return super().ask(phone, method, route, message, body=body, **more)
        answer, before = httpx2.Response(GONE, json={"type": "/problems/gone"}), self.left()
        for cut in cuts(len(body)) if self.torn else ():
            self.wire.cut = cut
            answer = super().ask(phone, method, route, message, body=body, **more)
            assert answer.status_code == GONE
            assert self.left() == before, f"a body that was broken off after {cut} bytes has left files"
            self.breaks += 1
        self.wire.cut = None
        return answer if self.silent else super().ask(phone, method, route, message, body=body, **more)

    # ------------------------------------------------------------ plain rounds

    def update(self, number: int, round: int) -> bytes:
        return self.body(number, round, run=RUN, examples=10 + number, delta={"w": self.values(number, round)})

    def put(self, number: int, body: bytes, round: int) -> httpx2.Response:
        answer = self.ask(self.phones[number], "PUT", Route.UPDATE, body=body, round=round)
        self.settle()
        return answer

    def report_in(self, round: int, *numbers: int) -> None:
        """These devices of its cohort send their updates, one after the other."""
        for number in numbers:
            answer = self.put(number, self.update(number, round), round)
            assert answer.status_code in (200, GONE), answer.text

    def counted(self, round: int) -> list[int]:
        return sorted(self.index(row.device) for row in self.store.contributions(RUN, round))

    def model_digest(self) -> str:
        found = self.coordinator.operators.run(RUN)
        assert found.checkpoint is not None
        return found.checkpoint


def plain(folder: Path, **how: bool) -> Torn:
    world = Torn(folder, 5, **how)
    aggregation = {"weighting": "examples"}
    cohort = {"select": 5, "goal": 3, "quorum": 0.6, "select_s": 10, "collect_s": 60}
    world.create(name=RUN, cohort=cohort, aggregation=aggregation, finish={"rounds": 2})
    return world


@pytest.mark.slow
@pytest.mark.parametrize("announced", taking_turns(True, False))
def test_an_update_that_is_broken_off_or_no_number_at_its_end_leaves_no_trace(tmp_path: Path, announced: bool) -> None:
    """In the first round the torn device never gets through; in the second one it does, and counts once."""
    others = plain(tmp_path / "others", torn=False, silent=True)
    world = plain(tmp_path / "torn", torn=True, silent=True, announced=announced)
    for one in (others, world):
        one.check_in()
        assert one.cohort() == list(range(5))
    before, body = world.left(), world.update(WRONG, 1)
    wrong = world.put(WRONG, body[:-4] + np.float32(np.nan if announced else -np.inf).tobytes(), 1)
    assert (wrong.status_code, kind(wrong)) == (422, "invalid-update")
    assert world.left() == before
    for one in (others, world):
        one.report_in(1, BROKEN, 1, 2, 3)
        assert one.counted(1) == [1, 2, 3]
    assert world.model_digest() == others.model_digest()
    for one in (others, world):
        one.silent = False
        one.check_in()
        one.report_in(2, BROKEN, 1, 2)
        assert one.counted(2) == [BROKEN, 1, 2]
        one.close()
    assert world.model_digest() == others.model_digest()
    assert world.breaks > 50


@pytest.mark.slow
@pytest.mark.parametrize("silent", taking_turns(True, False))
def test_a_masked_vector_that_is_broken_off_leaves_no_trace(tmp_path: Path, silent: bool) -> None:
    """Its device counts once where it sends the vector again, else the sum is that of the others."""
    others = Torn(tmp_path / "others", 6, torn=False, silent=False)
    world = Torn(tmp_path / "torn", 6, torn=True, silent=silent)
    if silent:
        others.phones[BROKEN].stops = "mask"
    for one in (others, world):
        one.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
        one.begin()
        one.play_to_end()
        assert one.counted(1) == list(range(silent, 6))
        one.close()
    assert world.model_digest() == others.model_digest()
    assert world.breaks > 10
