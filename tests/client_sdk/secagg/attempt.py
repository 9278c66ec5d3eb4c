"""One attempt of secure aggregation played by hand, without any state machine: what tests build their cases from.

Everything is a function of a seed, so the bytes of every message can be frozen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from client_sdk.credentials.certificate import RevocationList, certify, sign_revocations
from client_sdk.credentials.identity_keys import TrustedAuthority, key_id
from client_sdk.identity import DeviceKey
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.device import coefficients
from client_sdk.secagg.header import AttemptHeader, GraphRule
from client_sdk.secagg.lanes import Lanes, cut, lane_dtype, pack, unpack
from client_sdk.secagg.masks import MaskedInput, Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.opening import rebuild_mask_key, rebuild_self_mask
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import (
    AttemptSecrets,
    MaskingCohort,
    Roster,
    RosterEntry,
    Vouching,
    join,
    sign_advertisement,
    vouched_by,
)
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair, unseal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import GONE, SURVIVED, Proof, RevealedShares, Survivors

FOREVER = 4_000_000_000
STRICT = GraphRule(profile="strict")


def entropy(seed: object) -> Callable[[int], bytes]:
    """Bytes that look random and depend on the seed alone: SHAKE-256 over a counter."""
    state = {"calls": 0}

    def draw(length: int) -> bytes:
        state["calls"] += 1
        return hashlib.shake_256(f"{seed!r} {state['calls']}".encode()).digest(length)

    return draw


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def header(**changes: Any) -> AttemptHeader:
    """A small strict round, with these fields changed."""
    fields: dict[str, Any] = {
        "run": "run-1",
        "round": 9,
        "attempt": 0,
        "model": digest("model"),
        "plan": digest("plan"),
        "dimension": 37,
        "codec": "float32",
        "codec_version": 1,
        "codec_seed": bytes(32),
        "q": 16,
        "max_norm": 4.0,
        "max_abs": 1.0,
        "weight_cap": 1000,
        "rule": STRICT,
        "minimum_cohort": 3,
        "revocations": 2,
        "revocations_digest": Authority().revocations.digest,
        "expires_at": 1_800_000_000,
    }
    fields |= changes
    return AttemptHeader(**{"run_digest": digest(fields["run"]), **fields})


AUTHORITY_KEY = DeviceKey.create(entropy("authority"))


class Authority:
    """An authority that certifies every device and that a test tells whom to revoke. Its list has number 2."""

    def __init__(self) -> None:
        self.trusted = TrustedAuthority(bytes.fromhex(AUTHORITY_KEY.public_hex))
        self.revoked: set[str] = set()
        self._keys: dict[str, set[bytes]] = {}
        """Device -> ids of its certified keys."""

    def certify(self, device: str, identity: DeviceKey) -> bytes:
        public = bytes.fromhex(identity.public_hex)
        self._keys.setdefault(device, set()).add(key_id(public))
        made = certify(AUTHORITY_KEY, id=device, holder="device", public_key=public, not_before=0, not_after=FOREVER)
        return made.encoded

    @property
    def revocations(self) -> RevocationList:
        return _revocations(frozenset(key for device in self.revoked for key in self._keys.get(device, ())))

    def vouch(self, device: str, certificate: bytes) -> str:
        return _vouching(self.trusted, self.revocations)(device, certificate)


def numbered_list(counter: int, revoked: Collection[bytes] = (), next_update: int = FOREVER) -> RevocationList:
    """The authority's list of this number, which the headers of tests can name: see ``list_of``."""
    made = sign_revocations(AUTHORITY_KEY, counter=counter, issued=0, next_update=next_update, revoked=revoked)
    LISTS[made.digest] = made
    return made


LISTS: dict[bytes, RevocationList] = {}


def list_of(head: AttemptHeader) -> RevocationList | None:
    """The list that the header names, where the authority signed it."""
    return LISTS.get(head.revocations_digest)


@cache
def _revocations(revoked: frozenset[bytes]) -> RevocationList:
    return numbered_list(2, revoked)


@cache
def _vouching(authority: TrustedAuthority, revocations: RevocationList) -> Vouching:
    return vouched_by(authority, revocations, at=0)


