"""The floor of a secure round over HTTP: the barest FastAPI app, and the same requests again.

``python -m benchmarks._secure_floor FOLDER`` is a process of its own; FOLDER has what ``Replay`` writes there. Each
request is checked as ``_bare_app`` says, and each message's own signature too. A masked vector is a file that is
synced; no other message is stored, or each as one row where the floor is *durable*. Nothing else is looked at, logged
or stored. Check-ins and the answers of an exchange are held until as many have come as in the real round, and have the
length that they had there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, Self

from fastapi import FastAPI, Request, Response

from benchmarks._bare_app import BareApp, json_answer, serve
from benchmarks._secure_fleet import Member, Noted
from benchmarks._secure_load import Load
from benchmarks._wire import Connection, MeasuredProcess
from client_sdk.http.exchange import RequestSigner
from client_sdk.protocol.names import PROTOCOL_HEADER, Route
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE, SECURE_HEADER
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import Roster
from client_sdk.secagg.statement import require_signed

CHECKED_IN = "check-in"
UNANSWERED_S = 0.05
"""How long a request is held that had no answer in the real round: it is held and expires as there, only sooner."""
OWN = ("host", "content-length", PROTOCOL_HEADER.lower())
"""Headers that the connection sends by itself."""
TABLES = "CREATE TABLE messages (round INTEGER, digest TEXT, content BLOB, PRIMARY KEY (round, digest));"


def answers_of(requests: Sequence[Sequence[Noted]], *, durable: bool = False) -> str:
    """JSON of what the floor answers to a round's requests by device: the assignment of one device and the answers to
    plain requests, the most bytes of each exchange's answer, how many messages an answer waits for, to what the
    messages' signatures are bound, and whether each message is stored durably before it is acknowledged."""
    found: dict[str, Any] = {}
    longest: dict[str, bytes] = {}
    plain: dict[str, str] = {}
    came: Counter[str] = Counter({CHECKED_IN: len(requests)})
    for noted in chain.from_iterable(requests):
        name = noted.path.rsplit("/", 1)[1]
        if noted.path == Route.CHECK_IN and _kind(noted) == "assignment":
            found["assignment"] = noted.answer.decode()
        elif noted.method == "PUT":
            came[name] += 1
        elif noted.status == 200 and name in ("secure", "answer"):
            exchange = _exchange(noted.path)
            longest[exchange] = max(noted.answer, longest.get(exchange, b""), key=len)
        elif noted.method == "GET" and not noted.is_download:
            plain[noted.path] = noted.answer.hex()
    header = AttemptHeader.parse(longest["header"])
    bound = {"header": header.digest.hex(), "roster": Roster.parse(longest["advertise"]).h(header).hex()}
    lengths = {exchange: len(answer) for exchange, answer in longest.items()}
    return json.dumps({**found, "plain": plain, "lengths": lengths, "came": came, "bound": bound, "durable": durable})


def _kind(noted: Noted) -> str:
    """Of the answer to a check-in: assignment or wait."""
    return str(json.loads(noted.answer)["kind"])


def _exchange(path: str) -> str:
    """The exchange whose answer this is; *header* for the header."""
    return path.split("/")[-2] if path.endswith("/answer") else "header"


