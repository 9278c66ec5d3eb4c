"""What a coordinator and its colluders can make of all that they ever saw: the oracles of the tests.

They see whatever left an honest device, whatever it was told, and whatever colluders know: their identities, their
attempts' secrets, and every share that was sealed for them, delivered or not. Five questions, over all headers,
attempts and views together:

``betrayed``      honest advertisements of which t shares of the self-mask secret *and* t of the mask key are there,
                  by count, from any device and under any h
``doubly_signed`` honest devices whose signature stands under two lists of one checkpoint that honest signers and all
                  colluders of their rosters could complete
``exposed``       sums over fewer honest devices than a list may have, of one attempt
``recovered``     vectors of single devices, for which all masked vectors are taken as linear equations: unknown are the
                  vectors, and all masks whose secrets cannot be rebuilt; what comes out is compared with the truth
``left_over``     honest devices on whose disk an attempt is stored that they have left: an attacker may seize them
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.complaints import SETTLEMENT_KIND, OpenedPairs, Settlement
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.graph import MaskGraph
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import Lanes, cut, lane_dtype, unpack
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.opening import rebuild_mask_key, rebuild_self_mask
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import Advertisement, AttemptSecrets, Roster
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import Bundle, SharePair, unseal_pair
from client_sdk.secagg.statement import WireReader
from client_sdk.secagg.survivors import GONE, SURVIVED, UNMASK_KIND, Survivors
from tests.client_sdk.secagg.attempt import digest
from tests.client_sdk.secagg.fleet import Member

FIELD = 2**61 - 1
"""The equations are solved modulo this prime; what solves them has coefficients near zero."""

Column = tuple[str, bytes, str, str]


@dataclass(frozen=True, eq=False)
class View:
    """One header with one roster: all that h stands for. Nothing in it has been checked."""

    header: AttemptHeader
    roster: Roster

    @cached_property
    def h(self) -> bytes:
        return self.roster.h(self.header)

    @cached_property
    def shown(self) -> tuple[Advertisement, ...]:
        return tuple(entry.advertisement for entry in self.roster.entries)

    @cached_property
    def places(self) -> dict[str, int]:
        return {shown.device: place for place, shown in enumerate(self.shown)}

    @cached_property
    def graph(self) -> MaskGraph:
        neighbours = self.header.rule.parameters(len(self.roster)).neighbours
        return MaskGraph.of(neighbours, [shown.nonce for shown in self.shown])


@lru_cache(maxsize=4096)
def view(header: AttemptHeader, roster: bytes) -> View:
    return View(header, Roster.parse(roster))


@dataclass
class Row:
    """One masked vector: the device's values, its own mask, and one with each peer whose share it was given."""

    device: str
    view: View
    peers: tuple[int, ...]
    blob: bytes


