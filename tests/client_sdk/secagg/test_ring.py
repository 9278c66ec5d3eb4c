"""A coordinator that cuts a ring with devices that are alive, and one that forges an entry of the roster.

The first has devices that are on the survivor list and are not asked to sign it. Around the ring stand twelve devices
whose sum it is after (the core), and at each end of them a stretch of six, half as many as a device has neighbours, in
which two collude, two are gone, and two, the edge, are alive. The edge is shown no share of anybody beyond, so it masks
with nobody there; it would refuse the list, and is not asked. Those beyond are shown everything: they sign, and what
they reveal of the edge makes up for what the edge does not reveal. Their own vectors are lost; what the coordinator
gets is the sum of core and edge.

No device has more than two colluding neighbours of the four that it takes to betray it, and four are gone, as many as
the rule allows. What stops it is that a device of a ring reveals nothing until all but so many have signed.

The second shows keys of its own under the id of a device that does not collude. Only the neighbours check the signature
there: they and the device itself are then among those that have not signed (docs/secure-aggregation-proofs.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from client_sdk.secagg import header as header_module
from client_sdk.secagg import roster as roster_module
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.graph import ring_order
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.lanes import cut, lane_dtype, unpack
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.opening import rebuild_mask_key, rebuild_self_mask
from client_sdk.secagg.parameters import Parameters, fast
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import AttemptSecrets, Roster, rejoin
from client_sdk.secagg.shares import SharePair, unseal_pair
from client_sdk.secagg.survivors import GONE, Proof, RevealedShares, Survivors
from tests.client_sdk.secagg.attempt import digest, entropy, header
from tests.client_sdk.secagg.fleet import POLICY, Coordinator, fleet

N = 40
RULE = GraphRule(profile="fast", drop=4, corrupt_millionths=100_000, sigma=1, eta=20)
COLLUDING = 4

# By place around the ring.
CORE = range(6, 18)
FALLEN = (0, 1, 22, 23)
HELPERS = (2, 4, 19, 21)
EDGE = (3, 5, 18, 20)
BEYOND = range(24, 40)


class Cut:
    """The attack, as far as devices let it come."""

    def __init__(self) -> None:
        head = header(rule=RULE, dimension=5, minimum_cohort=3)
        self.members, authority = fleet(N, policy=POLICY.changed(smallest_sigma=1))
        self.coordinator = Coordinator(head, authority, self.members)
        roster = self.coordinator.open()
        self.cohort = cohort = self.coordinator.cohort
        order = ring_order([entry.advertisement.nonce for entry in cohort.roster.entries])
        self.core, self.fallen, self.helpers, self.edge, self.beyond = (
            {order[at] for at in part} for part in (CORE, FALLEN, HELPERS, EDGE, BEYOND)
        )
        self.secrets = {p: live.secrets for p in range(N) for live in self.members[p].memory.live.values()}
        for place in range(N):
            self.members[place].tell(roster)
            self.coordinator.hear_share(place)
        self.held: dict[int, dict[int, SharePair]] = {}
        for place in sorted(set(range(N)) - self.fallen):
            silent = tuple(self.beyond) if place in self.edge else ()
            self.members[place].tell(self.coordinator.delivery(place, silent))
            self.coordinator.hear_mask(place)
            self.held[place] = dict(self.members[place].live(head).held)
        self.survivors = Survivors(tuple(sorted(set(range(N)) - self.fallen)))
        self.revealed: dict[int, RevealedShares] = {}
        self.refusals: set[str] = set()
        self._sign_and_reveal()

    def _sign_and_reveal(self) -> None:
        signers = sorted(set(self.survivors.places) - self.edge)
        for place in signers:
            self.members[place].tell(self.survivors.encoded)
            self.coordinator.hear_survivors(place)
        proof = Proof(tuple(sorted(self.coordinator.signatures.items()))).encoded
        for place in signers:
            try:
                message = self.members[place].tell(proof)
            except SecaggError as refusal:
                self.refusals.add(str(refusal))
                continue
            assert message is not None
            self.revealed[place] = RevealedShares.parse(message.body, self.survivors, N)

    def shares_of(self, dealer: int) -> dict[int, bytes]:
        """Of the secret that the list asks for: what was revealed, and what colluders hold."""
        found = {p + 1: s for p, message in self.revealed.items() for d, _, s in message.shares if d == dealer}
        for helper in self.helpers:
            pair = self.held[helper].get(dealer)
            if pair is not None:
                found[helper + 1] = pair.self_mask if dealer in self.survivors.members else pair.mask_key
        return found

    def sum_of_core_and_edge(self) -> Any:
        """Every mask taken off by what the coordinator and its colluders know. BadShare where they know too little."""
        cohort, head, t = self.cohort, self.coordinator.header, self.cohort.parameters.threshold
        bits = cohort.roster.lane_bits
        wanted, masker = self.core | self.edge, Masker(bits)
        total = np.zeros(head.lanes, lane_dtype(bits))
        keys = {helper: self.secrets[helper].mask_key for helper in self.helpers}
        for gone in self.fallen:
            secret = rebuild_mask_key(self.shares_of(gone), t, cohort.roster.entries[gone].advertisement)
            keys[gone] = AgreementKey(secret)
        for place in wanted:
            shown = cohort.roster.entries[place].advertisement
            total += unpack(self.coordinator.vectors[place], head.lanes, bits)
            own = rebuild_self_mask(self.shares_of(place), t, shown)
            masker.apply(total, self_seed(own, cohort.h, place), -1)
            for peer in set(cohort.graph.neighbours(place)) & keys.keys():
                seed = pair_seed(keys[peer].agree(shown.mask_key), cohort.h, place, peer)
                masker.apply(total, seed, pair_sign(peer, place))
        cut(total, bits)
        return total

    def lanes_of_core_and_edge(self) -> Any:
        head, bits = self.coordinator.header, self.cohort.roster.lane_bits
        rows = []
        for place in self.core | self.edge:
            member = self.members[place]
            key = rounding_key(digest(member.device.device), head.digest)
            rows.append(head.quantizer.lanes(member.values, member.weight, bits, key))
        return np.sum(rows, axis=0)


@pytest.fixture(scope="module")
def attack() -> Cut:
    return Cut()


def test_the_cut_is_one_that_the_bounds_call_impossible(attack: Cut) -> None:
    found = RULE.parameters(N)
    assert (found.neighbours, found.threshold) == (12, 8)
    assert found.neighbours > COLLUDING + RULE.drop
    near = [len(attack.helpers & set(attack.cohort.graph.neighbours(place))) for place in attack.core | attack.edge]
    assert max(near) < 2 * found.threshold - found.neighbours


def test_a_ring_cut_by_devices_that_are_alive_and_not_asked_to_sign(attack: Cut) -> None:
    assert attack.refusals == {"32 of the roster signed the list; it takes 36"}
    assert attack.revealed == {}
    with pytest.raises(SecaggError):
        attack.sum_of_core_and_edge()


def test_with_as_many_signatures_as_one_list_takes_the_ring_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the rule switched off."""

    def fewer(n: int, drop: int, corrupt: Fraction, *bits: int) -> Parameters:
        return replace(fast(n, drop, corrupt, *bits), signers=(n + COLLUDING) // 2 + 1)

    monkeypatch.setattr(header_module, "fast", fewer)
    attack = Cut()
    assert attack.refusals == set()
    assert np.array_equal(attack.sum_of_core_and_edge(), attack.lanes_of_core_and_edge())
    assert GONE in {kind for message in attack.revealed.values() for _, kind, _ in message.shares}


FORGED = 20
"""The place around the ring of the device whose entry is forged."""


class Forged:
    """The second attack: the coordinator makes the best of those that accept its roster."""

    def __init__(self) -> None:
        head = header(rule=RULE, dimension=5, minimum_cohort=3)
        self.members, authority = fleet(N, policy=POLICY.changed(smallest_sigma=1))
        self.coordinator = Coordinator(head, authority, self.members)
        self.coordinator.open()
        honest = self.coordinator.roster
        assert honest is not None
        self.forged = ring_order([entry.advertisement.nonce for entry in honest.entries])[FORGED]
        true = honest.entries[self.forged]
        self.secrets = AttemptSecrets.draw(entropy("forger"))
        shown = replace(self.secrets.advertisement(true.advertisement.device), nonce=true.advertisement.nonce)
        entries = list(honest.entries)
        entries[self.forged] = replace(true, advertisement=shown)
        self.coordinator.roster = Roster.of(head, entries)
        self.cohort = self.coordinator._cohort = rejoin(head, self.coordinator.roster)
        self.near = set(self.cohort.graph.neighbours(self.forged))
        self.refused: dict[int, str] = {}
        for place in range(N):
            self.tell(place, self.coordinator.roster.encoded, self.coordinator.hear_share)

    def tell(self, place: int, body: bytes, heard: Callable[[int], None]) -> None:
        try:
            self.members[place].tell(body)
        except SecaggError as refusal:
            self.refused[place] = str(refusal)
        else:
            heard(place)

    @property
    def left(self) -> list[int]:
        """The places of devices that have refused nothing."""
        return sorted(set(range(N)) - self.refused.keys())


def test_a_forged_entry_is_refused_by_its_device_and_its_neighbours_and_opens_nothing() -> None:
    attack = Forged()
    assert attack.refused.keys() == attack.near | {attack.forged}
    name = attack.cohort.device(attack.forged)
    assert set(attack.refused.values()) == {f"the signature of device {name} does not stand under what it sent"}
    for place in attack.left:
        attack.tell(place, attack.coordinator.delivery(place), attack.coordinator.hear_mask)
    gone = sorted(attack.near)[: RULE.drop]
    listed = Survivors(tuple(sorted(set(range(N)) - set(gone))))
    for place in attack.left:
        attack.tell(place, listed.encoded, attack.coordinator.hear_survivors)
    signed = attack.left
    assert signed
    assert len(signed) <= N - 1 - len(attack.near) < RULE.parameters(N).signers
    proof = attack.coordinator.proof()
    for place in signed:
        with pytest.raises(SecaggError, match="signed the list; it takes"):
            attack.members[place].tell(proof)


def test_of_neighbours_that_check_no_signature_a_forger_gets_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it then holds a pair of each of twelve devices, in the name of one that does not collude."""
    monkeypatch.setattr(roster_module, "require_signed", lambda *given: None)
    attack = Forged()
    assert attack.refused.keys() == {attack.forged}
    holder = attack.forged, attack.cohort.device(attack.forged)
    for dealer in attack.near:
        agreed = attack.secrets.share_key.agree(attack.cohort.roster.entries[dealer].advertisement.share_key)
        rows = attack.coordinator.bundles[dealer].rows
        sealed = next(sealed for place, sealed, _ in rows if place == attack.forged)
        assert unseal_pair(agreed, attack.cohort.h, (dealer, attack.cohort.device(dealer)), holder, sealed)
