"""The floor of a secure round over HTTP: the same service without a round, and the same requests again.

``python -m benchmarks._secure_floor ANSWERS serve ...`` is ``quorate serve`` with another table of requests: those that
a device makes in a round authenticate the device, take the body as the service takes every body, and check the
message's own signature. A masked vector is stored; nothing else is looked at, logged or stored. Check-ins and the
answers of an exchange are held until as many have come as in the real round, and have the length that they had there.
ANSWERS is the file that ``answers_of`` writes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks._secure_fleet import Member, Noted
from benchmarks._secure_load import Load
from benchmarks._wire import Connection, ServerProcess
from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.http.authority import AuthorityClient
from client_sdk.http.exchange import RequestSigner
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol import devices as protocol
from client_sdk.protocol.devices import Assignment, CheckIn, Outcome, Registration, Started, Wait
from client_sdk.protocol.names import PROTOCOL_HEADER, Route, RunId
from client_sdk.protocol.secure import Octets, SecureSigned, SecureWait
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import Roster
from client_sdk.secagg.statement import require_signed
from coordinator.blobs import Spool
from coordinator.cli import app as command
from coordinator.group_commit import GroupCommit, PendingCommit
from coordinator.requests import TABLE, Table, devices, secure
from coordinator.requests.entry import Attempt, Direct, RoundNumber
from coordinator.requests.secure import ExchangeName
from coordinator.runtime.coordinator import Coordinator
from coordinator.service import app, process
from coordinator.store.port import DeviceRow
from coordinator.store.rows import MessageRow

MOST = 1 << 24
"""Bytes of the longest body."""
CHECKED_IN = "check-in"
UNANSWERED_S = 0.05
"""How long a request is held that had no answer in the real round: it is held and expires as there, only sooner."""
OWN = ("host", "content-length", PROTOCOL_HEADER.lower())
"""Headers that the connection sends by itself."""


def answers_of(requests: Sequence[Sequence[Noted]], *, durable: bool = False) -> str:
    """JSON of what the floor answers to a round's requests by device: the assignment and the outcome of one device, the
    most bytes of each answer, how many messages an answer waits for, to what the messages' signatures are bound, and
    whether each message is stored durably before it is acknowledged."""
    found: dict[str, Any] = {}
    longest: dict[str, bytes] = {}
    lengths: dict[str, int] = {}
    came: Counter[str] = Counter({CHECKED_IN: len(requests)})
    for noted in chain.from_iterable(requests):
        name = noted.path.rsplit("/", 1)[1]
        if noted.path == Route.CHECK_IN and _kind(noted) == "assignment":
            found["assignment"] = json.loads(noted.answer)
        elif name == "outcome":
            found["outcome"] = json.loads(noted.answer)
        elif noted.method == "PUT":
            came[name] += 1
        elif noted.status == 200 and name in ("secure", "answer"):
            exchange = _exchange(noted.path)
            lengths[exchange] = max(len(noted.answer), lengths.get(exchange, 0))
            longest[exchange] = noted.answer
    header = AttemptHeader.parse(longest["header"])
    bound = {"header": header.digest.hex(), "roster": Roster.parse(longest["advertise"]).h(header).hex()}
    return json.dumps({**found, "lengths": lengths, "came": came, "bound": bound, "durable": durable})


def _kind(noted: Noted) -> str:
    """Of the answer to a check-in: assignment or wait."""
    return str(json.loads(noted.answer)["kind"])


def _exchange(path: str) -> str:
    """The exchange whose answer this is; *header* for the header."""
    return path.split("/")[-2] if path.endswith("/answer") else "header"


class Replay:
    """The noted requests of many devices, sent again to the floor's server, by the same devices."""

    def __init__(self, server: ServerProcess, members: Sequence[Member], model: bytes) -> None:
        """Registers the devices there. ``model``: the checkpoint that they download, of a run that nobody joins."""
        self._server = server
        with OperatorClient(server.url, key=server.key) as operator:
            self._checkpoint = operator.upload_checkpoint(model)
            plan = {"name": "empty", "task": {"learner": "benchmarks:none"}, "cohort": {"select": 1, "goal": 1}}
            operator.create_run({**plan, "finish": {"rounds": 1}}, self._checkpoint, "a benchmark")
        self._signers = []
        self._listed = asyncio.run(self._list())
        with AuthorityClient(server.token.url, server.token.authority) as authority:
            for member in members:
                signer = RequestSigner(server.url, time.time)
                signer.signer = member.key
                self._signers.append(signer)
                certificate = authority.enrol(server.token, member.key)
                message = Registration(certificate=certificate.encoded.hex(), examples=member.weight)
                asyncio.run(self._register(signer, message.model_dump_json().encode()))

    async def _list(self) -> str:
        """The digest of the server's revocation list."""
        connection = Connection(self._server.port)
        listed = (await connection.request("GET", Route.REVOCATIONS)).ok()
        connection.close()
        return RevocationList.parse(listed.body).digest.hex()

    async def _register(self, signer: RequestSigner, body: bytes) -> None:
        connection = Connection(self._server.port)
        signed = signer.headers("POST", Route.REGISTER, hashlib.sha256(body).digest())
        (await connection.request("POST", Route.REGISTER, body, lambda *_: signed)).ok()
        connection.close()

    def play(self, requests: Sequence[Sequence[Noted]], *, quiet: bool = False) -> float:
        """All devices at the same time, each one request after the other, beside the work of the devices (``Load``);
        ``quiet``: without it, as fast as they are answered. CPU seconds of the server. SystemExit where an answer has
        not the status that the real round gave."""
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
            path, body = noted.path, noted.body
            if noted.is_download:
                path = Route.CHECKPOINT.format(digest=self._checkpoint)
            elif path.startswith(f"{Route.REVOCATIONS}/"):
                path = Route.REVOCATION_LIST.format(digest=self._listed)
            if noted.status == 204 or (path == Route.CHECK_IN and _kind(noted) != "assignment"):
                body = json.dumps({**json.loads(body), "hold_s": UNANSWERED_S}).encode()
            digest = hashlib.sha256(body).digest()
            sent = {name: value for name, value in noted.headers if name not in OWN}
            if "signature" in sent:
                sent |= {name.lower(): value for name, value in signer.headers(noted.method, path, digest).items()}
            answer = await connection.request(noted.method, path, body, lambda *_, sent=sent: sent)
            while answer.status == 204 and noted.status == 200:  # the hold has expired: a device asks again
                fresh = {n.lower(): v for n, v in signer.headers(noted.method, path, digest).items()}
                answer = await connection.request(noted.method, path, body, lambda *_, sent=sent | fresh: sent)
            if answer.status != noted.status and noted.status != 409:
                raise SystemExit(f"the floor answers {noted.method} {path} with {answer.status}: {answer.body[:200]!r}")
        connection.close()


