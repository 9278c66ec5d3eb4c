"""A coordinator that cheats at random, with colluders in every roster, against devices that keep their rules.

It starts attempts and aborts them, shows different rosters, deliveries and survivor lists to different devices, crashes
them, asks again, and signs with its colluders whatever helps. Two oracles look at all that honest devices ever said,
over all headers and attempts:

1. No honest advertisement has t shares of its self-mask secret *and* t of its mask key: those that honest devices
   revealed, and the colluders', who hold one of each.
2. No honest device's signature stands under two completable lists of one checkpoint: lists that honest signers and all
   colluders together could carry to t.

A positive control shows that the oracles see: where devices forget what they kept, the same coordinator breaks both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.identity import DeviceKey, verify
from client_sdk.secagg import statement
from client_sdk.secagg.advertisement import Advertisement, AttemptSecrets, sign_advertisement
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import Header, Rule
from client_sdk.secagg.roster import Cohort, Entry, Roster, join
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, Survivors
from client_sdk.secagg.unmask import GONE, SURVIVED, Revealed
from tests.client_sdk.secagg import attempt
from tests.client_sdk.secagg.attempt import STRICT, changed, entropy, header
from tests.client_sdk.secagg.fleet import Member, fleet


@pytest.fixture(autouse=True, scope="module")
def _signatures_are_checked_once() -> Iterator[None]:
    """The same question has the same answer: most of a session's time is Ed25519."""
    remembered = lru_cache(maxsize=100_000)(verify)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "verify", remembered)
        patch.setattr(attempt, "verify", remembered)
        yield


Choose = Callable[[int], int]
"""One of 0 ... n - 1."""


