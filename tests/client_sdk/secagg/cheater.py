"""A coordinator that cheats at random: any header, roster, delivery, list and proof for any device at any time.

It begins attempts and aborts them, goes on to other checkpoints and comes back, shows different rosters, deliveries and
lists to different devices and to the same one, crashes devices before and after they speak, and has its colluders sign
whatever helps. All its choices come from one seed. It is not blind: mostly it waits until it has what an attack needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest

from client_sdk import identity
from client_sdk.secagg import actions, device, masks, shares, statement
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.complaints import Accusations, Complaint, Settlement
from client_sdk.secagg.header import AttemptHeader, GraphRule
from client_sdk.secagg.roster import MaskingCohort, Roster, Vouching, join
from client_sdk.secagg.shares import Bundle, SharePair
from client_sdk.secagg.survivors import Survivors
from tests.client_sdk.secagg.attempt import STRICT, changed, digest
from tests.client_sdk.secagg.cheats import Cheat
from tests.client_sdk.secagg.fleet import Member, expected, tensors_of
from tests.client_sdk.secagg.oracle import View


@contextmanager
def costly_steps_done_once() -> Iterator[None]:
    """The same question has the same answer: signatures are checked, keys agreed upon and derived, rosters read and
    joined once each. Both ends of an agreement ask for the same."""
    agreed: dict[frozenset[bytes], bytes] = {}
    agree = AgreementKey.agree

    def remembered(self: AgreementKey, public: bytes) -> bytes:
        both = frozenset((self.public, public))
        if both not in agreed:
            agreed[both] = agree(self, public)
        return agreed[both]

    cohorts: dict[tuple[bytes, bytes], MaskingCohort] = {}

    def joined(header: AttemptHeader, roster: Roster, vouched: Vouching, *, near: str) -> MaskingCohort:
        key = (header.encoded, roster.encoded)
        if key not in cohorts:
            cohorts[key] = join(header, roster, vouched)
        return cohorts[key]

    def rejoined(header: AttemptHeader, roster: Roster, *, near: str | None = None) -> MaskingCohort:
        return cohorts[header.encoded, roster.encoded]

    verified = lru_cache(maxsize=50_000)(identity.verify)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "verify", verified)
        patch.setattr(AgreementKey, "agree", remembered)
        patch.setattr(actions, "join", joined)
        patch.setattr(device, "rejoin", rejoined)
        for message in (AttemptHeader, Roster):
            patch.setattr(message, "parse", lru_cache(maxsize=5_000)(message.parse))
        for module in (masks, shares, device):
            patch.setattr(module, "derive", lru_cache(maxsize=50_000)(module.derive))
        yield


@dataclass
class Cheater(Cheat):
    """``n`` devices, the last of which collude."""

    seed: int = 0
    whole: bool = False
    """Rosters of all devices only: where smaller ones would not withstand the colluders."""
    heads: list[AttemptHeader] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rng = np.random.default_rng(self.seed)
        self.patience = (1, 3, 6, 6 * self.n)[self.choose(4)]
        """How long it waits until it tries another list; with 1, a list for each device, on which two are always alive
        and others dead by turns."""
        self.heads.append(self.head)
        self.under: dict[int, AttemptHeader] = {}
        """Device -> the header that it was asked for last."""
        self.view_of: dict[tuple[int, bytes], View] = {}
        """(device, header) -> the roster that it was shown last."""
        self.views: dict[bytes, list[View]] = defaultdict(list)
        self.complaints: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.lists: dict[bytes, list[bytes]] = defaultdict(list)
        self.hurry = (5, 30, 300)[self.choose(3)] * self.n
        """How seldom it goes on without what it waits for, or shows another roster."""
        self.dead: dict[bytes, dict[int, int]] = {}
        """h -> place -> on how many devices' own lists it was dead."""
        self.different = 0
        """Lists of one roster that were signed, beyond the first."""

    def choose(self, n: int) -> int:
        """One of 0 ... n - 1."""
        return int(self.rng.integers(n))

    def rarely(self, one_in: int) -> bool:
        return self.choose(one_in) == 0

    def play(self, steps: int) -> Cheater:
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """Something happens to one device: to one that need not be waited for, where there is one."""
        self.at += 0.5
        order = [self.honest[place] for place in self.rng.permutation(len(self.honest))]
        for number in order:
            member = self.members[number]
            member.crash = member.crash or self.rarely(20 * self.n)
            if member.outgoing is None or self.rarely(12 * self.n):
                self.begin(number)
                return
            if getattr(self, "on_" + member.outgoing.stage)(number, member):
                return
        self.begin(order[0])

    def begin(self, number: int) -> None:
        """Asked for an attempt: the newest, an older one, an unknown one, or one with other terms."""
        newest = self.heads[-1]
        stuck = tensors_of(newest.model) in self.members[number].memory.spent
        if self.rarely(3 if stuck else 30) and len(self.heads) < 6:
            self.at += 20
            if self.rarely(2):
                self.heads.append(changed(newest, round=newest.round + 1, model=digest(f"{newest.round}"), attempt=0))
            else:
                self.heads.append(changed(newest, attempt=newest.attempt + 1))
        head = self.heads[-1] if self.choose(6) else self.heads[self.choose(len(self.heads))]
        self.at += 10 * self.choose(2)
        wants = expected(head)
        if self.rarely(30):
            head = changed(head, minimum_cohort=max(2, head.minimum_cohort - 1), attempt=head.attempt + 1)
        self.under[number] = head
        self.hear(number, head, self.start(number, head, wants))

    def where(self, number: int) -> View:
        """What the device's exchange is over."""
        return self.view_of[number, self.under[number].digest]

    def on_advertise(self, number: int, member: Member) -> bool:
        head = self.under[number]
        for colluder in self.colluding:
            self.collude(colluder, head)
        entries = self.entries[head.digest]
        if len(entries) < self.n and self.choose(self.hurry):
            return False  # it waits for more, mostly
        fitting = [one for one in self.views[head.digest] if self._has(one, number, head)]
        if not fitting or (not self.whole and self.rarely(self.hurry)):
            chosen = [
                other
                for other in entries
                if self.whole or other in (number, *self.colluding) or self.choose(2 * self.n)
            ]
            if len(chosen) < max(3, head.minimum_cohort - 1):
                return False
            fitting = [self.roster(head, chosen)]
            self.views[head.digest].extend(fitting)
        where = fitting[self.choose(len(fitting))]
        self.view_of[number, head.digest] = where
        self.tell(number, "advertise", where.roster.encoded)
        return True

    def _has(self, where: View, number: int, head: AttemptHeader) -> bool:
        shown = self.entries[head.digest][number].advertisement
        return where.places.get(shown.device) is not None and self.shown(where, number) == shown

    def on_share(self, number: int, member: Member) -> bool:
        where, bundles = self.where(number), self.bundles[self.where(number).h]
        if member.outgoing is not None:
            bundles[number] = Bundle.parse(member.outgoing.body, len(where.roster))
        for colluder in self.colluding:
            if colluder not in bundles:
                bundles[colluder] = self.dealt(where, colluder)
        if len(bundles) < len(where.roster) and self.choose(self.hurry):
            return False
        without = [other for other in bundles if other != number and self.rarely(10 * self.n)]
        rows = Bundle.parse(self.delivery(where, number, without), len(where.roster)).rows
        if rows and self.rarely(40):
            at = self.choose(len(rows))
            place, sealed, digests = rows[at]
            other = rows[at - 1]
            wrong = ((place, other[1], digests), (place, sealed, other[2]), (place, *other[1:]))[self.choose(3)]
            rows = (*rows[:at], wrong, *rows[at + 1 :])
        self.tell(number, "share", Bundle(self.place(where, number), rows).encoded)
        return True

    def on_mask(self, number: int, member: Member) -> bool:
        where = self.where(number)
        lists = self.lists[where.h]
        if self.patience == 1:
            lists[:] = [self._own_list(where, self.place(where, number))]
        elif not lists or (len(lists) < 4 and self.rarely(self.patience)):
            lists.append(self._list(where, len(lists)))
        body = lists[self.choose(len(lists))]
        if self.complaints[where.h] and self.rarely(4):
            self.tell(number, "mask", self._accusation(where))
            return True
        answer = self.tell(number, "mask", body)
        if answer is not None:
            signatures = self.signatures[where.h, answer.body]
            self.different += not signatures and any(self.signatures[where.h, other] for other in lists)
            signatures[self.place(where, number)] = answer.signature
        return True

    def _accusation(self, where: View) -> bytes:
        complaints = self.complaints[where.h]
        return Accusations((complaints[self.choose(len(complaints))],)).encoded

    def on_complain(self, number: int, member: Member) -> bool:
        """All dealers are out, or they have opened what they had not dealt; or it is itself accused."""
        where, message = self.where(number), member.outgoing
        if message is None:
            return False
        self.complaints[where.h].append((message.body, message.signature))
        place, dealers = self.place(where, number), [dealer for dealer, _ in Complaint.parse(message.body, self.n).rows]
        wrong = Settlement(place, dict.fromkeys(dealers, SharePair(bytes(33), bytes(33))), ())
        answers = (Settlement(place, {}, tuple(dealers)).encoded, wrong.encoded, self._accusation(where))
        self.tell(number, "complain", answers[max(0, self.choose(6) - 3)])
        return True

    def on_open(self, number: int, member: Member) -> bool:
        lists = self.lists[self.where(number).h]
        self.tell(number, "open", lists[self.choose(len(lists))] if lists else b"")
        return True

    def _list(self, where: View, before: int) -> bytes:
        """All who shared; then all but one; then as few as a device signs for."""
        places = sorted(self.place(where, number) for number in self.bundles[where.h])
        fewest = where.header.fewest_survivors(len(where.roster))
        if before == 1 and len(places) > fewest:
            del places[self.choose(len(places))]
        elif before > 1 and len(places) > fewest:
            places = sorted(int(place) for place in self.rng.choice(places, fewest, replace=False))
        return Survivors(tuple(places)).encoded

    def _own_list(self, where: View, place: int) -> bytes:
        """As short as it may be, with the device, two favourites and all colluders; whom it is given as dead before is
        taken last."""
        given = self.dead.setdefault(where.h, {})
        places = [self.place(where, number) for number in self.bundles[where.h]]
        kept = {place, *sorted(places)[:2], *(self.place(where, number) for number in self.colluding)}
        spare = max(0, len(places) - where.header.fewest_survivors(len(where.roster)))
        candidates = sorted((other for other in places if other not in kept), key=lambda other: given.get(other, 0))
        for other in candidates[:spare]:
            given[other] = given.get(other, 0) + 1
        return Survivors(tuple(sorted(set(places) - set(candidates[:spare])))).encoded

    def on_survivors(self, number: int, member: Member) -> bool:
        where, message = self.where(number), member.outgoing
        if message is None:
            return False
        found = self.signatures[where.h, message.body]
        found[self.place(where, number)] = message.signature
        wanted = where.header.rule.parameters(len(where.roster)).signers
        if self.patience > 1 and len(found) + len(self.colluding) < wanted and self.choose(self.hurry):
            return False
        self.revealed(where, message.body, [number], over=self.rarely(3))
        return True

    def on_unmask(self, number: int, member: Member) -> bool:
        lists = self.lists[self.where(number).h]
        self.tell(number, "unmask", lists[self.choose(len(lists))] if self.rarely(2) else b"")
        return True


def tolerated(n: int) -> int:
    """How many colluders a strict round of ``n`` withstands: 2t > n + C."""
    return 2 * (2 * n // 3 + 1) - n - 1


def cheater(honest: int, colluding: int, seed: int, rule: GraphRule = STRICT, minimum: int | None = None) -> Cheater:
    """A session to be played. The minimum cohort is the smallest from which up all sizes withstand the colluders."""
    n = honest + colluding
    if minimum is None:
        minimum = max([3, *(size + 1 for size in range(3, n) if tolerated(size) < colluding)])
    changes = {"dimension": 1, "rule": rule, "minimum_cohort": minimum, "round": 1}
    return Cheater(n, range(honest, n), changes, seed=seed, whole=minimum == n)
