"""Devices with their state machines, and a coordinator that a test controls: it collects what they say and
answers each as it likes.

The devices' memories are kept as bytes and parsed again before every start, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from client_sdk.identity import DeviceKey
from client_sdk.secagg.actions import AttemptReply, DeviceContribution, DevicePart, Keep, ServerAnswer, Transmit
from client_sdk.secagg.consent import Expected, SecurePolicy
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import Lanes, cut, lane_dtype, unpack
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.memory import Live, Memory
from client_sdk.secagg.opening import Opening, unmask
from client_sdk.secagg.roster import Advertisement, AttemptSecrets, MaskingCohort, Roster, RosterEntry, join
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import require_signed
from client_sdk.secagg.survivors import Proof, RevealedShares, Survivors
from tests.client_sdk.secagg.attempt import Authority, digest, entropy, list_of

LEARNER = "my_package:learner"
POLICY = SecurePolicy(smallest_cohort=3, rekey_pause_s=10, most_fast_tries=3, smallest_sigma=20, longest_life_s=2e9)


def expected(header: AttemptHeader) -> Expected:
    """What a device expects that was asked for just this."""
    return Expected(
        run=header.run,
        round=header.round,
        model=header.model,
        tensors=tensors_of(header.model),
        plan=header.plan,
        terms=header.terms,
        learner=LEARNER,
        dimension=header.dimension,
        codec=header.codec,
        codec_version=header.codec_version,
        codec_seed=header.codec_seed,
        revocations=list_of(header),
    )


def tensors_of(model: bytes) -> bytes:
    """The digest of the canonical tensors in the file of digest ``model``: these tests need no real checkpoint."""
    return digest(f"tensors of {model.hex()}")


@dataclass
class Member:
    """One device: who it is, what is on its disk, and its generator."""

    device: SecureDevice
    values: Any
    weight: int
    disk: bytes = field(default_factory=lambda: Memory().encoded)
    half: DevicePart | None = None
    outgoing: Transmit | None = None
    log: list[Transmit] = field(default_factory=list)
    """All that ever left the device."""
    talk: list[AttemptHeader | Transmit | bytes] = field(default_factory=list)
    """All that left the device, with what it was started for and what it received, in order."""
    drawn: dict[bytes, AttemptSecrets] = field(default_factory=dict)
    """Advertisement -> the secrets behind it: for a colluder, who knows its own."""
    crash: bool = False
    """Lose power after the next Keep: what it would have said is not said."""

    @property
    def memory(self) -> Memory:
        return Memory.parse(self.disk)

    def live(self, header: AttemptHeader) -> Live:
        """The attempt on this header's checkpoint, as it is on the disk."""
        return self.memory.live[tensors_of(header.model)]

    def start(self, header: AttemptHeader, at: float = 0.0, wants: Expected | None = None) -> Transmit | None:
        """A fresh process: what it remembers is what was kept."""
        put_in = DeviceContribution(values=self.values, weight=self.weight, rounding_secret=digest(self.device.device))
        self.half = self.device.attempt(header.encoded, wants or expected(header), put_in, at)
        self.talk.append(header)
        return self._on(None)

    def tell(self, body: bytes, at: float = 0.0) -> Transmit | None:
        """The coordinator's answer; what the device says next, None when it is through (or has crashed)."""
        self.talk.append(body)
        return self._on(ServerAnswer(at, body))

    def _on(self, answer: ServerAnswer | None) -> Transmit | None:
        assert self.half is not None
        self.outgoing = None
        reply: AttemptReply = answer
        try:
            action = self.half.send(reply)
            while isinstance(action, Keep):
                reply = self._kept(action)
                if reply is None:
                    return None
                action = self.half.send(reply)
        except StopIteration:
            return None
        self.outgoing = action
        self.log.append(action)
        self.talk.append(action)
        return action

    def _kept(self, action: Keep) -> Memory | None:
        """The memory after the change; None where the device lost power when it was stored."""
        newest = self.memory
        changed = action.change(newest)
        if changed is newest:
            return newest
        self.disk = changed.encoded
        self.drawn |= {live.advertised: live.secrets for live in changed.live.values() if live.secrets}
        if self.crash:
            self.crash, self.half = False, None
            return None
        return changed


def delivered(place: int, bundles: Iterable[Bundle]) -> Bundle:
    """What the owners of these bundles, ascending, sealed for the device at ``place``."""
    return Bundle(
        place,
        tuple((bundle.owner, *row[1:]) for bundle in bundles for row in bundle.rows if row[0] == place),
    )


def fleet(n: int, dimension: int = 5, policy: SecurePolicy = POLICY) -> tuple[list[Member], Authority]:
    """``n`` devices under one authority, each with a one-hot mark in its values."""
    authority, members = Authority(), []
    for number in range(n):
        name = f"device-{number:04d}"
        key = DeviceKey.create(entropy(("identity", number)))
        device = SecureDevice(
            device=name,
            certificate=authority.certify(name, key),
            signer=key,
            entropy=entropy(("secrets", number)),
            authority=authority.trusted,
            policy=policy,
        )
        values = np.full(dimension, 0.01 * number, np.float32)
        values[number % dimension] = 0.9
        members.append(Member(device, values, weight=10 * number + 10))
    return members, authority


