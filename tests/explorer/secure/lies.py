"""Lies in secure rounds: of a dishonest device, in its own messages, and of a coordinator, in what it answers.

::

    digests        the digests of its shares are not those of what it sealed: a holder complains
    sealed         what it sealed does not open: a holder complains
    polynomial     its shares and digests fit together, and are of another secret: it is proven at fault, and barred
    vector         it sends two masked vectors: the first one counts
    accusation     it complains of an honest dealer: one word against another
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
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import Complaint, Octets, SecureSigned, Stage
from client_sdk.secagg.lanes import lane_dtype, pack, unpack
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import RevealedShares, Survivors
from tests.explorer.request import SentRequest

if TYPE_CHECKING:
    from tests.explorer.world import World

LIES: dict[Stage, tuple[str, ...]] = {
    "share": ("digests", "sealed"),
    "mask": ("vector", "accusation"),
    "survivors": ("list",),
    "unmask": ("shares",),
}
LIE = "secure-lie"


class DishonestPart:
    """Lies with the key of one device. ``also``: sends a request besides those of its session."""

    def __init__(self, world: World, device: str, signer: Signer, also: Callable[[Send, bytes], None]) -> None:
        self._world, self._device, self._signer, self._also = world, device, signer, also

    def split(
        self, secret: bytes, holders: Sequence[int], threshold: int, entropy: Callable[[int], bytes]
    ) -> list[bytes]:
        """In place of ``shamir.split``: shares of another secret, where the device lies."""
        if self._world.strikes(LIE, f"{self._device} polynomial"):
            self._world.log(f"{self._device} lies: polynomial")
            self._world.vectors.liars.add(self._device)
            secret = hashlib.sha256(secret).digest()
        return split(secret, holders, threshold, entropy)

    def altered(self, send: Send, stage: Stage, cohort: MaskingCohort, survivors: bytes) -> Send:
        """The message that the device sends instead of this one."""
        world = self._world
        if stage not in LIES or world.shape.proven_liar or not world.strikes(LIE, f"{self._device} {stage}"):
            return send
        lie, place = world.chance.pick(f"lie {stage}", LIES[stage]), cohort.place_of(self._device)
        world.log(f"{self._device} lies: {lie}")
        octets = send.octets or b""
        match lie:
            case "digests" | "sealed":
                return self._signed(send, cohort, stage, _spoiled(Bundle.parse(octets, cohort.n), lie).encoded)
            case "vector":
                other = self._other_vector(octets, cohort)
                said = MaskedInput.of(place, cohort.header.lanes, cohort.roster.lane_bits, other)
                self._also(self._signed(send, cohort, stage, said.encoded, other), other)
            case "accusation":
                dealers = tuple(cohort.device(peer) for peer in range(cohort.n) if peer != place)
                path = {name: send.path[name] for name in ("run", "round", "attempt")}
                message = Complaint(dealers=(world.chance.pick("accused", dealers),))
                post = Send(method="POST", route=Route.SECURE_COMPLAINT, answers=(Noted,), path=path, message=message)
                self._also(post, b"")
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

    def _other_vector(self, vector: bytes, cohort: MaskingCohort) -> bytes:
        """The vector with one more in its first lane, which the sum then has."""
        lanes, bits = cohort.header.lanes, cohort.roster.lane_bits
        found = unpack(vector, lanes, bits)
        found[0] = (int(found[0]) + 1) % (1 << bits)
        other = pack(found.astype(lane_dtype(bits)), bits)
        known = self._world.vectors.masked.get(hashlib.sha256(vector).digest())
        if known is not None:
            more = known[1].copy()
            more[0] += np.uint64(1)
            self._world.vectors.masked[hashlib.sha256(other).digest()] = (self._device, more)
        return other


def forged(world: World, request: SentRequest, answer: Octets) -> Octets:
    """The answer of a coordinator that perhaps shows this device another list than the others."""
    send = request.send
    if not isinstance(send, Send) or send.route is not Route.SECURE_ANSWER or send.path["stage"] != "mask":
        return answer
    if not answer.content or not world.strikes("forged-list", request.holder.id):
        return answer
    world.vectors.deceived.add(request.holder.id)
    world.log(f"{request.holder.id} is shown another list of survivors")
    return Octets(content=another_list(answer.content, 1 << 20))


def another_list(encoded: bytes, n: int, place: int = -1) -> bytes:
    """The list without one of its members, another one than ``place``."""
    places = list(Survivors.parse(encoded, n).places)
    gone = next((one for one in places if one != place), places[0])
    return Survivors(tuple(one for one in places if one != gone)).encoded if len(places) > 1 else encoded


def _spoiled(bundle: Bundle, lie: str) -> Bundle:
    """The bundle with one wrong row."""
    (place, sealed, digests), *rest = bundle.rows
    if lie == "digests":
        digests = bytes([digests[0] ^ 1]) + digests[1:]
    else:
        sealed = bytes([sealed[0] ^ 1]) + sealed[1:]
    return Bundle(bundle.owner, ((place, sealed, digests), *rest), bundle.own)
