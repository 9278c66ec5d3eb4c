"""The inputs of secure benchmarks: keys, rosters, shares and masked vectors of a cohort of devices.

Every message of peers is made before the measurement, by the code that devices run. One shortcut: masks between two
devices that both survive cancel in the sum, and the server never computes them, so ``vectors`` leaves them out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from client_sdk.credentials.certificate import certify, sign_revocations
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.identity import DeviceKey, Entropy
from client_sdk.secagg import roster as rosters
from client_sdk.secagg.actions import AttemptReply, DeviceContribution, Keep, ServerAnswer, Transmit
from client_sdk.secagg.consent import Expected, SecurePolicy
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.header import AttemptHeader, GraphRule
from client_sdk.secagg.lanes import Lanes, cut, pack, unpack
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import (
    AttemptSecrets,
    MaskingCohort,
    Roster,
    RosterEntry,
    Vouching,
    join_all,
    sign_advertisement,
    vouched_by,
)
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, RevealedShares, Survivors
from client_sdk.tensors.floats import Float32

STRICT = GraphRule(profile="strict")
FAST = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)
"""At n = 300: 110 neighbours, 71 shares, 256 signers."""
WEIGHT_CAP = 1000
EXPIRES = 2_000_000_000
AT = EXPIRES - 3600
AUTHORITY = DeviceKey.create()
REVOKED = sign_revocations(AUTHORITY, counter=1, issued=AT, next_update=EXPIRES, revoked=())


def header_of(rule: GraphRule, dimension: int) -> AttemptHeader:
    """The header of a round of 16-bit values with masks of AES-256-CTR."""
    return AttemptHeader(
        run="bench",
        round=1,
        attempt=0,
        run_digest=bytes(32),
        model=bytes(32),
        plan=bytes(32),
        dimension=dimension,
        codec="float32",
        codec_version=1,
        codec_seed=bytes(32),
        q=16,
        max_norm=10.0,
        max_abs=0.1,
        weight_cap=WEIGHT_CAP,
        rule=rule,
        minimum_cohort=64,
        revocations=REVOKED.counter,
        revocations_digest=REVOKED.digest,
        expires_at=EXPIRES,
    )


@dataclass
class Crowd:
    """``n`` devices of one attempt, by their place in the roster; of several groups, those of the first alone, once the
    roster is made."""

    n: int
    header: AttemptHeader
    identities: list[DeviceKey] = field(default_factory=list)
    certificates: list[bytes] = field(default_factory=list)
    secrets: list[AttemptSecrets] = field(default_factory=list)
    held: list[dict[int, SharePair]] = field(default_factory=list)
    """By holder: dealer -> pair."""
    roster: Roster = field(init=False)
    cohort: MaskingCohort = field(init=False)
    values: Float32 = field(init=False)
    """The update of every device (float32, ``dimension`` values); weights differ."""

    def __post_init__(self) -> None:
        entries = []
        for place in range(self.n):
            identity, secrets = DeviceKey.create(), AttemptSecrets.draw(os.urandom)
            self.identities.append(identity)
            self.secrets.append(secrets)
            public = bytes.fromhex(identity.public_hex)
            made = certify(
                AUTHORITY, id=_name(place), holder="device", public_key=public, not_before=AT, not_after=EXPIRES + 1
            )
            self.certificates.append(made.encoded)
            shown = secrets.advertisement(_name(place))
            signature = sign_advertisement(shown, self.header.digest, identity)
            entries.append(RosterEntry(shown, signature, made.encoded))
        self.roster = Roster.of(self.header, entries)
        self.cohort = join_all(self.header, self.roster, self.vouched)[0]
        mine = [int(self.cohort.device(place)[-4:]) for place in range(self.cohort.n)]
        self.identities = [self.identities[place] for place in mine]
        self.certificates = [self.certificates[place] for place in mine]
        self.secrets = [self.secrets[place] for place in mine]
        self.n = self.cohort.n
        rng = np.random.default_rng(0)
        self.values = rng.standard_normal(self.header.dimension, np.float32) * np.float32(0.003)

    @cached_property
    def vouched(self) -> Vouching:
        """The authority's word on the devices' identities. A certificate is verified once, in an earlier round."""
        return vouched_by(TrustedAuthority(bytes.fromhex(AUTHORITY.public_hex)), REVOKED, AT, until=EXPIRES)

    def share(self) -> None:
        """Exchange 2, among all."""
        graph, threshold = self.cohort.graph, self.cohort.parameters.threshold
        self.held = [{} for _ in range(self.n)]
        for dealer, secrets in enumerate(self.secrets):
            holders = graph.holders(dealer)
            xs = [holder + 1 for holder in holders]
            seeds = split(secrets.self_mask, xs, threshold, os.urandom)
            keys = split(secrets.mask_key.private, xs, threshold, os.urandom)
            for holder, seed, key in zip(holders, seeds, keys, strict=True):
                self.held[holder][dealer] = SharePair(seed, key)

    def lanes(self, place: int) -> Lanes:
        """The integers that the device at ``place`` contributes."""
        key = rounding_key(_rounding(place), self.header.digest)
        bits = self.cohort.roster.lane_bits
        return self.header.quantizer.lanes(self.values, _weight(place), bits, key)

    def survivors(self, gone: Sequence[int] = ()) -> Survivors:
        """All but ``gone``."""
        return Survivors(tuple(place for place in range(self.n) if place not in set(gone)))

    def proof(self, survivors: Survivors) -> Proof:
        """All survivors' signatures."""
        h, body = self.cohort.h, survivors.encoded
        return Proof(tuple((place, signed(self.identities[place], h, "survivors", body)) for place in survivors.places))

    def pair_mask(self, place: int, peer: int) -> bytes:
        """The seed of the mask between two devices."""
        agreed = self.secrets[place].mask_key.agree(self.secrets[peer].mask_key.public)
        return pair_seed(agreed, self.cohort.h, place, peer)

    def vectors(self, gone: Sequence[int], total: Any) -> Iterator[bytes]:
        """Yields the survivors' packed masked vectors in order, and adds their integers to ``total`` (int64)."""
        bits = self.cohort.roster.lane_bits
        masker = Masker(bits)
        absent = set(gone)
        for place in self.survivors(gone).places:
            vector = self.lanes(place)
            total += vector
            masker.apply(vector, self_seed(self.secrets[place].self_mask, self.cohort.h, place), 1)
            for peer in absent.intersection(self.cohort.graph.neighbours(place)):
                masker.apply(vector, self.pair_mask(place, peer), pair_sign(place, peer))
            cut(vector, bits)
            yield pack(vector, bits)

    def revealed(self, survivors: Survivors) -> list[bytes]:
        """Exchange 5, all survivors' bodies."""
        return [RevealedShares.of(place, self.held[place], survivors).encoded for place in survivors.places]


