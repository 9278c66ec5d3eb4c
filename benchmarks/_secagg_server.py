"""The server at the end of a secure attempt: the coordinator's own code, over blobs in a folder.

It performs the engine's action ``Open``: revealed shares and masked vectors are read from blobs, every secret is
rebuilt and checked, the sum is unmasked, packed and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from tempfile import TemporaryDirectory
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import numpy as np

from benchmarks._secagg_crowd import Crowd
from client_sdk.secagg.lanes import unpack
from client_sdk.secagg.statement import SIGNATURE_BYTES
from coordinator.blobs import FileBlobs
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.secure.state import SecureRound
from coordinator.secure.attempt import Attempts
from coordinator.secure.blob_formats import message_bytes, sum_of
from coordinator.secure.performing import SecureWork, numbers_of


class Server:
    """A coordinator that has t shares of every secret, at which the engine returns ``Open``: in a complete graph, t
    survivors have revealed theirs. A context manager, which deletes its blobs at the end."""

    def __init__(self, crowd: Crowd, gone: Sequence[int], workers: int = 1) -> None:
        self.crowd, self.gone = crowd, gone
        self._folder = TemporaryDirectory(prefix="quorate-benchmark-")
        self.blobs = FileBlobs(self._folder.name, durable=False)
        self.wanted = np.zeros(crowd.header.lanes, np.int64)
        survivors = crowd.survivors(gone)
        names = [crowd.cohort.device(place) for place in survivors.places]
        masked = dict(zip(names, map(self._put, crowd.vectors(gone, self.wanted)), strict=True))
        bodies = crowd.revealed(survivors)[: crowd.cohort.parameters.threshold]
        revealed = dict(zip(names, map(self._put, bodies), strict=False))
        order = tuple(crowd.cohort.device(place) for place in range(crowd.n))
        secure = SecureRound(
            header=crowd.header.encoded.hex(),
            roster=self.blobs.put(crowd.cohort.roster.encoded),
            groups=(numbers_of(crowd.cohort),),
            opening=True,
            shared=dict.fromkeys(order, ""),
            masked=masked,
            revealed=revealed,
        )
        current = SimpleNamespace(number=1, attempt=0, phase="unmasking", secure=secure)
        self.state: Any = SimpleNamespace(round_number=1, phase="unmasking", secure=secure, current=current)
        self.known: Any = self.state
        self.digest = bytes(32)
        self.recent: Any = self.state
        self.events: list[ev.Event | None] = []
        attempts = Attempts(self.blobs, self.short_messages)
        attempts.cache(secure.header, secure.roster, [crowd.cohort])
        unused: Any = None
        self._work = SecureWork(self, self.blobs, unused, unused, attempts, workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def _put(self, body: bytes) -> str:
        """Stores a message as the coordinator does, with an empty signature, since it was checked on arrival."""
        return self.blobs.put(message_bytes(body, bytes(SIGNATURE_BYTES)))

    def short_messages(self, digests: Collection[str]) -> dict[str, bytes]:
        """All messages are blobs here."""
        return {}

    def submit(self, make: Any) -> tuple[()]:
        """Takes the place of a run's log: stores the last event."""
        self.events = [make(self.state, 0.0)]
        return ()

    def enter(self, make: Any, short: object = None) -> Callable[[], tuple[()]]:
        return lambda: self.submit(make)

    def open(self) -> None:
        """Performs the action."""
        self._work.perform(fx.Open(round=1, attempt=0))

    def require_right(self) -> None:
        """SystemExit unless the last opened sum is the survivors' integer sum."""
        (event,) = self.events
        total = None
        if isinstance(event, ev.Opened):
            lanes, bits = self.crowd.header.lanes, self.crowd.cohort.roster.lane_bits
            with self.blobs.open(event.digest) as file:
                total = unpack(sum_of(file.read()), lanes, bits)
        if total is None or not np.array_equal(total, self.wanted):
            raise SystemExit("the unmasked sum is not the sum of the inputs: wrong results are not reported")
