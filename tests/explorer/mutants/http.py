"""Bugs that only the HTTP side has: held requests that are not woken, disconnections that nobody notices, an answer
before the body that it acknowledges is stored.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect

from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.protocol.devices import Receipt
from client_sdk.tensors import TensorError, read_header
from client_sdk.tensors.exact_sum import peak
from coordinator.runtime.signals import Signals
from coordinator.service import route, routes
from coordinator.service.route import Uploads
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("held-check-in-not-woken", "liveness", http=True, rates={}, replicas=1)
def _held_check_in_not_woken() -> Patches:
    """A signal does not cross into the event loop: a held check-in is answered when it reads again by itself."""
    return [(Signals, "_arrive", lambda self, loop: None)]


@mutant("disconnection-not-noticed", "draw", http=True, focus=("device-crash", "selecting"), replicas=1)
def _disconnection_not_noticed() -> Patches:
    """A device that disconnects while its check-in is held stays in the pool."""

    async def never(receive: Any) -> None:
        await asyncio.Event().wait()

    return [(routes, "until_gone", never)]


@mutant("answered-before-stored", "ack-durable", http=True)
def _answered_before_stored() -> Patches:
    """A device gets the receipt for its update when the body has arrived, and a thread stores it afterwards."""
    receive = Uploads.receive

    async def early(
        self: Uploads, request: Any, limit: int, finish: Any, caller: str | None = None, *, room: int = 0
    ) -> Any:
        path, service = request.path_params, self._service
        if not request.url.path.endswith("/update"):
            return await receive(self, request, limit, finish, caller, room=room)
        coordinator = service.coordinator
        key = RequestSignature.parse(request.scope["headers"]).key_id
        device = coordinator.core.store.device_by_key(key).device
        digest, data = await receive(self, request, limit, lambda spool: (spool.digest, spool.handle.read()), caller)

        def store() -> None:
            with coordinator.core.blobs.spool(limit) as spool:
                spool.write(data)
                finish(spool)

        async def later() -> None:
            with suppress(Exception):
                await service.work(store)

        request.scope["later"] = asyncio.get_running_loop().create_task(later())
        return Receipt(
            run=path["run"],
            round=int(path["round"]),
            attempt=int(path["attempt"]),
            device=device,
            digest=digest,
            weight=1,
        )

    return [(Uploads, "receive", early)]


@mutant("digest-not-compared", "receipt", http=True, focus=("corrupt", "collecting"), storm_s=60.0)
def _digest_not_compared() -> Patches:
    """Bytes that changed on the way are stored, though their sender has announced another digest."""
    return [(route, "announced_digest", lambda request: None)]


@mutant(
    "broken-off-body-summed",
    "counts-once",
    "named",
    "same-bits",
    http=True,
    focus=("truncate", "collecting"),
    replicas=1,
    storm_s=60.0,
)
def _broken_off_body_summed() -> Patches:
    """The values of an update are added as they arrive, and stay in the sum where its device disconnects."""
    receive = Uploads.receive

    async def adding(self: Uploads, request: Any, limit: int, *rest: Any, **more: Any) -> Any:
        begun, arrives = bytearray(), request.receive

        async def noted() -> Any:
            message = await arrives()
            begun.extend(message.get("body", b""))
            return message

        request._receive = noted
        try:
            return await receive(self, request, limit, *rest, **more)
        except ClientDisconnect:
            if request.url.path.endswith("/update"):
                begun.extend(bytes(int(request.headers["content-length"]) - len(begun)))
                await self._service.work(add, self._service.coordinator, request.path_params, bytes(begun))
            raise

    def add(coordinator: Any, path: dict[str, Any], body: bytes) -> None:
        sums, file = coordinator.core.aggregator(path["run"])._sums, io.BytesIO(body)
        with suppress(TensorError):
            blocks = list(sums._codec.blocks(file, read_header(file)))
            sums._sum_of(int(path["round"]), 0.0).total.add_blocks(blocks, 1, peak(blocks))

    return [(Uploads, "receive", adding)]
