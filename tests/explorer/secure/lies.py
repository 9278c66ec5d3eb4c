"""Lies in secure rounds: of a dishonest device, in its own messages, and of a coordinator, in what it answers.

::

    digests        the digests of its shares are not those of what it sealed: a holder complains
    sealed         what it sealed does not open: a holder complains, and it opens the right pair, another one or none
    polynomial     its shares and digests fit together, and are of another secret: it is proven at fault, and barred
    vector         it sends two masked vectors: the first one counts
    canary         of several groups: it sends a vector with which no sum is possible, and its group falls
    accusation     it complains of an honest dealer, which opens that pair
    list           it signs another list of survivors than that of the round
    shares         it reveals bytes that are no shares
    forged list    the coordinator shows one device another list of survivors than the others

None of it may reveal anything, or get an honest device barred.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from client_sdk.device.actions import Send
from client_sdk.identity import Signer
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import Octets, SecureSigned, Stage
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.lanes import lane_dtype, pack, unpack
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import SEALED_BYTES, Bundle, SharePair, seal_pair, unseal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import KIND as SURVIVORS_KIND
from client_sdk.secagg.survivors import RevealedShares, Survivors
from tests.explorer.request import SentRequest

if TYPE_CHECKING:
    from tests.explorer.world import World

LIES: dict[Stage, tuple[str, ...]] = {
    "share": ("digests",),
    "mask": ("vector",),
    "survivors": ("list",),
    "unmask": ("shares",),
}
LIE = "secure-lie"


class DishonestPart:
    """Lies with the key of one device. ``also``: sends a request besides those of its session."""

    def __init__(self, world: World, device: str, signer: Signer, also: Callable[[Send, bytes], None]) -> None:
        self._world, self._device, self._signer, self._also = world, device, signer, also
        self._dealt: dict[tuple[bytes, int], SharePair] = {}
        """(h, holder's place) -> the pair that it should have sealed."""
        self._wronged: dict[bytes, int] = {}
        """h -> the place of the holder that it deals garbage."""
        self._accused: dict[bytes, int] = {}
        """h -> the place of the dealer of which it complains without a reason."""
        self._spared: set[tuple[str, bytes, int]] = set()
        """(lie, h, place) about whom it was asked."""
        self._answers: dict[bytes, str] = {}

    def split(
        self, secret: bytes, holders: Sequence[int], threshold: int, entropy: Callable[[int], bytes]
    ) -> list[bytes]:
        """In place of ``shamir.split``: shares of another secret, where the device lies."""
        if self._tells("polynomial") and self._world.strikes(LIE, f"{self._device} polynomial"):
            self._world.log(f"{self._device} lies: polynomial")
            self._world.vectors.liars.add(self._device)
            secret = hashlib.sha256(secret).digest()
        return split(secret, holders, threshold, entropy)

    def seal(self, agreed: bytes, h: bytes, dealer: tuple[int, str], holder: tuple[int, str], pair: SharePair) -> bytes:
        """In place of ``seal_pair``: garbage for one holder, where the device lies."""
        self._dealt[h, holder[0]] = pair
        if self._lies_once(self._wronged, h, holder[0], "sealed"):
            return bytes(SEALED_BYTES)
        return seal_pair(agreed, h, dealer, holder, pair)

    def unseal(
        self, agreed: bytes, h: bytes, dealer: tuple[int, str], holder: tuple[int, str], sealed: bytes
    ) -> SharePair:
        """In place of ``unseal_pair``: it does not open what an honest dealer sealed, where the device lies. Of its own
        row, of which it is accused, it says what it likes."""
        if dealer[1] != self._device:
            if self._lies_once(self._accused, h, dealer[0], "accusation"):
                self._world.vectors.accusers.add(self._device)
                raise BadShare("it says so")
            return unseal_pair(agreed, h, dealer, holder, sealed)
        answer = self._answers.setdefault(h, self._world.chance.pick("answer", ("right", "wrong", "none")))
        pair = self._dealt.get((h, holder[0]))
        if answer == "none" or pair is None:
            raise BadShare("it has no answer")
        return pair if answer == "right" else SharePair(pair.mask_key, pair.self_mask)

    def _tells(self, lie: str) -> bool:
        """Whether the device tells this lie in the schedule."""
        return self._world.shape.only_lie in ("", lie)

    def _lies_once(self, lied: dict[bytes, int], h: bytes, peer: int, lie: str) -> bool:
        """Whether it lies about this peer: about one of an attempt at most, and the same after a restart."""
        if h not in lied and (lie, h, peer) not in self._spared:
            self._spared.add((lie, h, peer))
            if self._tells(lie) and self._world.strikes(LIE, f"{self._device} {lie}"):
                self._world.log(f"{self._device} lies: {lie}")
                lied[h] = peer
        return lied.get(h) == peer

    def altered(self, send: Send, stage: Stage, cohort: MaskingCohort, survivors: bytes) -> Send:
        """The message that the device sends instead of this one."""
        world = self._world
        if stage == "open" and self._answers.get(cohort.h) == "wrong" and isinstance(send.message, SecureSigned):
            said = (send.octets or b"") + bytes.fromhex(send.message.signature)
            world.vectors.wrong_pairs.add(hashlib.sha256(said).hexdigest())
        more = ("canary",) if stage == "mask" and cohort.header.groups > 1 else ()
        lies = [lie for lie in (*LIES.get(stage, ()), *more) if self._tells(lie)]
        if not lies or not world.strikes(LIE, f"{self._device} {stage}"):
            return send
        lie, place = world.chance.pick(f"lie {stage}", lies), cohort.place_of(self._device)
        world.log(f"{self._device} lies: {lie}")
        octets = send.octets or b""
        match lie:
            case "digests":
                return self._signed(send, cohort, stage, _spoiled(Bundle.parse(octets, cohort.n)).encoded)
            case "vector" | "canary":
                other = self._other_vector(octets, cohort, 0 if lie == "vector" else -1)
                described = MaskedInput.of(place, cohort.header.lanes, cohort.roster.lane_bits, other)
                message = self._signed(send, cohort, stage, described.encoded, other)
                if lie == "canary":
                    return message
                self._also(message, other)
            case "list":
                return self._signed(send, cohort, stage, another_list(octets, cohort.n, place))
            case _:
                true = RevealedShares.parse(octets, Survivors.parse(survivors, cohort.n), cohort.n)
                wrong = tuple((dealer, kind, bytes([0, *share[:0:-1]])) for dealer, kind, share in true.shares)
                return self._signed(send, cohort, stage, RevealedShares(place, wrong).encoded)
        return send

    def _signed(
        self, send: Send, cohort: MaskingCohort, stage: Stage, body: bytes, octets: bytes | None = None
    ) -> Send:
        signature = signed(self._signer, cohort.h, stage, body).hex()
        message = SecureSigned(signature=signature, body=body.hex() if octets is not None else "")
        return Send(
            method=send.method,
            route=send.route,
            answers=send.answers,
            path=send.path,
            message=message,
            octets=body if octets is None else octets,
        )

    def _other_vector(self, vector: bytes, cohort: MaskingCohort, lane: int) -> bytes:
        """The vector with one more in this lane, which the sum then has. The last one counts devices."""
        lanes, bits = cohort.header.lanes, cohort.roster.lane_bits
        found = unpack(vector, lanes, bits)
        found[lane] = (int(found[lane]) + 1) % (1 << bits)
        other = pack(found.astype(lane_dtype(bits)), bits)
        known = self._world.vectors.masked.get(hashlib.sha256(vector).digest())
        if known is not None:
            more = known[1].copy()
            more[lane] += np.uint64(1)
            self._world.vectors.masked[hashlib.sha256(other).digest()] = (self._device, more)
        return other


def forged(world: World, request: SentRequest, answer: Octets) -> Octets:
    """The answer of a coordinator that perhaps shows this device another list than the others."""
    send = request.send
    if not isinstance(send, Send) or send.route is not Route.SECURE_ANSWER or send.path["stage"] != "mask":
        return answer
    if answer.content[:1] != bytes([SURVIVORS_KIND]) or not world.strikes("forged-list", request.holder.id):
        return answer
    world.vectors.deceived.add(request.holder.id)
    world.log(f"{request.holder.id} is shown another list of survivors")
    return Octets(content=another_list(answer.content, 1 << 20))


def another_list(encoded: bytes, n: int, place: int = -1) -> bytes:
    """The list without one of its members, another one than ``place``."""
    places = list(Survivors.parse(encoded, n).places)
    gone = next((one for one in places if one != place), places[0])
    return Survivors(tuple(one for one in places if one != gone)).encoded if len(places) > 1 else encoded


def _spoiled(bundle: Bundle) -> Bundle:
    """The bundle with wrong digests in one row."""
    (place, sealed, digests), *rest = bundle.rows
    digests = bytes([digests[0] ^ 1]) + digests[1:]
    return Bundle(bundle.owner, ((place, sealed, digests), *rest), bundle.own)
