"""Reads the attempt under way from the blobs that the engine's state names, as the protocol's objects, checked once.

The attempt that was read last is cached, since hundreds of messages of one attempt follow each other. A stored roster
was vouched for when it was made (``performing``), and the devices check it by its header's revocation list. It is read
without asking the authority again, so that all replicas answer alike, also after a revocation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import MaskingCohort, Roster, rejoin
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.survivors import Survivors
from coordinator.blobs import Blobs
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState
from coordinator.secure.blob_formats import body_of
from coordinator.secure.routing import DealtShares, proof

ReadShort = Callable[[Collection[str]], Mapping[str, bytes]]
"""Reads messages that are stored beside their events, see ``SecureRun.short_messages``."""
_AT_ONCE = 64
"""Messages that are in memory at the same time while many are read."""


@dataclass(frozen=True)
class Attempt:
    """A cohort, and the place of each device in it."""

    cohort: MaskingCohort
    _survivors: dict[str, tuple[Mapping[str, str], Survivors]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Device id -> place."""
        return {self.cohort.device(place): place for place in range(self.cohort.n)}

    def places_of(self, devices: Mapping[str, str]) -> tuple[int, ...]:
        """The places of the devices named in one of the state's mappings, ascending."""
        return tuple(sorted(self.places[device] for device in devices))

    def lacks(self, secure: SecureRound) -> Mapping[int, frozenset[int]]:
        """Place -> places of the dealers whose pair that device does not hold, since they are out."""
        return {
            self.places[holder]: frozenset(self.places[dealer] for dealer in dealers)
            for holder, dealers in secure.lacks.items()
        }

    def sharers(self, secure: SecureRound) -> frozenset[int]:
        """The places whose shares are delivered: final once the phase of sharing is over."""
        return frozenset(self.places_of(secure.shared))

    def survivors(self, secure: SecureRound) -> Survivors:
        """The devices whose masked vectors have arrived: final once the phase of masking is over. The list that was
        made last is cached, since every later message is compared with the same one."""
        last = self._survivors.get("last")
        if last is None or last[0] is not secure.masked:
            last = self._survivors["last"] = (secure.masked, Survivors(self.places_of(secure.masked)))
        return last[1]


class Attempts:
    """Reads attempts of one run. Safe from several threads."""

    def __init__(self, blobs: Blobs, short: ReadShort) -> None:
        self._blobs, self._short = blobs, short
        self._lock = threading.Lock()
        self._header: tuple[str, AttemptHeader] | None = None
        self._last: tuple[tuple[str, str], Attempt] | None = None
        self._dealt: tuple[str, DealtShares] | None = None
        self._signatures: tuple[str, dict[str, bytes]] = ("", {})
        self._proof: tuple[tuple[str, Mapping[str, str]], bytes] | None = None

    def header(self, secure: SecureRound) -> AttemptHeader:
        """The header of the attempt."""
        last = self._header
        if last is None or last[0] != secure.header:
            last = self._header = (secure.header, AttemptHeader.parse(bytes.fromhex(secure.header)))
        return last[1]

    def read(self, secure: SecureRound) -> Attempt:
        """The attempt, once its roster is made. Its devices were vouched for when it was: whom the authority revokes
        later stays in it, at every replica. SecaggError, BlobError."""
        key = (secure.header, secure.roster)
        with self._lock:
            if self._last is None or self._last[0] != key:
                roster = Roster.parse(self.bytes_of(secure.roster))
                self._last = (key, Attempt(rejoin(self.header(secure), roster)))
            return self._last[1]

    def dealt(self, secure: SecureRound) -> DealtShares:
        """All shares that were dealt, by holder, once the phase of sharing is over."""
        attempt = self.read(secure)
        with self._lock:
            if self._dealt is None or self._dealt[0] != secure.roster:
                self._dealt = None
                self._dealt = (secure.roster, DealtShares(attempt.cohort.h, self._bundles(attempt, secure)))
            return self._dealt[1]

    def proof(self, secure: SecureRound) -> bytes:
        """The proof for devices: the signatures of the survivor list that have arrived so far."""
        attempt = self.read(secure)
        key = (secure.roster, secure.signed)
        with self._lock:
            if self._proof is None or self._proof[0] != key:
                places, known = attempt.places, self._signatures_of(secure)
                signed = ((places[device], known[digest]) for device, digest in secure.signed.items())
                self._proof = (key, proof(signed).encoded)
            return self._proof[1]

    def forget(self) -> None:
        """Free all memory: the round has ended."""
        with self._lock:
            self._last = self._dealt = self._proof = None
            self._signatures = ("", {})

    def free(self, state: RunState) -> None:
        """Free all memory where no round is under way in this state, whichever replica has ended it."""
        if state.secure is None or state.phase == "idle":
            self.forget()

    def cache(self, header: str, roster: str, cohort: MaskingCohort) -> None:
        """Cache a cohort that was just made, so that it is not read again."""
        with self._lock:
            self._last = ((header, roster), Attempt(cohort))

    def bytes_of(self, digest: str) -> bytes:
        """A blob's bytes. BlobError."""
        with self._blobs.open(digest) as file:
            return file.read()

    def messages(self, digests: Iterable[str]) -> Iterator[bytes]:
        """The bytes of messages, in order: of short ones beside their events, else of blobs. BlobError."""
        left = iter(digests)
        while wanted := list(islice(left, _AT_ONCE)):
            short = self._short(wanted)
            for digest in wanted:
                content = short.get(digest)
                yield self.bytes_of(digest) if content is None else content

    def _signatures_of(self, secure: SecureRound) -> dict[str, bytes]:
        """The signatures of the list that have arrived, by digest: each is read once. The caller holds the lock."""
        if self._signatures[0] != secure.roster:
            self._signatures = (secure.roster, {})
        known = self._signatures[1]
        new = [digest for digest in secure.signed.values() if digest not in known]
        known.update(zip(new, self.messages(new), strict=True))
        return known

    def _bundles(self, attempt: Attempt, secure: SecureRound) -> Iterator[Bundle]:
        """The sharers' bundles, one after another."""
        for message in self.messages(secure.shared.values()):
            yield Bundle.parse(body_of(message), attempt.cohort.n)