@dataclass
class Player:
    """One device's half of the attempt, as far as it came."""

    device: str
    identity: DeviceKey
    secrets: AttemptSecrets
    place: int = -1
    held: dict[int, SharePair] = field(default_factory=dict)
    lanes: Lanes | None = None
    packed: bytes = b""


@dataclass
class Attempt:
    """All players, the server's view, and the messages by name."""

    header: AttemptHeader
    authority: Authority
    players: list[Player]
    cohort: MaskingCohort
    bundles: dict[int, Bundle] = field(default_factory=dict)


def opened(n: int, seed: object = 0, **changes: Any) -> Attempt:
    """Exchange 1: ``n`` devices have advertised, and all know one roster."""
    head, authority = header(**changes), Authority()
    players, entries = [], []
    for number in range(n):
        device = f"device-{number:04d}"
        identity = DeviceKey.create(entropy((seed, number, "identity")))
        secrets = AttemptSecrets.draw(entropy((seed, number, "attempt", head.attempt)))
        shown = secrets.advertisement(device)
        players.append(Player(device, identity, secrets))
        certificate = authority.certify(device, identity)
        entries.append(RosterEntry(shown, sign_advertisement(shown, head.digest, identity), certificate))
    roster = Roster.parse(Roster.of(head, entries[::-1]).encoded)
    cohort = join(head, roster, authority.vouch)
    for player in players:
        player.place = cohort.place_of(player.device)
    players.sort(key=lambda player: player.place)
    return Attempt(head, authority, players, cohort)


def share(attempt: Attempt, silent: Collection[int] = ()) -> None:
    """Exchange 2: every device but the silent ones shares its two secrets, and holders unseal what is theirs."""
    cohort = attempt.cohort
    for dealer in attempt.players:
        if dealer.place in silent:
            continue
        holders = cohort.graph.holders(dealer.place)
        dealing, t = dealer.secrets.dealing, cohort.parameters.threshold
        xs = [place + 1 for place in holders]
        pairs = dict(
            zip(
                holders,
                map(
                    SharePair,
                    split(dealer.secrets.self_mask, xs, t, coefficients(dealing, cohort.h, "self-mask")),
                    split(dealer.secrets.mask_key.private, xs, t, coefficients(dealing, cohort.h, "mask-key")),
                ),
                strict=True,
            )
        )
        rows, own = [], b""
        for place in holders:
            digests = pairs[place].digests(cohort.h, dealer.place, place)
            if place == dealer.place:
                dealer.held[place], own = pairs[place], digests
                continue
            agreed = dealer.secrets.share_key.agree(cohort.roster.entries[place].advertisement.share_key)
            ends = (dealer.place, dealer.device), (place, cohort.device(place))
            rows.append((place, seal_pair(agreed, cohort.h, *ends, pairs[place]), digests))
        bundle = Bundle(dealer.place, tuple(rows), own)
        attempt.bundles[dealer.place] = Bundle.parse(bundle.encoded, cohort.n)
        attempt.bundles[dealer.place].require_for(holders)
    for dealer_place, bundle in attempt.bundles.items():
        shown = cohort.roster.entries[dealer_place].advertisement
        for place, sealed_pair, digests in bundle.rows:
            holder = attempt.players[place]
            agreed = holder.secrets.share_key.agree(shown.share_key)
            ends = (dealer_place, shown.device), (place, holder.device)
            holder.held[dealer_place] = unseal_pair(agreed, cohort.h, *ends, sealed_pair)
            holder.held[dealer_place].require_dealt(cohort.h, dealer_place, place, digests)