@dataclass
class Coordinator:
    """An honest one, step by step; tests bend its answers."""

    header: AttemptHeader
    authority: Authority
    members: list[Member]
    roster: Roster | None = None
    bundles: dict[int, Bundle] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    opening: Opening | None = None

    _cohort: MaskingCohort | None = None

    @property
    def cohort(self) -> MaskingCohort:
        assert self.roster is not None
        if self._cohort is None or self._cohort.roster is not self.roster:
            self._cohort = join(self.header, self.roster, self.authority.vouch)
        return self._cohort

    def open(self, at: float = 0.0) -> bytes:
        """All advertise; the roster's bytes."""
        entries = []
        for member in self.members:
            message = member.start(self.header, at)
            assert message is not None
            assert message.stage == "advertise"
            entries.append(RosterEntry(Advertisement.parse(message.body), message.signature, message.blob))
        self.roster = Roster.of(self.header, entries)
        return self.roster.encoded

    def hear_share(self, place: int) -> None:
        self.bundles[place] = Bundle.parse(self._received(place, "share").body, len(self.members))

    def delivery(self, place: int, silent: tuple[int, ...] = ()) -> bytes:
        """What peers sealed for the device at ``place``."""
        chosen = [self.bundles[dealer] for dealer in sorted(self.bundles) if dealer not in silent]
        return delivered(place, chosen).encoded

    def hear_mask(self, place: int) -> None:
        self.vectors[place] = self._received(place, "mask").blob

    def survivors(self) -> Survivors:
        return Survivors(tuple(sorted(self.vectors)))

    def hear_survivors(self, place: int) -> None:
        self.signatures[place] = self._received(place, "survivors").signature

    def proof(self) -> bytes:
        return Proof(tuple(sorted(self.signatures.items()))).encoded

    def hear_unmask(self, place: int, survivors: Survivors) -> None:
        if self.opening is None:
            self.opening = Opening(self.cohort, survivors, self.bundles)
        self.opening.take(RevealedShares.parse(self._received(place, "unmask").body, survivors, len(self.members)))

    def unmasked(self, survivors: Survivors) -> Lanes:
        assert self.opening is not None
        assert self.opening.survivors == survivors
        opened = self.opening.open()
        assert opened.complete
        bits = self.cohort.roster.lane_bits
        total = np.zeros(self.header.lanes, lane_dtype(bits))
        for place in survivors.places:
            total += unpack(self.vectors[place], self.header.lanes, bits)
        unmask(total, self.opening.masks(opened.secrets), Masker(bits))
        cut(total, bits)
        return total

    def _received(self, place: int, stage: str) -> Transmit:
        message = self.members[place].outgoing
        assert message is not None
        assert message.stage == stage
        whose = f"device {place}"
        require_signed(
            self.cohort.identities[place], message.signature, self.cohort.h, message.stage, message.body, whose
        )
        return message


def until_masked(coordinator: Coordinator, silent: tuple[int, ...] = (), at: float = 0.0) -> Survivors:
    """Exchanges 1 to 3, honestly; the ``silent`` vanish after sharing."""
    roster = coordinator.open(at)
    n = len(coordinator.members)
    for place in range(n):
        coordinator.members[place].tell(roster, at)
        coordinator.hear_share(place)
    for place in range(n):
        if place not in silent:
            coordinator.members[place].tell(coordinator.delivery(place), at)
            coordinator.hear_mask(place)
    return coordinator.survivors()


def until_signed(coordinator: Coordinator, silent: tuple[int, ...] = ()) -> Survivors:
    """Exchanges 1 to 4, honestly."""
    survivors = until_masked(coordinator, silent)
    for place in survivors.places:
        coordinator.members[place].tell(survivors.encoded)
        coordinator.hear_survivors(place)
    return survivors


def finished(coordinator: Coordinator, survivors: Survivors) -> Lanes:
    """Exchange 5, and the sum."""
    for place in survivors.places:
        coordinator.members[place].tell(coordinator.proof())
        coordinator.hear_unmask(place, survivors)
        assert coordinator.members[place].tell(b"") is None
    return coordinator.unmasked(survivors)


def plain_sum(coordinator: Coordinator, survivors: Survivors) -> Lanes:
    """The survivors' lanes, unmasked, added as integers."""
    from client_sdk.secagg.quantize import rounding_key

    header = coordinator.header
    bits = coordinator.cohort.roster.lane_bits
    rows = []
    for place in survivors.places:
        member = coordinator.members[place]
        key = rounding_key(digest(member.device.device), header.digest)
        rows.append(header.quantizer.lanes(member.values, member.weight, bits, key))
    total: Lanes = np.sum(np.stack(rows).astype(np.uint64), axis=0).astype(lane_dtype(bits))
    return total
