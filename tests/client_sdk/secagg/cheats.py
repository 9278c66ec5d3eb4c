"""A coordinator that cheats by plan, step by step: what the catalogue and the controls are written with.

It shows any roster, delivery, list or proof to any device, has colluders who share and then sign whatever helps, and
writes down each refusal. A device that refused says nothing until it is asked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.consent import Expected
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import Advertisement, AttemptSecrets, Roster, RosterEntry, sign_advertisement
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, Survivors
from tests.client_sdk.secagg.attempt import entropy, header
from tests.client_sdk.secagg.fleet import Member, delivered, fleet
from tests.client_sdk.secagg.oracle import Oracle, View, view


@dataclass
class Cheat:
    """``n`` devices, of which those at ``colluding`` are the coordinator's own. A device is its number in ``members``;
    numbers and places agree where a roster holds all."""

    n: int
    colluding: Collection[int] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head = header(**{"dimension": 5, "expires_at": 10**6, **self.changes})
        self.members, self.authority = fleet(self.n, self.head.dimension)
        self.at = 0.0
        self.entries: dict[bytes, dict[int, RosterEntry]] = defaultdict(dict)
        self.bundles: dict[bytes, dict[int, Bundle]] = defaultdict(dict)
        self.signatures: dict[tuple[bytes, bytes], dict[int, bytes]] = defaultdict(dict)
        self.refusals: list[tuple[int, str]] = []

    @property
    def honest(self) -> list[int]:
        return [number for number in range(self.n) if number not in self.colluding]

    # One device at a time.

    def start(self, number: int, head: AttemptHeader, wants: Expected | None = None) -> Transmit | None:
        """Ask it for this attempt, from whatever it remembers."""
        member = self.members[number]
        try:
            return member.start(head, self.at, wants)
        except SecaggError as error:
            member.outgoing = None
            self.refusals.append((number, str(error)))
            return None

    def tell(self, number: int, stage: Stage, body: bytes) -> Transmit | None:
        """Answer what it message last, if that was of this stage."""
        member = self.members[number]
        if member.outgoing is None or member.outgoing.stage != stage:
            return None
        try:
            return member.tell(body, self.at)
        except SecaggError as error:
            member.outgoing = None
            self.refusals.append((number, str(error)))
            return None

    # Exchanges.

    def advertised(self, head: AttemptHeader, numbers: Iterable[int] | None = None) -> None:
        """These devices (all) begin the attempt, or are asked for it again."""
        self.at += 20
        for number in range(self.n) if numbers is None else numbers:
            if number in self.colluding:
                self.collude(number, head)
            else:
                self.hear(number, head, self.start(number, head))

    def hear(self, number: int, head: AttemptHeader, message: Transmit | None) -> None:
        """Keep the advertisement, if it is one."""
        if message is not None and message.stage == "advertise":
            shown = Advertisement.parse(message.body)
            self.entries[head.digest][number] = RosterEntry(shown, message.signature, message.blob)

    def collude(self, number: int, head: AttemptHeader) -> None:
        """A colluder's advertisement under any header: it has no rules."""
        if number not in self.entries[head.digest]:
            device = self.members[number].device
            secrets = AttemptSecrets.draw(entropy(("colluder", number, head.digest)))
            shown = secrets.advertisement(device.device)
            self.members[number].drawn[shown.encoded] = secrets
            signature = sign_advertisement(shown, head.digest, device.signer)
            self.entries[head.digest][number] = RosterEntry(shown, signature, device.certificate)

    def roster(self, head: AttemptHeader, numbers: Iterable[int] | None = None) -> View:
        """Of these devices (all who advertised)."""
        entries = self.entries[head.digest]
        chosen = [entries[number] for number in (entries if numbers is None else numbers)]
        return view(head, Roster.of(head, chosen).encoded)

    def shared(self, where: View, numbers: Iterable[int] | None = None) -> None:
        """These devices (all honest ones of the roster) are shown it, and share; colluders deal rubbish."""
        for number in self._honest(where) if numbers is None else numbers:
            message = self.tell(number, "advertise", where.roster.encoded)
            if message is not None:
                self.bundles[where.h][number] = Bundle.parse(message.body, len(where.roster))
        for number in set(self._numbers(where)) & set(self.colluding):
            self.bundles[where.h][number] = self.dealt(where, number)

    def dealt(self, where: View, number: int) -> Bundle:
        """A colluder's shares for all its holders: rubbish, rightly sealed."""
        place, secrets = self.place(where, number), self.members[number].drawn[self.shown(where, number).encoded]
        rows, pair = [], SharePair(bytes(33), bytes(33))
        for holder in where.graph.holders(place):
            if holder != place:
                agreed = secrets.share_key.agree(where.shown[holder].share_key)
                ends = (place, where.shown[place].device), (holder, where.shown[holder].device)
                rows.append((holder, seal_pair(agreed, where.h, *ends, pair), pair.digests(where.h, place, holder)))
        own = pair.digests(where.h, place, place) if place in where.graph.holders(place) else b""
        return Bundle(place, tuple(rows), own)

    def delivery(self, where: View, number: int, without: Collection[int] = ()) -> bytes:
        """What was sealed for it, but from those in ``without``."""
        bundles = [bundle for dealer, bundle in self.bundles[where.h].items() if dealer not in (number, *without)]
        return delivered(self.place(where, number), sorted(bundles, key=lambda bundle: bundle.owner)).encoded

    def masked(self, where: View, numbers: Iterable[int] | None = None, without: Collection[int] = ()) -> None:
        """These devices (all honest ones of the roster) get their shares, and mask."""
        for number in self._honest(where) if numbers is None else numbers:
            self.tell(number, "share", self.delivery(where, number, without))

    def signed(self, where: View, listed: Sequence[int], numbers: Iterable[int] | None = None) -> bytes:
        """These devices (the honest of the list) are asked to sign the list of ``listed``; its bytes."""
        body = self.listing(where, listed)
        for number in self._among(where, listed) if numbers is None else numbers:
            answer = self.tell(number, "mask", body)
            if answer is not None and answer.body == body:
                self.signatures[where.h, body][self.place(where, number)] = answer.signature
        return body

    def revealed(self, where: View, body: bytes, numbers: Iterable[int] | None = None, over: bool = True) -> None:
        """These devices (the honest of the list) are shown all signatures that there are, colluders' included; and
        then, perhaps, that the round is over."""
        survivors = Survivors.parse(body, len(where.roster))
        found = dict(self.signatures[where.h, body])
        for number in self.colluding:
            place = self.place(where, number)
            if place in survivors.members:
                found[place] = signed(self.members[number].device.signer, where.h, "survivors", body)
        proof = Proof(tuple(sorted(found.items()))).encoded
        listed = [number for number in self._honest(where) if self.place(where, number) in survivors.members]
        for number in listed if numbers is None else numbers:
            self.tell(number, "survivors", proof)
            if over:
                self.tell(number, "unmask", b"")

    def until_masked(self, head: AttemptHeader | None = None, numbers: Iterable[int] | None = None) -> View:
        """Exchanges 1 to 3 of an attempt, honestly."""
        chosen = list(range(self.n)) if numbers is None else list(numbers)
        head = self.head if head is None else head
        self.advertised(head, chosen)
        where = self.roster(head, [number for number in chosen if number in self.entries[head.digest]])
        self.shared(where)
        self.masked(where)
        return where

    def completed(self, where: View, listed: Sequence[int], over: bool = True) -> None:
        """Exchanges 4 and 5 over one list."""
        self.revealed(where, self.signed(where, listed), over=over)

    # Numbers and places.

    def place(self, where: View, number: int) -> int:
        return where.places[self.members[number].device.device]

    def shown(self, where: View, number: int) -> Advertisement:
        return where.shown[self.place(where, number)]

    def listing(self, where: View, listed: Sequence[int]) -> bytes:
        return Survivors(tuple(sorted(self.place(where, number) for number in listed))).encoded

    def _numbers(self, where: View) -> list[int]:
        return [number for number in range(self.n) if self.members[number].device.device in where.places]

    def _honest(self, where: View) -> list[int]:
        return [number for number in self._numbers(where) if number not in self.colluding]

    def _among(self, where: View, listed: Sequence[int]) -> list[int]:
        return [number for number in self._honest(where) if number in listed]

    # What came of it.

    def oracle(self) -> Oracle:
        return Oracle.over(self.members, self.colluding)

    def verdict(self) -> dict[str, object]:
        """What the oracles find broken."""
        return self.oracle().verdict()

    def seized(self, where: View, numbers: Iterable[int]) -> Oracle:
        """The oracle of a coordinator that gets hold of these devices' disks, as they are now."""
        pairs = {}
        for number in numbers:
            for live in self.members[number].memory.live.values():
                if (live.header, live.roster) == (where.header.encoded, where.roster.encoded):
                    for dealer, pair in live.held.items():
                        pairs[where.h, where.shown[dealer].device, self.shown(where, number).device] = pair
        oracle = self.oracle()
        return Oracle(oracle.members.values(), oracle.knows, pairs)

    def refused(self, words: str, numbers: Iterable[int] | None = None) -> bool:
        """Whether each of these devices (some device) refused in a sentence with these words."""
        who = {number for number, message in self.refusals if words in message}
        return bool(who) if numbers is None else who >= set(numbers)

    def stages(self, number: int) -> list[str]:
        """Stages of all that the device ever message."""
        return [message.stage for message in self.members[number].log]


def revealing(members: Iterable[Member]) -> set[str]:
    """Devices that revealed anything."""
    return {member.device.device for member in members if any(message.stage == "unmask" for message in member.log)}
