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
from client_sdk.secagg.roster import MaskingCohort, Roster, rejoin_all
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
    """The cohort of a group, and the place of each device in it."""

    cohort: MaskingCohort
    group: int = 0
    _survivors: dict[str, tuple[Mapping[str, str], Survivors]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Device id -> place."""
        return {self.cohort.device(place): place for place in range(self.cohort.n)}

    def places_of(self, devices: Mapping[str, str]) -> tuple[int, ...]:
        """The places of the group's devices that are named in one of the state's mappings, ascending."""
        return tuple(sorted(self.places[device] for device in self.mine(devices)))

    def mine(self, devices: Mapping[str, str]) -> dict[str, str]:
        """What one of the state's mappings has of the group's devices."""
        return {device: digest for device, digest in devices.items() if device in self.places}

    def lacks(self, secure: SecureRound) -> Mapping[int, frozenset[int]]:
        """Place -> places of the dealers whose pair that device does not hold, since they are out."""
        return {
            self.places[holder]: frozenset(self.places[dealer] for dealer in dealers)
            for holder, dealers in secure.lacks.items()
            if holder in self.places
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


Groups = tuple[Attempt, ...]


def _groups(cohorts: Iterable[MaskingCohort]) -> Groups:
    return tuple(Attempt(cohort, number) for number, cohort in enumerate(cohorts))


class Attempts:
    """Reads attempts of one run. Safe from several threads."""

    def __init__(self, blobs: Blobs, short: ReadShort) -> None:
        self._blobs, self._short = blobs, short
        self._lock = threading.Lock()
        self._header: tuple[str, AttemptHeader] | None = None
        self._last: tuple[tuple[str, str], Groups] | None = None
        self._dealt: tuple[str, dict[int, DealtShares]] = ("", {})
        self._signatures: tuple[str, dict[str, bytes]] = ("", {})
        self._proof: tuple[tuple[str, Mapping[str, str]], dict[int, bytes]] = ("", {}), {}

    def header(self, secure: SecureRound) -> AttemptHeader:
        """The header of the attempt."""
        last = self._header
        if last is None or last[0] != secure.header:
            last = self._header = (secure.header, AttemptHeader.parse(bytes.fromhex(secure.header)))
        return last[1]

    def groups(self, secure: SecureRound) -> Groups:
        """The attempt's groups by number, once its roster is made. Its devices were vouched for when it was: whom the
        authority revokes later stays in it, at every replica. SecaggError, BlobError."""
        key = (secure.header, secure.roster)
        with self._lock:
            if self._last is None or self._last[0] != key:
                roster = Roster.parse(self.bytes_of(secure.roster))
                self._last = (key, _groups(rejoin_all(self.header(secure), roster)))
            return self._last[1]

    def of(self, secure: SecureRound, device: str) -> Attempt:
        """The group of a device of the roster."""
        return next(group for group in self.groups(secure) if device in group.places)

    def dealt(self, secure: SecureRound, attempt: Attempt) -> DealtShares:
        """All shares that were dealt in a group, by holder, once the phase of sharing is over."""
        with self._lock:
            if self._dealt[0] != secure.roster:
                self._dealt = (secure.roster, {})
            known = self._dealt[1]
            if attempt.group not in known:
                known[attempt.group] = DealtShares(attempt.cohort.h, self._bundles(attempt, secure))
            return known[attempt.group]

    def proof(self, secure: SecureRound, attempt: Attempt) -> bytes:
        """The proof for a group's devices: the signatures of its survivor list that have arrived so far."""
        key = (secure.roster, secure.signed)
        with self._lock:
            if self._proof[0] != key:
                self._proof = (key, {})
            made = self._proof[1]
            if attempt.group not in made:
                places, known = attempt.places, self._signatures_of(secure)
                signed = ((places[device], known[digest]) for device, digest in attempt.mine(secure.signed).items())
                made[attempt.group] = proof(signed).encoded
            return made[attempt.group]

    def forget(self) -> None:
        """Free all memory: the round has ended."""
        with self._lock:
            self._last = None
            self._dealt, self._signatures, self._proof = ("", {}), ("", {}), (("", {}), {})

    def free(self, state: RunState) -> None:
        """Free all memory where no round is under way in this state, whichever replica has ended it."""
        if state.secure is None or state.phase == "idle":
            self.forget()

    def cache(self, header: str, roster: str, cohorts: Iterable[MaskingCohort]) -> None:
        """Cache groups that were just made, so that they are not read again."""
        with self._lock:
            self._last = ((header, roster), _groups(cohorts))

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
        """The bundles of a group's sharers, one after another."""
        for message in self.messages(attempt.mine(secure.shared).values()):
            yield Bundle.parse(body_of(message), attempt.cohort.n)