@dataclass
class Cheater:
    """The coordinator: what it has collected, and how it answers. ``choose`` makes all its choices."""

    honest: int
    colluding: int
    choose: Choose
    rule: Rule = STRICT
    forgetful: bool = False
    """Devices lose what they kept after they reveal: the rule that a step kept is never taken again, switched off."""
    minimum_cohort: int = 3

    def __post_init__(self) -> None:
        self.members, self.authority = fleet(self.honest, dimension=1)
        self.head = header(dimension=1, expires_at=10**6, rule=self.rule, minimum_cohort=self.minimum_cohort, round=1)
        self.at = 0.0
        self.attempts = 1
        self.keys = [DeviceKey.create(entropy(("colluder", number))) for number in range(self.colluding)]
        self.shown: dict[bytes, dict[str, Entry]] = defaultdict(dict)
        self.rosters: dict[bytes, list[Roster]] = defaultdict(list)
        self.cohorts: dict[bytes, Cohort] = {}
        self.where: dict[str, Cohort] = {}
        """Device -> the cohort in whose exchange it is."""
        self.bundles: dict[bytes, dict[int, Bundle]] = defaultdict(dict)
        self.lists: dict[bytes, list[Survivors]] = defaultdict(list)
        self.signatures: dict[tuple[bytes, Survivors], dict[int, bytes]] = defaultdict(dict)
        self.revealed: dict[bytes, dict[int, set[str]]] = defaultdict(lambda: {SURVIVED: set(), GONE: set()})
        """Commitment of an advertisement -> kind -> honest devices that revealed such a share."""
        self.thresholds: dict[bytes, int] = {}
        self.backups: dict[str, bytes] = {}

    # Its colluders.

    def secrets(self, number: int, head: Header) -> AttemptSecrets:
        return AttemptSecrets.draw(entropy(("colluder", number, head.attempt)))

    def colluders(self, head: Header) -> list[Entry]:
        found = []
        for number, key in enumerate(self.keys):
            name = f"colluder-{number}"
            shown = self.secrets(number, head).advertisement(name)
            found.append(Entry(shown, sign_advertisement(shown, head.digest, key), self.authority.certify(name, key)))
        return found

    def colluding_places(self, cohort: Cohort) -> dict[int, int]:
        """Place -> number."""
        return {cohort.place_of(f"colluder-{number}"): number for number in range(self.colluding)}

    # Its steps.

    def step(self) -> None:
        """Something happens to one device."""
        member = self.members[self.choose(self.honest)]
        self.at += 20
        try:
            if member.said is None or self.choose(20) == 0:
                self.start(member)
            else:
                self.answer(member)
        except SecaggError:
            member.said = None  # it will say nothing more until it is started again

    def start(self, member: Member) -> None:
        """Started afresh, mostly under the newest header; now and then under an older one, or one of a new attempt."""
        if self.choose(40) == 0 and self.attempts < 4:
            self.attempts += 1
        number = self.attempts - 1 if self.choose(8) else self.choose(self.attempts)
        said = member.start(changed(self.head, attempt=number), at=self.at)
        if said is not None and said.stage == "advertise":
            head = changed(self.head, attempt=number)
            entry = Entry(Advertisement.parse(said.body), said.signature, said.blob)
            self.shown[head.digest][member.device.device] = entry

    def answer(self, member: Member) -> None:
        said = member.said
        assert said is not None
        name = member.device.device
        if said.stage == "advertise":
            head = next(
                head
                for head in (changed(self.head, attempt=number) for number in range(4))
                if self.shown[head.digest].get(name) is not None
                and self.shown[head.digest][name].signature == said.signature
            )
            if len(self.shown[head.digest]) < self.honest and self.choose(6):
                return  # it waits for more, mostly
            roster = self.roster(head, name)
            self.where[name] = self.cohorts[roster.h(head)]
            member.tell(roster.encoded, self.at)
            return
        cohort = self.where[name]
        place = cohort.place_of(name)
        if said.stage == "share":
            self.bundles[cohort.h][place] = Bundle.parse(said.body, cohort.n)
            if len(self.bundles[cohort.h]) < cohort.n - self.colluding and self.choose(6):
                return
            member.tell(self.delivery(cohort, place), self.at)
        elif said.stage == "mask":
            self.backups[name] = member.disk
            member.tell(self.list(cohort).encoded, self.at)
        elif said.stage == "survivors":
            survivors = Survivors.parse(said.body, cohort.n)
            self.signatures[cohort.h, survivors][place] = said.signature
            enough = cohort.parameters.threshold - self.colluding
            if len(self.signatures[cohort.h, survivors]) < enough and self.choose(6):
                return
            member.tell(self.proof(cohort, survivors), self.at)
        else:
            live = member.memory.live[cohort.header.model]
            survivors = Survivors.parse(live.survivors, cohort.n)
            for dealer, kind, _ in Revealed.parse(said.body, survivors, cohort.n).shares:
                commitment = cohort.roster.entries[dealer].advertisement.commitment
                self.revealed[commitment][kind].add(name)
                self.thresholds[commitment] = cohort.parameters.threshold
            if self.forgetful:
                member.disk = self.backups[name]
                member.said = None
            elif self.choose(3) == 0:
                member.tell(b"", self.at)

    def roster(self, head: Header, name: str) -> Roster:
        """One that was shown before and has the device, or a new one of all who advertised, or of some of them."""
        entries = self.shown[head.digest]
        fitting = [
            roster for roster in self.rosters[head.digest] if any(entry == entries[name] for entry in roster.entries)
        ]
        if fitting and self.choose(12):
            return fitting[self.choose(len(fitting))]
        chosen = [entry for device, entry in entries.items() if device == name or self.choose(8)]
        roster = Roster.of(head, [*chosen, *self.colluders(head)])
        self.cohorts[roster.h(head)] = join(head, roster, self.authority.vouch)
        self.rosters[head.digest].append(roster)
        return roster

    def delivery(self, cohort: Cohort, place: int) -> bytes:
        """What peers and colluders dealt to the device, now and then without one; from all, even if silent so far."""
        sealed = {}
        for dealer, bundle in self.bundles[cohort.h].items():
            if dealer != place and place in bundle.places and self.choose(10):
                sealed[dealer] = dict(bundle.sealed)[place]
        for dealer, number in self.colluding_places(cohort).items():
            if place in cohort.graph.holders(dealer):
                agreed = self.secrets(number, cohort.header).share_key.agree(
                    cohort.roster.entries[place].advertisement.share_key
                )
                ends = (dealer, cohort.device(dealer)), (place, cohort.device(place))
                sealed[dealer] = seal_pair(agreed, cohort.h, *ends, SharePair(bytes(33), bytes(33)))
        return Bundle(place, tuple(sorted(sealed.items()))).encoded

    def list(self, cohort: Cohort) -> Survivors:
        """One of two lists over this h, so that each may find signers: with one device, and without it."""
        lists = self.lists[cohort.h]
        if len(lists) == 2 or (lists and self.choose(2)):
            return lists[self.choose(len(lists))]
        places = list(range(cohort.n))
        if lists:
            del places[self.choose(cohort.n)]
        found = Survivors(tuple(places))
        lists.append(found)
        return found

    def proof(self, cohort: Cohort, survivors: Survivors) -> bytes:
        """All signatures that there are under this list, and the colluders'."""
        found = dict(self.signatures[cohort.h, survivors])
        for place, number in self.colluding_places(cohort).items():
            found[place] = signed(self.keys[number], cohort.h, "survivors", survivors.encoded)
        return Proof(tuple(sorted(found.items()))).encoded

    # The oracles.

    def betrayed(self) -> list[bytes]:
        """Oracle 1: commitments of honest advertisements of which both secrets can be rebuilt."""
        own = {entry.advertisement.commitment for shown in self.shown.values() for entry in shown.values()}
        return [
            commitment
            for commitment in own & set(self.revealed)
            if all(
                len(self.revealed[commitment][kind]) + self.colluding >= self.thresholds[commitment]
                for kind in (SURVIVED, GONE)
            )
        ]

    def doubly_signed(self) -> list[str]:
        """Oracle 2: honest devices whose signatures stand under two completable lists of the checkpoint."""
        under: dict[str, int] = defaultdict(int)
        for (h, _), signatures in self.signatures.items():
            cohort = self.cohorts[h]
            if len(signatures) + self.colluding >= cohort.parameters.threshold:
                for place in signatures:
                    under[cohort.device(place)] += 1
        return [device for device, count in under.items() if count > 1]


