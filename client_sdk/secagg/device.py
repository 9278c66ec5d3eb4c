"""The device's half of one attempt, as a generator of actions; it can be crashed after any of them.

This file decides what a device says and when it stops; it has never heard of sockets, storage or clocks (times come
with replies, entropy is an argument). Whoever drives it makes every Keep durable before it goes on, delivers every Say
until it is answered, and sends back what the coordinator answered.

::

    header      consent, old attempt deleted, fresh keys -> Keep -> Say(advertise)     answer: the roster
    roster      every entry vouched for; secrets split  -> Keep -> Say(share)         answer: shares of peers, sealed
    shares      unsealed; vector masked; own secrets go -> Keep -> Say(mask)          answer: the survivors
    survivors   listed, enough, each one known: *spent*,
                and of each peer's two shares one goes  -> Keep -> Say(survivors)     answer: their signatures
    proof       t right ones over its own h             ->         Say(unmask)        answer: the round is over
    over        everything secret of the attempt deleted -> Keep

A round may end, or the device give it up, without that last answer: then its driver keeps ``memory.ended(header)``.

What makes a lying coordinator fail:

- A step's result is kept before it is said, and a step that was kept is never taken again: one roster an advertisement,
  one masked vector, one list a checkpoint. Started again under the same header, the device says the same bytes.
- Advertising under another header deletes the older attempt first; nothing of it can be asked for any more.
- A list is signed when this device and enough others are on it and every neighbour on it has shared with this device;
  the checkpoint is then spent, over all headers. What is revealed follows from that list alone: for a peer one share,
  of its self-mask secret or of its mask key; the other is deleted before the list is signed.
- With its first header the device has joined a secure round of its learner: no plain plan for it any more.
- Anything else is Refusal or another SecaggError, and the device says nothing further.

What CPython allows: the key stream's buffer is overwritten after its use, and the vector is masked in its own place.
Keys, seeds and shares are ``bytes``, which nothing overwrites: references are dropped when no step needs them any more,
and what the collector has freed may lie in memory until it is used again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from client_sdk.identity import Entropy, Signer
from client_sdk.secagg.advertisement import Advertisement, AttemptSecrets, sign_advertisement
from client_sdk.secagg.consent import (
    Expected,
    SecurePolicy,
    require_agreed,
    require_consent,
    require_time,
    require_withstood,
)
from client_sdk.secagg.errors import BadMessage, BadShare, Refusal, Spent, Unopened
from client_sdk.secagg.header import Header
from client_sdk.secagg.lanes import cut, pack
from client_sdk.secagg.masked import MaskedInput
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.memory import Live, Memory, Tries
from client_sdk.secagg.quantize import ROUNDING_BYTES, largest, rounding_key
from client_sdk.secagg.roster import Cohort, Roster, Vouching, join
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair, unseal_pair
from client_sdk.secagg.statement import Stage, signed
from client_sdk.secagg.survivors import Proof, Survivors
from client_sdk.secagg.unmask import Revealed
from client_sdk.tensors.floats import Float32


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable before anything else happens."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Transmit:
    """One message of the device, the same bytes however often it is sent."""

    stage: Stage
    body: bytes
    signature: bytes
    """Over the header's digest (advertise) or h, the stage and the body."""
    blob: bytes = b""
    """With *advertise* the certificate, with *mask* the packed vector."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What the coordinator answered, and when (Unix seconds, device's clock)."""

    at: float
    body: bytes


Half = Generator[Persist | Transmit, ServerAnswer | None, Memory]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceContribution:
    """What a device puts in: encoded values (1-d float32), its weight, and its own rounding secret (32 bytes).

    Nothing here changes the values, since another attempt may ask for them: whoever drives the device overwrites them
    when its checkpoint is spent or the round is over."""

    values: Float32
    weight: int
    rounding_secret: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Primitives:
    """The costly and the secret steps, for tests and simulations that watch or replace them."""

    split: Callable[..., list[bytes]] = split
    seal: Callable[..., bytes] = seal_pair
    unseal: Callable[..., SharePair] = unseal_pair
    masker: Callable[..., Masker] = Masker


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureDevice:
    """Who takes part: what stays the same over attempts."""

    device: str
    """Its id, as in its certificate."""
    certificate: bytes
    signer: Signer
    entropy: Entropy
    vouched: Vouching
    policy: SecurePolicy = field(default_factory=SecurePolicy)
    primitives: Primitives = field(default_factory=Primitives)

    def attempt(self, memory: Memory, header: bytes, expected: Expected, put_in: DeviceContribution, at: float) -> Half:
        """This device's half of the attempt of ``header``, from what it remembers; returns what it remembers after.

        Begins anew, or goes on where ``memory`` says that it was. ``at``: Unix seconds. Raises Refusal and other
        SecaggError; what was kept until then stays true.
        """
        return _Attempt(self, memory, Header.parse(header), expected, put_in, at).play()