class OneDevice:
    """The device at ``place``, with all answers of the coordinator; ``play`` is its whole attempt."""

    def __init__(self, crowd: Crowd, place: int | None = None) -> None:
        self.crowd, self.place = crowd, crowd.n // 2 if place is None else place
        place = self.place
        survivors = crowd.survivors()
        self.answers = {
            "advertise": crowd.roster.encoded,
            "share": self._delivery().encoded,
            "mask": survivors.encoded,
            "survivors": crowd.proof(survivors).encoded,
            "unmask": b"",
        }
        header = crowd.header
        self.expected = Expected(
            run=header.run,
            round=header.round,
            model=header.model,
            tensors=header.model,
            plan=header.plan,
            terms=header.terms,
            learner="bench:learner",
            dimension=header.dimension,
            codec=header.codec,
            codec_version=header.codec_version,
            revocations=REVOKED,
        )
        self.contribution = DeviceContribution(
            values=crowd.values, weight=_weight(place), rounding_secret=_rounding(place)
        )

    def play(self) -> dict[str, Transmit]:
        """Plays the attempt; returns the device's messages by stage. Every state is encoded, as for storage."""
        crowd, place = self.crowd, self.place
        device = SecureDevice(
            device=crowd.cohort.device(place),
            certificate=crowd.certificates[place],
            signer=crowd.identities[place],
            entropy=_same_secrets(crowd.secrets[place]),
            authority=TrustedAuthority(bytes.fromhex(AUTHORITY.public_hex)),
            policy=SecurePolicy(longest_life_s=float(EXPIRES)),
        )
        half = device.attempt(crowd.header.encoded, self.expected, self.contribution, float(AT))
        messages: dict[str, Transmit] = {}
        memory = Memory()
        reply: AttemptReply = None
        while True:
            try:
                action = half.send(reply)
            except StopIteration:
                return messages
            if isinstance(action, Keep):
                reply = memory = action.change(memory)
                _ = memory.encoded
            else:
                messages[action.stage] = action
                reply = ServerAnswer(float(AT), self.answers[action.stage])

    def play_cold(self) -> dict[str, Transmit]:
        """Plays the round as a process does that has checked no certificate yet."""
        rosters._signed.cache_clear()
        return self.play()

    def require_right(self, messages: dict[str, Transmit]) -> None:
        """SystemExit unless the vector without masks is the device's input, and shares were dealt and revealed."""
        crowd, place, cohort = self.crowd, self.place, self.crowd.cohort
        bits = cohort.roster.lane_bits
        vector = unpack(messages["mask"].blob, crowd.header.lanes, bits)
        masker = Masker(bits)
        masker.apply(vector, self_seed(crowd.secrets[place].self_mask, cohort.h, place), -1)
        for peer in cohort.graph.neighbours(place):
            masker.apply(vector, crowd.pair_mask(peer, place), pair_sign(peer, place))
        cut(vector, bits)
        dealt = Bundle.parse(messages["share"].body, cohort.n).places
        revealed = RevealedShares.parse(messages["unmask"].body, crowd.survivors(), cohort.n).shares
        if not np.array_equal(vector, crowd.lanes(place)) or len(dealt) < cohort.parameters.threshold or not revealed:
            raise SystemExit("a device's messages are not right: wrong results are not reported")

    def _delivery(self) -> Bundle:
        crowd, place = self.crowd, self.place
        rows = []
        for dealer in crowd.cohort.graph.neighbours(place):
            agreed = crowd.secrets[dealer].share_key.agree(crowd.secrets[place].share_key.public)
            ends = (dealer, crowd.cohort.device(dealer)), (place, crowd.cohort.device(place))
            pair, h = crowd.held[place][dealer], crowd.cohort.h
            rows.append((dealer, seal_pair(agreed, h, *ends, pair), pair.digests(h, dealer, place)))
        return Bundle(place, tuple(rows))


def _same_secrets(secrets: AttemptSecrets) -> Entropy:
    """The system's entropy after five draws that return the secrets of the roster."""
    first = [secrets.share_key.private, secrets.mask_key.private, secrets.self_mask, secrets.nonce, secrets.dealing]

    def draw(length: int) -> bytes:
        return first.pop(0) if first else os.urandom(length)

    return draw


def _name(place: int) -> str:
    return f"device-{place:04d}"


def _weight(place: int) -> int:
    return 1 + 37 * place % WEIGHT_CAP


def _rounding(place: int) -> bytes:
    return place.to_bytes(32, "big")
