"""The floor of a round without training: the barest FastAPI app that a device of the protocol could not tell from a
coordinator in such a round. A process of its own: ``python -m benchmarks._noop_floor FOLDER KEYS``, where KEYS is a
file with the public keys of all devices.

It has no avoidable work. Requests are checked and made durable as ``_bare_app`` says. The rows are those that a
coordinator writes for a round: a device that waits and its claim, which are deleted again, an event for each *started*
and each report, a contribution, the round, its events and its checkpoint; an update's bytes are a row too. An update's
report and values are parsed, and the updates are added and divided. There is no policy, no validation of messages, no
replica, no audit, no meter.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
from fastapi import FastAPI, Request, Response

from benchmarks._bare_app import BareApp, Statement, json_answer, serve
from client_sdk.protocol.names import Route

RUN = "noop"
TABLES = """
CREATE TABLE waiting (device TEXT PRIMARY KEY, at REAL, body TEXT);
CREATE TABLE claims (device TEXT PRIMARY KEY, run TEXT, round INTEGER);
CREATE TABLE events (
    run TEXT, seq INTEGER, at REAL, kind TEXT, round INTEGER, body TEXT, link TEXT, PRIMARY KEY (run, seq)
);
CREATE TABLE contributions (
    run TEXT, round INTEGER, device TEXT, digest TEXT, weight INTEGER, PRIMARY KEY (run, round, device)
);
CREATE TABLE updates (digest TEXT PRIMARY KEY, content BLOB);
CREATE TABLE checkpoints (run TEXT, version INTEGER, digest TEXT, content BLOB, PRIMARY KEY (run, version));
CREATE TABLE rounds (run TEXT, round INTEGER, funnel TEXT, PRIMARY KEY (run, round));
"""
WAIT = "INSERT INTO waiting VALUES (?, ?, ?)"
DRAW = "INSERT INTO claims SELECT device, ?, ? FROM waiting"
EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
COUNT = "INSERT INTO contributions VALUES (?, ?, ?, ?, ?)"


class Floor(BareApp):
    """The app, with the round under way."""

    TABLES = TABLES

    def __init__(self, origin: str, file: Path, keys: list[str]) -> None:
        super().__init__(origin, file, keys)
        self._model = np.zeros(16, np.float32)
        self._version, self._seq, self._link = 0, 0, ""
        self._begin()

    def _begin(self) -> None:
        self._content = self._model.tobytes()
        self._digest = hashlib.sha256(self._content).hexdigest()
        self._come: dict[str, asyncio.Future[bytes]] = {}
        self._sum, self._weight, self._reported = np.zeros_like(self._model, np.float64), 0, 0

    @property
    def _round(self) -> int:
        return self._version + 1

    def _event(self, kind: str, body: str) -> Statement:
        """Of the log, whose events name each other by a hash."""
        self._seq += 1
        self._link = hashlib.sha256(f"{self._link}{kind}{body}".encode()).hexdigest()
        return EVENT, (RUN, self._seq, time.time(), kind, self._round, body, self._link)

    async def check_in(self, request: Request) -> Response:
        key, body = await self._body(request)
        json.loads(body)
        answer = self._come[key] = asyncio.get_running_loop().create_future()
        await self._durable((WAIT, (key, time.time(), body.decode())))
        if len(self._come) == len(self._keys) and all(not one.done() for one in self._come.values()):
            await self._draw()
        return json_answer(await answer)

    async def _draw(self) -> None:
        devices, number = list(self._come), self._round
        come, self._come = self._come, {}
        drawn = self._event("Drawn", json.dumps(devices))
        await self._durable((DRAW, (RUN, number)), ("DELETE FROM waiting", ()), drawn)
        for device, future in come.items():
            checkpoint = {"version": self._version, "digest": self._digest, "bytes": len(self._content)}
            offer = {"kind": "assignment", "run": RUN, "round": number, "attempt": 0, "device": device}
            future.set_result(json.dumps({**offer, "checkpoint": checkpoint}).encode())

    async def checkpoint(self, request: Request) -> Response:
        await self._body(request)
        if request.path_params["digest"] != self._digest:
            return Response(status_code=404)
        return Response(self._content, media_type="application/vnd.safetensors")

    async def started(self, request: Request) -> Response:
        key, body = await self._body(request)
        json.loads(body)
        await self._durable(self._event("Started", json.dumps({"device": key})))
        return json_answer(b"{}")

    async def update(self, request: Request) -> Response:
        key, body = await self._body(request)
        length = int.from_bytes(body[:8], "little")
        report = json.loads(json.loads(body[8 : 8 + length])["__metadata__"]["quorate.report"])
        values = np.frombuffer(body[8 + length :], np.float32)
        if not np.isfinite(values).all():
            raise ValueError("these are no numbers")
        digest, weight = hashlib.sha256(body).hexdigest(), int(report["examples"])
        event = self._event("Reported", json.dumps({"device": key, "digest": digest, "report": report}))
        counted = (COUNT, (RUN, self._round, key, digest, weight))
        await self._durable(("INSERT INTO updates VALUES (?, ?)", (digest, body)), event, counted)
        self._sum += weight * values.astype(np.float64)
        self._weight += weight
        self._reported += 1
        if self._reported == len(self._keys):
            await self._commit()
        receipt = {"run": RUN, "round": report["round"], "device": key, "digest": digest, "weight": weight}
        return json_answer(json.dumps(receipt).encode())

    async def _commit(self) -> None:
        self._model = (self._model + self._sum / self._weight).astype(np.float32)
        content = self._model.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        await self._durable(
            ("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", (RUN, self._round, digest, content)),
            ("INSERT INTO rounds VALUES (?, ?, ?)", (RUN, self._round, json.dumps({"reported": self._reported}))),
            self._event("Committed", json.dumps({"digest": digest})),
            ("DELETE FROM claims", ()),
            ("DELETE FROM updates", ()),
        )
        self._version += 1
        self._begin()

    async def run(self, request: Request) -> Response:
        return json_answer(json.dumps({"version": self._version}).encode())

    def app(self) -> FastAPI:
        """The app, with the paths of the protocol."""
        app = FastAPI(openapi_url=None)
        for method, path, endpoint in (
            ("GET", Route.CHECKPOINT, self.checkpoint),
            ("POST", Route.CHECK_IN, self.check_in),
            ("POST", Route.STARTED, self.started),
            ("PUT", Route.UPDATE, self.update),
            ("GET", Route.RUN, self.run),
        ):
            app.add_route(path, endpoint, methods=[method])
        return app


def main() -> None:
    folder, keys = map(Path, sys.argv[1:])
    serve(lambda origin: Floor(origin, folder / "floor.sqlite3", json.loads(keys.read_text())).app())


if __name__ == "__main__":
    main()
