"""The floor of the round without training does the work of a round, and lets nobody in who has not signed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from pathlib import Path

import numpy as np
from httpx2 import ASGITransport, AsyncClient, Response

from benchmarks._noop_floor import RUN, Floor
from client_sdk.http.exchange import RequestSigner
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Work
from client_sdk.protocol.names import Route
from client_sdk.update import Seconds, Update, encode_update

ORIGIN = "http://127.0.0.1:8470"


def test_a_round_of_the_floor_is_durable_and_its_model_is_the_mean(tmp_path: Path) -> None:
    keys = [DeviceKey.create() for _ in range(3)]
    floor = Floor(ORIGIN, tmp_path / "floor.sqlite3", [key.public_hex for key in keys])

    async def device(client: AsyncClient, key: DeviceKey, value: float) -> None:
        signer = RequestSigner(ORIGIN, time.time)
        signer.signer = key

        async def ask(method: str, path: str, body: bytes = b"") -> Response:
            headers = signer.headers(method, path, hashlib.sha256(body).digest())
            return (await client.request(method, path, content=body, headers=headers)).raise_for_status()

        work = (await ask("POST", Route.CHECK_IN, b'{"hold_s": 50}')).json()
        await ask("GET", Route.CHECKPOINT.format(digest=work["checkpoint"]["digest"]))
        await ask("POST", Route.STARTED.format(run=RUN, round=1), b"{}")
        update = Update({"x": np.full(16, value, np.float32)}, 100, work=Work(steps=1, steps_planned=1))
        body = encode_update(update, "float32@1", RUN, 1, 0, Seconds())
        path = Route.UPDATE.format(run=RUN, round=1, attempt=0)
        assert (await ask("PUT", path, body)).json()["digest"] == hashlib.sha256(body).hexdigest()

    async def play() -> None:
        async with AsyncClient(transport=ASGITransport(floor.app()), base_url=ORIGIN) as client:
            await asyncio.gather(
                *(device(client, key, value) for key, value in zip(keys, (1.0, 2.0, 6.0), strict=True))
            )
            assert (await client.get(Route.RUN.format(run=RUN))).json() == {"version": 1}

    asyncio.run(play())
    with sqlite3.connect(tmp_path / "floor.sqlite3") as database:
        ((content,),) = database.execute("SELECT content FROM checkpoints")
        assert np.frombuffer(content, np.float32).tolist() == [3.0] * 16
        kinds = dict(database.execute("SELECT kind, count(*) FROM events GROUP BY kind"))
        assert kinds == {"Drawn": 1, "Started": 3, "Reported": 3, "Committed": 1}
        assert json.loads(next(database.execute("SELECT funnel FROM rounds"))[0]) == {"reported": 3}
        assert [next(database.execute(f"SELECT count(*) FROM {name}"))[0] for name in ("contributions", "claims")] == [
            3,
            0,
        ]


def test_the_floor_refuses_another_body_another_key_and_a_replay(tmp_path: Path) -> None:
    key = DeviceKey.create()
    floor = Floor(ORIGIN, tmp_path / "floor.sqlite3", [key.public_hex])
    signer, path, body = RequestSigner(ORIGIN, time.time), Route.STARTED.format(run=RUN, round=1), b"{}"
    signer.signer = key
    signed = signer.headers("POST", path, hashlib.sha256(body).digest())
    other = RequestSigner(ORIGIN, time.time)
    other.signer = DeviceKey.create()
    stranger = other.headers("POST", path, hashlib.sha256(body).digest())

    async def statuses() -> list[int]:
        async with AsyncClient(
            transport=ASGITransport(floor.app(), raise_app_exceptions=False), base_url=ORIGIN
        ) as client:
            asked = [(signed, b"{ }"), (signed, body), (signed, body), (stranger, body)]
            return [(await client.post(path, content=sent, headers=headers)).status_code for headers, sent in asked]

    assert asyncio.run(statuses()) == [500, 200, 500, 500]