def tolerated(n: int) -> int:
    """How many colluders a strict round of ``n`` withstands: 2t > n + C."""
    return 2 * (2 * n // 3 + 1) - n - 1


RING = Rule(profile="fast", drop=1, corrupt_millionths=100_000, sigma=20, eta=20)
"""For 10 devices: 4 neighbours, t = 3, one colluder, one gone."""


def cheated(
    honest: int, colluding: int, seed: int, steps: int, forgetful: bool = False, rule: Rule = STRICT
) -> Cheater:
    """A session. The minimum cohort is the smallest from which up all sizes withstand the colluders."""
    rng = np.random.default_rng(seed)
    if rule == RING:
        cheater = Cheater(
            honest, colluding, lambda n: int(rng.integers(n)), rule, forgetful, minimum_cohort=honest + colluding
        )
        for _ in range(steps):
            cheater.step()
        return cheater
    smallest = max(n for n in range(2, honest + colluding + 1) if tolerated(n) < colluding or n == 2) + 1
    cheater = Cheater(
        honest, colluding, lambda n: int(rng.integers(n)), forgetful=forgetful, minimum_cohort=max(3, smallest)
    )
    for _ in range(steps):
        cheater.step()
    return cheater


SIZES = [(3, 1), (4, 1), (4, 2), (5, 1), (6, 3)]
"""Honest devices, and as many colluders as the whole cohort withstands, or fewer."""


@pytest.mark.slow
@given(size=st.sampled_from(SIZES), steps=st.integers(40, 160), seed=st.integers(0, 2**48))
def test_no_random_cheat_breaks_devices(size: tuple[int, int], steps: int, seed: int) -> None:
    assert tolerated(sum(size)) >= size[1]
    cheater = cheated(*size, seed, steps)
    assert cheater.betrayed() == []
    assert cheater.doubly_signed() == []


@pytest.mark.slow
@settings(max_examples=20)
@given(steps=st.integers(150, 400), seed=st.integers(0, 2**48))
def test_no_random_cheat_breaks_devices_in_a_ring(steps: int, seed: int) -> None:
    found = RING.parameters(10)
    assert (found.neighbours, found.threshold, found.signers) == (4, 3, 6)
    cheater = cheated(9, 1, seed, steps, rule=RING)
    assert cheater.betrayed() == []
    assert cheater.doubly_signed() == []


@pytest.mark.slow
def test_the_cheater_gets_far() -> None:
    """Otherwise the test above would say nothing: shares are revealed, devices sign different lists over one h, and
    attempts are restarted."""
    revealed = different = restarted = 0
    for seed in range(30):
        cheater = cheated(4, 1, seed, 100)
        revealed += any(found[SURVIVED] for found in cheater.revealed.values())
        different += any(sum(key[0] == h for key in cheater.signatures) > 1 for h in cheater.cohorts)
        restarted += cheater.attempts > 1
        assert cheater.betrayed() == []
        assert cheater.doubly_signed() == []
    assert min(revealed, different, restarted) >= 3, (revealed, different, restarted)


@pytest.mark.slow
def test_where_devices_forget_the_oracles_find_the_break() -> None:
    """The positive control: the rule that what was kept is never done again, switched off."""
    betrayed = doubly = 0
    for seed in range(30):
        cheater = cheated(3, 1, seed, 250, forgetful=True)
        betrayed += bool(cheater.betrayed())
        doubly += bool(cheater.doubly_signed())
    assert min(betrayed, doubly) >= 1, (betrayed, doubly)


@dataclass
class Planned:
    """The sharpest attack, by plan: everybody's list first, then the same without the victim."""

    forgetful: bool
    cheater: Cheater = field(init=False)

    def run(self) -> Cheater:
        cheater = self.cheater = Cheater(4, 1, lambda n: n - 1, forgetful=self.forgetful)
        for member in cheater.members:
            cheater.start(member)
        cheater.at = 20
        entries = [*cheater.shown[cheater.head.digest].values(), *cheater.colluders(cheater.head)]
        roster = Roster.of(cheater.head, entries)
        cohort = join(cheater.head, roster, cheater.authority.vouch)
        cheater.rosters[cheater.head.digest].append(roster)
        cheater.cohorts[cohort.h] = cohort
        for _ in range(2):  # advertise, then share until all bundles are there
            for member in cheater.members:
                if member.said is not None and member.said.stage == "advertise":
                    cheater.where[member.device.device] = cohort
                    said = member.tell(roster.encoded, cheater.at)
                    assert said is not None
                    cheater.bundles[cohort.h][cohort.place_of(member.device.device)] = Bundle.parse(said.body, 5)
        for member in cheater.members:
            cheater.answer(member)
        everybody = tuple(range(5))
        victim = cohort.place_of("device-0003")
        for places in (everybody, tuple(place for place in everybody if place != victim)):
            cheater.lists[cohort.h] = [Survivors(places)]
            self.complete(cohort, Survivors(places))
        return cheater

    def complete(self, cohort: Cohort, survivors: Survivors) -> None:
        cheater = self.cheater
        for stage in ("mask", "survivors", "unmask"):
            for member in cheater.members:
                if cohort.place_of(member.device.device) not in survivors.members:
                    continue
                try:
                    if member.said is None:
                        member.start(cheater.head, cheater.at)
                    if member.said is not None and member.said.stage == stage == "mask":
                        cheater.backups[member.device.device] = member.disk
                        said = member.tell(survivors.encoded, cheater.at)
                        assert said is not None
                        key = (cohort.h, survivors)
                        cheater.signatures[key][cohort.place_of(member.device.device)] = said.signature
                    elif member.said is not None and member.said.stage == stage == "survivors":
                        member.tell(cheater.proof(cohort, survivors), cheater.at)
                    elif member.said is not None and member.said.stage == stage == "unmask":
                        cheater.answer(member)
                except SecaggError:
                    member.said = None


def test_the_planned_attack_fails_on_devices_that_remember() -> None:
    cheater = Planned(forgetful=False).run()
    assert any(found[SURVIVED] for found in cheater.revealed.values())
    assert cheater.betrayed() == []
    assert cheater.doubly_signed() == []


def test_the_planned_attack_succeeds_on_devices_that_forget() -> None:
    cheater = Planned(forgetful=True).run()
    victim = cheater.shown[cheater.head.digest]["device-0003"].advertisement.commitment
    assert cheater.betrayed() == [victim]
    assert sorted(cheater.doubly_signed()) == ["device-0000", "device-0001", "device-0002"]