@dataclass
class Oracle:
    """``honest``: the devices that follow the protocol. ``knows``: advertisement -> secrets, of colluders (and of what
    was seized). ``pairs``: more shares than those sealed for colluders, (h, dealer, holder) -> pair."""

    honest: Iterable[Member]
    knows: Mapping[bytes, AttemptSecrets]
    pairs: Mapping[tuple[bytes, str, str], SharePair] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = {member.device.device: member for member in self.honest}
        self.shares: dict[tuple[bytes, str], dict[int, dict[int, bytes]]] = defaultdict(
            lambda: {SURVIVED: {}, GONE: {}}
        )
        """(h, dealer) -> kind -> x -> share."""
        self.by_holder: dict[bytes, dict[int, set[str]]] = defaultdict(lambda: {SURVIVED: set(), GONE: set()})
        """Advertisement -> kind -> who gave a share of it, under whatever h."""
        self.signed: dict[tuple[bytes, bytes], set[str]] = defaultdict(set)
        """(h, list) -> the honest who signed it."""
        self.views: dict[bytes, View] = {}
        self.rows: list[Row] = []
        self._seen: set[bytes] = set()
        for member in self.members.values():
            self._listen(member)
        for (h, dealer, holder), pair in self.pairs.items():
            if h in self.views:
                self._have(self.views[h], self.views[h].places[dealer], self.views[h].places[holder], pair)

    @classmethod
    def over(cls, members: Iterable[Member], colluding: Collection[int] = ()) -> Oracle:
        """Of a fleet whose members at these places collude."""
        fleet = list(members)
        knows = {shown: secrets for place in colluding for shown, secrets in fleet[place].drawn.items()}
        return cls([member for place, member in enumerate(fleet) if place not in colluding], knows)

    # Reading what was message.

    def _listen(self, member: Member) -> None:
        """Each message with the roster and the shares that the device has taken: the last that it was told before it
        went on, perhaps after a crash."""
        header: AttemptHeader | None = None
        reason = ""
        found: dict[tuple[bytes, str], bytes] = {}
        for happened in member.talk:
            if isinstance(happened, AttemptHeader):
                header, reason = happened, ""
            elif header is not None and isinstance(happened, bytes):
                kept = "settlement" if happened[:1] == bytes([SETTLEMENT_KIND]) else reason
                found[header.digest, kept] = happened
                if kept == "share":  # after a crash: another delivery, and another complaint
                    found.pop((header.digest, "settlement"), None)
            elif header is not None and isinstance(happened, Transmit):
                reason = happened.stage
                if reason != "advertise":
                    where = view(header, found[header.digest, "advertise"])
                    dealt = found.get((header.digest, "share"), b"")
                    settled = found.get((header.digest, "settlement"), b"")
                    self._take(member.device.device, happened, where, dealt, settled)

    def _take(self, name: str, message: Transmit, where: View, delivered: bytes, settled: bytes) -> None:
        self.views[where.h] = where
        n, place = len(where.roster), where.places[name]
        if message.stage == "share" and message.body not in self._seen:
            self._seen.add(message.body)
            for holder, sealed, _ in Bundle.parse(message.body, n).rows:
                secrets = self.knows.get(where.shown[holder].encoded)
                if secrets is not None:
                    agreed = secrets.share_key.agree(where.shown[place].share_key)
                    ends = (place, name), (holder, where.shown[holder].device)
                    self._have(where, place, holder, unseal_pair(agreed, where.h, *ends, sealed))
        elif message.stage == "mask":
            if message.blob not in self._seen:
                self._seen.add(message.blob)
                out = Settlement.parse(settled, n).out if settled else ()
                peers = tuple(peer for peer in Bundle.parse(delivered, n).places if peer not in out)
                self.rows.append(Row(name, where, peers, message.blob))
        elif message.stage == "open":
            for holder, pair in OpenedPairs.parse(message.body, n).pairs.items():
                self._have(where, place, holder, pair)
        elif message.stage == "survivors":
            self.signed[where.h, message.body].add(name)
        elif message.stage == "unmask":
            for dealer, kind, share in _revealed(message.body):
                self.shares[where.h, where.shown[dealer].device][kind][place + 1] = share
                self.by_holder[where.shown[dealer].encoded][kind].add(name)

    def _have(self, where: View, dealer: int, holder: int, pair: SharePair) -> None:
        """A pair of shares that is known as a pair."""
        shown = where.shown[dealer]
        for kind, share in ((SURVIVED, pair.self_mask), (GONE, pair.mask_key)):
            self.shares[where.h, shown.device][kind][holder + 1] = share
            self.by_holder[shown.encoded][kind].add(where.shown[holder].device)

    # By count.

    def betrayed(self) -> list[str]:
        """Honest devices of which t shares of both secrets of one advertisement are there."""
        thresholds: dict[bytes, int] = {}
        for where in self.views.values():
            for shown in where.shown:
                least = thresholds.get(shown.encoded, where.roster.threshold)
                thresholds[shown.encoded] = min(least, where.roster.threshold)
        found = []
        for advertised, kinds in self.by_holder.items():
            device = Advertisement.parse(advertised).device
            if device in self.members and min(len(kinds[SURVIVED]), len(kinds[GONE])) >= thresholds[advertised]:
                found.append(device)
        return sorted(found)

    def completable(self) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """Checkpoint -> its lists, (h, list), that the honest who signed and all colluders could complete."""
        found = defaultdict(list)
        for (h, listed), signers in self.signed.items():
            where = self.views[h]
            colluding = {place for place, shown in enumerate(where.shown) if shown.encoded in self.knows}
            able = {where.places[name] for name in signers} | colluding
            able &= Survivors.parse(listed, len(where.roster)).members
            parameters = where.header.rule.parameters(len(where.roster))
            if len(able) >= parameters.signers and any(
                len(able & set(where.graph.holders(place))) >= parameters.threshold for place in range(len(where.shown))
            ):
                found[where.header.model].append((h, listed))
        return found

    def doubly_signed(self) -> list[str]:
        """Honest devices whose signatures stand under two completable lists of one checkpoint."""
        found: set[str] = set()
        for lists in self.completable().values():
            seen: set[str] = set()
            for one in lists:
                found |= seen & self.signed[one]
                seen |= self.signed[one]
        return sorted(found)

    def left_over(self) -> list[str]:
        """Honest devices that keep an attempt on a checkpoint for which they have advertised anew."""
        found = []
        for name, member in self.members.items():
            newest: dict[bytes, tuple[tuple[int, int], bytes]] = {}
            for attempt, model, shown in self._attempts(member):
                newest[model] = max(newest.get(model, (attempt, shown)), (attempt, shown))
            if any(shown != newest[model][1] and shown in member.disk for _, model, shown in self._attempts(member)):
                found.append(name)
        return found

    @staticmethod
    def _attempts(member: Member) -> Iterable[tuple[tuple[int, int], bytes, bytes]]:
        header: AttemptHeader | None = None
        for happened in member.talk:
            if isinstance(happened, AttemptHeader):
                header = happened
            elif isinstance(happened, Transmit) and happened.stage == "advertise" and header is not None:
                yield (header.round, header.attempt), header.model, happened.body

    # By doing it.

    @cached_property
    def secrets(self) -> dict[bytes, dict[int, bytes]]:
        """Advertisement -> kind -> the secret, where it can be rebuilt."""
        found: dict[bytes, dict[int, bytes]] = defaultdict(dict)
        for (h, dealer), kinds in self.shares.items():
            where = self.views[h]
            shown = where.shown[where.places[dealer]]
            for kind, rebuild in ((SURVIVED, rebuild_self_mask), (GONE, rebuild_mask_key)):
                try:
                    found[shown.encoded][kind] = rebuild(kinds[kind], where.roster.threshold, shown)
                except BadShare:
                    continue
        for advertised, own in self.knows.items():
            found[advertised] = {SURVIVED: own.self_mask, GONE: own.mask_key.private}
        return found

    def _masks(self, row: Row) -> tuple[dict[Column, int], list[tuple[bytes, int]]]:
        """Of one masked vector: the unknown masks with their signs, and the seeds of the known ones with theirs."""
        where, unknown, known = row.view, dict[Column, int](), list[tuple[bytes, int]]()
        own_place = where.places[row.device]
        own = self.secrets.get(where.shown[own_place].encoded, {})
        if SURVIVED in own:
            known.append((self_seed(own[SURVIVED], where.h, own_place), 1))
        else:
            unknown["own", where.h, row.device, ""] = 1
        for place in row.peers:
            peer, sign = where.shown[place], pair_sign(own_place, place)
            theirs = self.secrets.get(peer.encoded, {})
            if GONE in own:
                agreed = AgreementKey(own[GONE]).agree(peer.mask_key)
            elif GONE in theirs:
                agreed = AgreementKey(theirs[GONE]).agree(where.shown[own_place].mask_key)
            else:
                low, high = sorted((row.device, peer.device))
                unknown["pair", where.h, low, high] = sign
                continue
            known.append((pair_seed(agreed, where.h, own_place, place), sign))
        return unknown, known

    def equations(self) -> list[tuple[Row, dict[Column, int]]]:
        """Masked vectors as sums of unknowns, without those that have one that stands in no other: they tell
        nothing."""
        found = [(row, self._masks(row)[0]) for row in self.rows]
        while True:
            counts: dict[Column, int] = defaultdict(int)
            for _, unknown in found:
                for column in unknown:
                    counts[column] += 1
            kept = [(row, unknown) for row, unknown in found if all(counts[column] > 1 for column in unknown)]
            if len(kept) == len(found):
                return kept
            found = kept

    def exposed(self) -> list[frozenset[str]]:
        """Honest devices whose sum can be read out of one attempt, where they are fewer than a list may have."""
        found = []
        equations = self.equations()
        for h, where in self.views.items():
            rows = {row.device: unknown for row, unknown in equations if row.view.h == h}
            colluding = sum(shown.encoded in self.knows for shown in where.shown)
            fewest = where.header.fewest_survivors(len(where.roster)) - colluding
            while rows:
                part, reached = set[str](), {next(iter(rows))}
                columns: set[Column] = set()
                while reached - part:
                    part |= reached
                    columns = {column for device in part for column in rows[device]}
                    reached = {device for device in rows if columns & set(rows[device])}
                if len(part) < fewest:
                    found.append(frozenset(part))
                for device in part:
                    del rows[device]
        return found

    def recovered(self) -> dict[str, Lanes]:
        """Honest devices whose single vectors come out, each checked against the truth."""
        equations = self.equations()
        found: dict[str, Lanes] = {}
        for column, recipe in _alone(equations).items():
            rows = [(equations[number][0], times) for number, times in recipe.items()]
            found[column[2]] = self._evaluated(rows)
        return found

    def _evaluated(self, rows: list[tuple[Row, int]]) -> Lanes:
        bits = min(row.view.roster.lane_bits for row, _ in rows)
        total = np.zeros(rows[0][0].view.header.lanes, np.int64)
        for row, times in rows:
            header, own_bits = row.view.header, row.view.roster.lane_bits
            vector = unpack(row.blob, header.lanes, own_bits)
            masker = Masker(own_bits)
            for seed, sign in self._masks(row)[1]:
                masker.apply(vector, seed, 1 if sign < 0 else -1)
            total += times * vector.astype(np.int64)
        lanes: Lanes = (total & ((1 << bits) - 1)).astype(lane_dtype(bits))
        return lanes

    def verdict(self) -> dict[str, object]:
        """All that is broken, by name; empty where nothing is."""
        recovered = self.recovered()
        for device, lanes in recovered.items():
            assert error_of(self.members[device], self.rows, lanes) <= 4, "the oracle is wrong about a vector"
        every = {
            "betrayed": self.betrayed(),
            "doubly signed": self.doubly_signed(),
            "exposed": self.exposed(),
            "recovered": sorted(recovered),
            "left over": self.left_over(),
        }
        return {name: what for name, what in every.items() if what}