class _Attempt:
    """The steps, in the order of the picture above."""

    def __init__(
        self,
        device: SecureDevice,
        memory: Memory,
        header: Header,
        expected: Expected,
        put_in: DeviceContribution,
        at: float,
    ) -> None:
        self.me, self.header, self.expected, self.put_in, self.at = device, header, expected, put_in, at
        self.memory = memory

    def play(self) -> Half:
        swept = self.memory.swept(self.at)
        if swept is not self.memory:
            yield from self._persist(swept)
        require_agreed(self.header, self.expected, self.me.policy, self.memory)
        live = self.memory.live.get(self.header.model)
        if live is None or live.header != self.header.encoded:
            live = yield from self._open()
        if not live.roster:
            shown = Advertisement.parse(live.advertised)
            signature = sign_advertisement(shown, self.header.digest, self.me.signer)
            roster = yield from self._transmit("advertise", shown.encoded, signature, self.me.certificate)
            cohort = self._joined(live, Roster.parse(roster))
            live = yield from self._share(live, cohort)
        else:
            cohort = self._joined(live, Roster.parse(live.roster))
        place = cohort.place_of(self.me.device)
        if not (live.vector or live.survivors):
            delivered = yield from self._transmit_signed(cohort, "share", live.bundle)
            live = yield from self._mask(live, cohort, place, Bundle.parse(delivered, cohort.n))
        if not live.survivors:
            said = MaskedInput.of(place, self.header.lanes, cohort.roster.lane_bits, live.vector)
            listed = yield from self._transmit_signed(cohort, "mask", said.encoded, live.vector)
            live = yield from self._agree(live, cohort, place, Survivors.parse(listed, cohort.n))
        survivors = Survivors.parse(live.survivors, cohort.n)
        proof = yield from self._transmit_signed(cohort, "survivors", survivors.encoded)
        Proof.parse(proof, cohort.n).require(cohort, place, survivors)
        yield from self._transmit_signed(cohort, "unmask", live.revealed)
        yield from self._persist(self.memory.without(self.header.model))
        return self.memory

    def _open(self) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Consent, and fresh secrets in the place of whatever was left of an older attempt on this checkpoint."""
        header, memory = self.header, self.memory
        tries = memory.tries.get(header.model)
        if tries is not None and tries.last_at > self.at:  # the clock went back: the pause begins again
            memory = replace(memory, tries={**memory.tries, header.model: replace(tries, last_at=self.at)})
            yield from self._persist(memory)
        require_consent(header, self.expected, self.me.policy, memory, self.at)
        self._require_fitting()
        count = 1 if tries is None else tries.count + 1
        made = Tries(count=count, last_at=self.at, round=header.round, attempt=header.attempt)
        secrets = AttemptSecrets.draw(self.me.entropy)
        live = Live(header=header.encoded, advertised=secrets.advertisement(self.me.device).encoded, secrets=secrets)
        memory = replace(
            memory,
            revocations=header.revocations,
            tries={**memory.tries, header.model: made},
            learners=memory.learners | {self.expected.learner},
        )
        yield from self._persist(memory.going_on(header.model, live))
        return live

    def _require_fitting(self) -> None:
        """Refusal where what the device puts in is not what the header takes: before anything is shown, not after."""
        values, weight = self.put_in.values, self.put_in.weight
        if not isinstance(values, np.ndarray) or values.dtype != np.float32:
            raise Refusal("This device's update is not an array of float32.")
        if values.shape != (self.header.dimension,):
            raise Refusal("This device's update has another number of values than the header says.")
        if not math.isfinite(largest(values)):
            raise Refusal("This device's update holds NaN or infinity.")
        if not self.header.quantizer.takes_weight(weight):
            raise Refusal("This device's weight is not within the header's cap.")
        if len(self.put_in.rounding_secret) != ROUNDING_BYTES:
            raise Refusal(f"This device's rounding secret is not {ROUNDING_BYTES} bytes.")

    def _joined(self, live: Live, roster: Roster) -> Cohort:
        """The cohort of ``roster``, in which this device stands with its own advertisement, key and certificate."""
        require_withstood(self.header.rule, len(roster), self.me.policy)
        cohort = join(self.header, roster, self.me.vouched)
        place = cohort.place_of(self.me.device)
        if roster.entries[place].advertisement.encoded != live.advertised:
            raise BadMessage("the roster shows other keys under this device's id than it advertised")
        if cohort.identities[place] != self.me.signer.public_hex:
            raise BadMessage("the roster shows another identity under this device's id")
        return cohort

    def _share(self, live: Live, cohort: Cohort) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Both secrets split and sealed for the holders; the roster is the one of this advertisement from now on."""
        place, threshold = cohort.place_of(self.me.device), cohort.parameters.threshold
        holders = cohort.graph.holders(place)
        xs = [holder + 1 for holder in holders]
        secrets, tools = _own(live), self.me.primitives
        seeds = tools.split(secrets.self_mask, xs, threshold, self.me.entropy)
        keys = tools.split(secrets.mask_key.private, xs, threshold, self.me.entropy)
        sealed, held = [], {}
        for holder, seed, key in zip(holders, seeds, keys, strict=True):
            pair = SharePair(seed, key)
            if holder == place:
                held[place] = pair
                continue
            agreed = secrets.share_key.agree(cohort.roster.entries[holder].advertisement.share_key)
            peer = (holder, cohort.device(holder))
            sealed.append((holder, tools.seal(agreed, cohort.h, (place, self.me.device), peer, pair)))
        bundle = Bundle(place, tuple(sealed)).encoded
        live = replace(live, roster=cohort.roster.encoded, bundle=bundle, held=held)
        yield from self._persist(self.memory.going_on(self.header.model, live))
        return live

    def _mask(
        self, live: Live, cohort: Cohort, place: int, delivered: Bundle
    ) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Peers' shares unsealed, and the vector masked with all who shared."""
        neighbours = cohort.graph.neighbours(place)
        if delivered.owner != place or not set(delivered.places) <= set(neighbours):
            raise BadMessage("shares were delivered that are not for this device, or not of its neighbours")
        secrets, tools, held = _own(live), self.me.primitives, dict(live.held)
        unopened: dict[str, str] = {}
        for dealer, sealed in delivered.sealed:
            agreed = secrets.share_key.agree(cohort.roster.entries[dealer].advertisement.share_key)
            peer = (dealer, cohort.device(dealer))
            try:
                held[dealer] = tools.unseal(agreed, cohort.h, peer, (place, self.me.device), sealed)
            except BadShare as error:
                unopened[peer[1]] = str(error)
        if unopened:
            raise Unopened(tuple(unopened), next(iter(unopened.values())))
        if len(held) < cohort.parameters.threshold:
            raise Refusal(f"{len(held)} devices shared with this one; it takes {cohort.parameters.threshold}.")
        self._require_fitting()  # after a crash it may have been trained anew
        bits = cohort.roster.lane_bits
        rounding = rounding_key(self.put_in.rounding_secret, self.header.digest)
        vector = self.header.quantizer.lanes(self.put_in.values, self.put_in.weight, bits, rounding, self.header.cipher)
        masker = tools.masker(self.header.cipher, bits)
        try:
            masker.apply(vector, self_seed(secrets.self_mask, cohort.h, place), 1)
            for peer_place in delivered.places:
                agreed = secrets.mask_key.agree(cohort.roster.entries[peer_place].advertisement.mask_key)
                masker.apply(vector, pair_seed(agreed, cohort.h, place, peer_place), pair_sign(place, peer_place))
        except BaseException:  # what was not masked to the end is not left in memory
            vector[:] = 0
            raise
        finally:
            masker.wipe()
        cut(vector, bits)
        live = replace(live, held=held, vector=pack(vector, bits), secrets=None, bundle=b"")
        yield from self._persist(self.memory.going_on(self.header.model, live))
        return live

    def _agree(
        self, live: Live, cohort: Cohort, place: int, survivors: Survivors
    ) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """The list checked; with it this checkpoint is spent, and of every peer one kind of share is left."""
        model = self.header.model
        if place not in survivors.members:
            raise Refusal("The survivor list lacks this device.")
        survivors.require_enough(cohort)
        near = survivors.members & set(cohort.graph.neighbours(place))
        if not near <= live.held.keys():
            raise Refusal("The survivor list names a neighbour that never shared with this device.")
        if model in self.memory.spent:
            raise Spent
        revealed = Revealed.of(place, live.held, survivors).encoded
        live = replace(live, survivors=survivors.encoded, revealed=revealed, held={}, vector=b"")
        what = hashlib.sha256(cohort.h + survivors.encoded).digest()
        memory = replace(self.memory, spent={**self.memory.spent, model: what})
        yield from self._persist(memory.going_on(model, live))
        return live

    def _transmit_signed(
        self, cohort: Cohort, stage: Stage, body: bytes, blob: bytes = b""
    ) -> Generator[Persist | Transmit, ServerAnswer | None, bytes]:
        return (yield from self._transmit(stage, body, signed(self.me.signer, cohort.h, stage, body), blob))

    def _transmit(
        self, stage: Stage, body: bytes, signature: bytes, blob: bytes = b""
    ) -> Generator[Persist | Transmit, ServerAnswer | None, bytes]:
        """Say it, and look at the clock: after expiry nothing more is signed or revealed, and all is deleted."""
        told = yield Transmit(stage, body, signature, blob)
        if not isinstance(told, ServerAnswer):
            raise TypeError(f"the driver answered a message with {told!r}")
        self.at = told.at
        if self.at > self.header.expires_at and stage != "unmask":
            yield from self._persist(self.memory.without(self.header.model))
            require_time(self.header, self.at)
        return told.body

    def _persist(self, memory: Memory) -> Generator[Persist | Transmit, ServerAnswer | None, None]:
        self.memory = memory
        yield Persist(memory)


def _own(live: Live) -> AttemptSecrets:
    if live.secrets is None:
        raise BadMessage("this device's memory of the attempt lacks its own secrets")
    return live.secrets