def mask(attempt: Attempt, values: np.ndarray[Any, Any], weights: list[int], silent: Collection[int] = ()) -> None:
    """Exchange 3: every device that shared masks its row of ``values`` (n, dimension) with all neighbours that did."""
    cohort, head = attempt.cohort, attempt.header
    bits = cohort.roster.lane_bits
    masker = Masker(bits, 4096)
    for player in attempt.players:
        if player.place in silent or player.place not in attempt.bundles:
            continue
        key = rounding_key(digest(player.device), head.digest)
        row = values[player.place].astype(np.float32)
        player.lanes = head.quantizer.lanes(row, weights[player.place], bits, key)
        vector = player.lanes.copy()
        masker.apply(vector, self_seed(player.secrets.self_mask, cohort.h, player.place), 1)
        for peer in cohort.graph.neighbours(player.place):
            if peer in attempt.bundles:
                agreed = player.secrets.mask_key.agree(cohort.roster.entries[peer].advertisement.mask_key)
                seed = pair_seed(agreed, cohort.h, player.place, peer)
                masker.apply(vector, seed, pair_sign(player.place, peer))
        cut(vector, bits)
        player.packed = pack(vector, bits)
        answer = MaskedInput.of(player.place, head.lanes, bits, player.packed)
        assert MaskedInput.parse(answer.encoded) == answer


def agree(attempt: Attempt) -> tuple[Survivors, Proof]:
    """Exchange 4: all whose masked vectors are there sign the list of them."""
    cohort = attempt.cohort
    survivors = Survivors(tuple(player.place for player in attempt.players if player.packed))
    signatures = tuple(
        (place, signed(attempt.players[place].identity, cohort.h, "survivors", survivors.encoded))
        for place in survivors.places
    )
    return Survivors.parse(survivors.encoded, cohort.n), Proof.parse(Proof(signatures).encoded, cohort.n)


def unmask(attempt: Attempt, survivors: Survivors, silent: Collection[int] = ()) -> Lanes:
    """Exchange 5 and the server's work: the sum of the survivors' lanes, out of masked vectors and revealed shares."""
    cohort, head = attempt.cohort, attempt.header
    bits, threshold = cohort.roster.lane_bits, cohort.parameters.threshold
    revealed: dict[int, dict[int, bytes]] = {}
    for place in survivors.places:
        if place in silent:
            continue
        message = RevealedShares.of(place, attempt.players[place].held, survivors)
        for dealer, kind, piece in RevealedShares.parse(message.encoded, survivors, cohort.n).shares:
            assert kind == (SURVIVED if dealer in survivors.members else GONE)
            revealed.setdefault(dealer, {})[place + 1] = piece
    total = np.zeros(head.lanes, lane_dtype(bits))
    masker = Masker(bits, 4096)
    for place in survivors.places:
        total += unpack(attempt.players[place].packed, head.lanes, bits)
        secret = rebuild_self_mask(revealed[place], threshold, cohort.roster.entries[place].advertisement)
        masker.apply(total, self_seed(secret, cohort.h, place), -1)
    for place in attempt.bundles:
        if place in survivors.members:
            continue
        shown = cohort.roster.entries[place].advertisement
        key = AgreementKey(rebuild_mask_key(revealed[place], threshold, shown))
        for peer in cohort.graph.neighbours(place):
            if peer in survivors.members:
                agreed = key.agree(cohort.roster.entries[peer].advertisement.mask_key)
                masker.apply(total, pair_seed(agreed, cohort.h, place, peer), pair_sign(place, peer))
    cut(total, bits)
    return total


def changed(head: AttemptHeader, **changes: Any) -> AttemptHeader:
    """The header with some fields changed; of another run where it is given another name."""
    if "run" in changes:
        changes = {"run_digest": digest(changes["run"]), **changes}
    return replace(head, **changes)


def expand(seed: bytes, count: int, bits: int) -> Lanes:
    """The mask of ``seed`` alone: ``count`` lanes below 2^bits."""
    lanes = np.zeros(count, lane_dtype(bits))
    Masker(bits).apply(lanes, seed, 1)
    return lanes & lanes.dtype.type((1 << bits) - 1)


def integer_sum(attempt: Attempt, survivors: Survivors) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The survivors' values before any mask, added as integers."""
    rows = [attempt.players[place].lanes for place in survivors.places]
    total: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.sum(
        [row.astype(np.uint64) for row in rows if row is not None], axis=0
    )
    return total


def lying(message: RevealedShares, about: int) -> RevealedShares:
    """This message with other bytes for each share of the secrets of ``about``."""
    shares = tuple(
        (dealer, kind, entropy((message.place, dealer))(32).rjust(33, b"\0") if dealer == about else piece)
        for dealer, kind, piece in message.shares
    )
    return replace(message, shares=shares)