def error_of(member: Member, rows: list[Row], lanes: Lanes) -> int:
    """How far ``lanes`` are from the device's own, at most: rounding differs between headers, by one level each."""
    where = next(row.view for row in rows if row.device == member.device.device)
    header, bits = where.header, where.roster.lane_bits
    key = rounding_key(digest(member.device.device), header.digest)
    truth = header.quantizer.lanes(member.values, member.weight, bits, key)
    cut(truth, bits)
    return int(np.abs(truth.astype(np.int64) - lanes.astype(np.int64)).max())


def _alone(equations: list[tuple[Row, dict[Column, int]]]) -> dict[Column, dict[int, int]]:
    """Vectors that are a sum of equations: column -> number of the equation -> how often it is taken.

    Gauss and Jordan: masks first, then vectors; a vector is alone where its row of the reduced form holds nothing else.
    """
    rest: list[dict[Column, int]] = [
        {**unknown, ("values", row.view.header.model, row.device, ""): 1, ("recipe", b"", str(number), ""): 1}
        for number, (row, unknown) in enumerate(equations)
    ]
    pivots: dict[Column, dict[Column, int]] = {}
    for kinds in (("own", "pair"), ("values",)):
        waiting, rest = rest, []
        for line in waiting:
            for column in [column for column in line if column in pivots]:
                _subtract(line, pivots[column], line.get(column, 0))
            pivot = next((column for column in line if column[0] in kinds), None)
            if pivot is None:
                rest.append(line)
                continue
            inverse = pow(line[pivot], -1, FIELD)
            reduced = {column: value * inverse % FIELD for column, value in line.items()}
            for other in pivots.values():
                _subtract(other, reduced, other.get(pivot, 0))
            pivots[pivot] = reduced
    found = {}
    for pivot, line in pivots.items():
        if pivot[0] == "values" and all(column == pivot or column[0] == "recipe" for column in line):
            recipe = {int(column[2]): _signed(value) for column, value in line.items() if column[0] == "recipe"}
            if all(abs(times) < 1000 for times in recipe.values()):
                found[pivot] = recipe
    return found


def _subtract(row: dict[Column, int], other: dict[Column, int], times: int) -> None:
    if not times:
        return
    for column, value in other.items():
        left = (row.get(column, 0) - times * value) % FIELD
        if left:
            row[column] = left
        else:
            row.pop(column, None)


def _signed(value: int) -> int:
    return value - FIELD if value > FIELD // 2 else value


def _revealed(body: bytes) -> Iterable[tuple[int, int, bytes]]:
    """What an unmask response holds, whatever list it goes with."""
    read = WireReader(body, UNMASK_KIND, "unmask response")
    read.number(4)
    return list(read.rows(f">IB{SHARE_BYTES}s", read.number(4)))