class Replay:
    """A context: the floor's process, and the noted requests of many devices, sent to it again by the same devices."""

    def __init__(self, folder: Path, members: Sequence[Member], model: bytes, answers: str) -> None:
        """``model``: the checkpoint that they download. ``answers``: of the first round (``answers_of``)."""
        folder.mkdir()
        self._answers = folder / "answers.json"
        self._answers.write_text(answers)
        (folder / "model").write_bytes(model)
        (folder / "keys.json").write_text(json.dumps([member.key.public_hex for member in members]))
        self._server = MeasuredProcess(sys.executable, "-m", "benchmarks._secure_floor", str(folder))
        self._signers = []
        for member in members:
            signer = RequestSigner(self._server.url, time.time)
            signer.signer = member.key
            self._signers.append(signer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def play(self, requests: Sequence[Sequence[Noted]], *, durable: bool = False, quiet: bool = False) -> float:
        """All devices at the same time, each one request after the other, beside the work of the devices (``Load``);
        ``quiet``: without it, as fast as they are answered. CPU seconds of the server. SystemExit where an answer has
        not the status that the real round gave."""
        self._answers.write_text(answers_of(requests, durable=durable))
        with nullcontext() if quiet else Load() as load:
            began = self._server.cpu_s()
            asyncio.run(self._all(requests, load))
            return self._server.cpu_s() - began

    async def _all(self, requests: Sequence[Sequence[Noted]], load: Load | None) -> None:
        began = min(noted.sent_at_cpu_s for noted in chain.from_iterable(requests))
        watching = None if load is None else asyncio.create_task(load.watch())
        await asyncio.gather(*(self._one(*each, load, began) for each in zip(self._signers, requests, strict=True)))
        if watching is not None:
            watching.cancel()

    async def _one(self, signer: RequestSigner, requests: Sequence[Noted], load: Load | None, began: float) -> None:
        connection, last = Connection(self._server.port), ""
        for noted in requests:
            if noted.connection != last:
                connection.close()
                last = noted.connection
            if load is not None:
                await load.until(noted.sent_at_cpu_s - began)
            body = noted.body
            if noted.status == 204 or (noted.path == Route.CHECK_IN and _kind(noted) != "assignment"):
                body = json.dumps({**json.loads(body), "hold_s": UNANSWERED_S}).encode()
            digest = hashlib.sha256(body).digest()
            sent = {name: value for name, value in noted.headers if name not in OWN}
            answer = None
            while answer is None or (answer.status == 204 and noted.status == 200):  # the hold expired: it asks again
                signed = signer.headers(noted.method, noted.path, digest)
                sent |= {name.lower(): value for name, value in signed.items()}
                answer = await connection.request(noted.method, noted.path, body, lambda *_, sent=sent: sent)
            if answer.status != noted.status and noted.status != 409:
                said = f"the floor answers {noted.method} {noted.path} with {answer.status}: {answer.body[:200]!r}"
                raise SystemExit(said)
        connection.close()


# ------------------------------------------------------------ the server


class Floor(BareApp):
    """The app. A round begins, with what the file of answers says then, when a device checks in after all have."""

    TABLES = TABLES

    def __init__(self, origin: str, folder: Path) -> None:
        super().__init__(origin, folder / "floor.sqlite3", json.loads((folder / "keys.json").read_text()))
        self._folder, self._model = folder, (folder / "model").read_bytes()
        self._rounds = 0
        self._begin()

    def _begin(self) -> None:
        answers = json.loads((self._folder / "answers.json").read_text())
        self._durable_messages, self._rounds = bool(answers["durable"]), self._rounds + 1
        self._assignment = answers["assignment"].encode()
        self._plain = {path: bytes.fromhex(content) for path, content in answers["plain"].items()}
        self._octets = {name: bytes(length) for name, length in answers["lengths"].items()}
        self._left: dict[str, int] = answers["came"]
        self._all_came = {name: asyncio.Event() for name in self._left}
        self._bound = {name: bytes.fromhex(digest) for name, digest in answers["bound"].items()}

    def _came(self, exchange: str) -> None:
        self._left[exchange] -= 1
        if not self._left[exchange]:
            self._all_came[exchange].set()

    async def _held(self, exchange: str, hold_s: float) -> bool:
        """Whether all came before the hold has expired; False for a request that had no answer in the real round."""
        if hold_s <= UNANSWERED_S:
            await asyncio.sleep(hold_s)
            return False
        try:
            async with asyncio.timeout(hold_s):
                return await self._all_came[exchange].wait()
        except TimeoutError:
            return False

    async def check_in(self, request: Request) -> Response:
        hold_s = json.loads((await self._body(request))[1])["hold_s"]
        if hold_s > UNANSWERED_S:
            if not self._left[CHECKED_IN]:
                self._begin()
            self._came(CHECKED_IN)
        there = await self._held(CHECKED_IN, hold_s)
        return json_answer(self._assignment if there else b'{"kind": "wait", "min_s": 0, "max_s": 0, "reason": ""}')

    async def checkpoint(self, request: Request) -> Response:
        await self._body(request)
        return Response(self._model, media_type="application/vnd.safetensors")

    async def started(self, request: Request) -> Response:
        json.loads((await self._body(request))[1])
        return json_answer(b"{}")

    async def plain(self, request: Request) -> Response:
        if "signature" in request.headers:
            await self._body(request)
        return Response(self._plain[request.url.path], headers={PROTOCOL_HEADER: "1"})

    async def header(self, request: Request) -> Response:
        hold_s = json.loads((await self._body(request))[1])["hold_s"]
        if hold_s > UNANSWERED_S:
            return _octets(self._octets["header"])
        await asyncio.sleep(hold_s)
        return _octets(None)

    async def message(self, request: Request) -> Response:
        key, body = await self._body(request)
        said, exchange = json.loads(request.headers[SECURE_HEADER]), request.path_params["stage"]
        signed = bytes.fromhex(said["body"]) if exchange == "mask" else body
        bound = self._bound["header" if exchange == "advertise" else "roster"]
        public = self._keys[key].public_bytes_raw().hex()
        require_signed(public, bytes.fromhex(said["signature"]), bound, exchange, signed, key)
        if exchange == "mask":
            await asyncio.to_thread(self._store, body)
        elif self._durable_messages:
            content = body + bytes.fromhex(said["signature"])
            row = (self._rounds, hashlib.sha256(content).hexdigest(), content)
            await self._durable(("INSERT INTO messages VALUES (?, ?, ?)", row))
        self._came(exchange)
        return json_answer(b"{}")

    def _store(self, vector: bytes) -> None:
        with (self._folder / hashlib.sha256(vector).hexdigest()).open("wb") as file:
            file.write(vector)
            file.flush()
            os.fsync(file.fileno())

    async def answer(self, request: Request) -> Response:
        hold_s = json.loads((await self._body(request))[1])["hold_s"]
        exchange = request.path_params["stage"]
        return _octets(self._octets[exchange] if await self._held(exchange, hold_s) else None)

    def app(self) -> FastAPI:
        """The app, with the paths of the protocol."""
        app = FastAPI(openapi_url=None)
        for method, path, endpoint in (
            ("POST", Route.CHECK_IN, self.check_in),
            ("GET", Route.CHECKPOINT, self.checkpoint),
            ("POST", Route.STARTED, self.started),
            ("POST", Route.SECURE, self.header),
            ("PUT", Route.SECURE_MESSAGE, self.message),
            ("POST", Route.SECURE_ANSWER, self.answer),
            ("GET", Route.OUTCOME, self.plain),
            ("GET", Route.REVOCATIONS, self.plain),
            ("GET", Route.REVOCATION_LIST, self.plain),
        ):
            app.add_route(path, endpoint, methods=[method])
        return app


def _octets(content: bytes | None) -> Response:
    if content is None:
        return Response(status_code=204, headers={PROTOCOL_HEADER: "1"})
    return Response(content, media_type=OCTETS_MEDIA_TYPE, headers={PROTOCOL_HEADER: "1"})


if __name__ == "__main__":
    serve(lambda origin: Floor(origin, Path(sys.argv[1])).app())