# ------------------------------------------------------------ the server


def _unanswered(message: CheckIn | SecureWait) -> bool:
    """Whether this request had no answer in the real round."""
    return message.hold_s <= UNANSWERED_S


class Empty:
    """The handlers of a device's requests in a round. They do nothing but wait for each other."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._keys: dict[str, str] = {}
        self._stores: dict[str, GroupCommit[MessageRow, None]] = {}
        self._rounds = 0
        self._begin()

    def _begin(self) -> None:
        """A new round: the file was written again."""
        answers = json.loads(self._file.read_text())
        self._durable, self._rounds = bool(answers["durable"]), self._rounds + 1
        self._assignment, self._outcome = Assignment(**answers["assignment"]), Outcome(**answers["outcome"])
        self._octets = {name: Octets(content=bytes(length)) for name, length in answers["lengths"].items()}
        self._left: dict[str, int] = answers["came"]
        self._bound = {name: bytes.fromhex(digest) for name, digest in answers["bound"].items()}
        self._waiting: dict[str, set[str]] = {name: set() for name in self._left}

    def _came(self, to: Coordinator, exchange: str) -> None:
        with self._lock:
            if exchange == CHECKED_IN and not self._left[exchange]:
                self._begin()
            self._left[exchange] -= 1
            woken = [] if self._left[exchange] else list(self._waiting[exchange])
        to.core.signals.wake_many(woken)

    def _ready(self, exchange: str, key: str) -> bool:
        with self._lock:
            self._waiting[exchange].add(key)
            return not self._left[exchange]

    def check_in(self, to: Coordinator, device: DeviceRow, message: CheckIn) -> Assignment | None:
        if not _unanswered(message):
            self._came(to, CHECKED_IN)
        return self.assignment(to, device, message)

    def assignment(self, to: Coordinator, device: DeviceRow, message: CheckIn) -> Assignment | None:
        ready = not _unanswered(message) and self._ready(CHECKED_IN, devices.waits_for(device, message))
        return self._assignment if ready else None

    def not_selected(self, to: Coordinator, device: DeviceRow, message: CheckIn) -> Wait:
        return Wait(min_s=0, max_s=0, reason="")

    def started(
        self, to: Coordinator, device: DeviceRow, message: Started, *, run: RunId, round: RoundNumber
    ) -> protocol.Noted:
        return protocol.Noted()

    def outcome(self, to: Coordinator, device: DeviceRow, *, run: RunId, round: RoundNumber) -> Outcome:
        return self._outcome

    def header(
        self, to: Coordinator, device: DeviceRow, message: SecureWait, *, run: RunId, round: RoundNumber
    ) -> Octets | None:
        return None if _unanswered(message) else self._octets["header"]

    def limit(
        self,
        to: Coordinator,
        device: DeviceRow,
        message: SecureSigned,
        *,
        run: RunId,
        round: RoundNumber,
        attempt: Attempt,
        stage: ExchangeName,
    ) -> int:
        return MOST

    def message(
        self,
        to: Coordinator,
        device: DeviceRow,
        message: SecureSigned,
        body: Spool,
        *,
        run: RunId,
        round: RoundNumber,
        attempt: Attempt,
        stage: ExchangeName,
    ) -> protocol.Noted | PendingCommit[Any]:
        signed = bytes.fromhex(message.body) if stage == "mask" else body.handle.read()
        bound = self._bound["header" if stage == "advertise" else "roster"]
        require_signed(self._public(device), bytes.fromhex(message.signature), bound, stage, signed, device.device)
        if stage == "mask":
            body.commit()
        elif self._durable:
            return self._stored(to, stage, signed + bytes.fromhex(message.signature))
        self._came(to, stage)
        return protocol.Noted()

    def _stored(self, to: Coordinator, exchange: str, content: bytes) -> PendingCommit[Any]:
        """Makes a message durable as a row, together with those that come meanwhile. The rows stay."""
        run = to.core.logs()[0].run

        def write(rows: Sequence[MessageRow]) -> list[None]:
            with to.core.store.transaction(run) as tx:
                tx.insert_messages(rows)
            return [None] * len(rows)

        digest = hashlib.sha256(content + self._rounds.to_bytes(4, "big")).hexdigest()
        row = MessageRow(run=run, round=self._rounds, digest=digest, content=content)
        with self._lock:
            commits = self._stores.setdefault(run, GroupCommit(write))
        entered = commits.enter(row)

        def settle() -> protocol.Noted:
            entered()
            self._came(to, exchange)
            return protocol.Noted()

        return PendingCommit(commits, settle)

    def _public(self, device: DeviceRow) -> str:
        """The device's public key in hexadecimal."""
        found = self._keys.get(device.device)
        if found is None:
            found = Certificate.parse(bytes.fromhex(device.certificate)).public_key.hex()
            self._keys[device.device] = found
        return found

    def answer(
        self,
        to: Coordinator,
        device: DeviceRow,
        message: SecureWait,
        *,
        run: RunId,
        round: RoundNumber,
        attempt: Attempt,
        stage: ExchangeName,
    ) -> Octets | None:
        ready = not _unanswered(message) and self._ready(stage, secure.waits_for(device, message))
        return self._octets[stage] if ready else None

    def table(self) -> Table:
        """The coordinator's table, with these handlers."""
        empty = Table([*TABLE])
        shapes = (
            (devices.CHECK_IN, self.check_in, self.assignment, self.not_selected),
            (secure.SECURE, self.header, self.header, secure.not_yet),
            (secure.SECURE_ANSWER, self.answer, self.answer, secure.not_yet),
        )
        for entry, first, again, expired in shapes:
            held = replace(entry.shape, first=first, again=again, expired=expired, gone=None, mark=None)
            empty = Table([*empty, replace(entry, shape=held)])
        for plain, call in ((devices.STARTED, self.started), (devices.OUTCOME, self.outcome)):
            empty = Table([*empty, replace(plain, shape=Direct(call))])
        body = replace(secure.SECURE_MESSAGE.shape, limit=self.limit, stored=self.message, again=None)
        return Table([*empty, replace(secure.SECURE_MESSAGE, shape=body)])


def run_server() -> None:
    """``quorate serve`` with the table of this page."""
    process.create_app = partial(app.create_app, table=Empty(Path(sys.argv.pop(1))).table())  # type: ignore[attr-defined]
    command()


if __name__ == "__main__":
    run_server()
