"""The device's part of one attempt, as a generator of actions; the device may crash after any of them.

It decides what a device sends and when it stops. Times come with replies, entropy is an argument. The driver makes
every Persist durable before it continues, delivers every Transmit until it is answered, and sends the coordinator's
answer back.

::

    state       what the device does                        actions                           answer
    header      checks, deletes old attempt, draws keys     Persist, then Transmit(advertise) the roster
    roster      checks every entry; splits its secrets      Persist, then Transmit(share)     sealed shares of peers
    shares      unseals them, masks its vector, deletes
                its own secrets                             Persist, then Transmit(mask)      the survivors
    survivors   checks the list, is now *spent*, deletes
                one of each peer's two shares               Persist, then Transmit(survivors) their signatures
    proof       checks t signatures over its own h          Transmit(unmask)                  the round is over
    over        deletes all secrets of the attempt          Persist

A round may end, or the device may give it up, without that last answer: then its driver stores
``memory.ended(header)``.

What protects the device against a malicious coordinator:

- A step's result is stored before it is sent, and a stored step is never repeated: one roster for each advertisement,
  one masked vector, one list for each checkpoint. A device that restarts under the same header sends the same bytes.
- Before it advertises under another header, the device deletes the older attempt: it can send nothing of it any more.
- A device signs a list only where this device and enough others are on it and every neighbour on it has shared with
  this device; the checkpoint is then spent, for all headers. What it reveals follows from that list alone: one share
  for each peer, of its self-mask secret or of its mask key; the other is deleted before the list is signed.
- With its first header the device has joined a secure round of its learner: it refuses plain plans for that learner.
- Anything else raises Refusal or another SecaggError, and the device sends nothing more.

The limits of CPython: the key stream's buffer is overwritten after its use, and the vector is masked in place. Keys,
seeds and shares are ``bytes``, which cannot be overwritten: references are dropped as soon as no step needs them, and
freed objects may stay in memory until it is reused.
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
from client_sdk.secagg.errors import BadMessage, BadShare, Refusal, SpentOnCheckpoint, Unopened
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import cut, pack
from client_sdk.secagg.masked import MaskedInput
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from client_sdk.secagg.memory import Live, Memory, Tries
from client_sdk.secagg.quantize import ROUNDING_BYTES, largest, rounding_key
from client_sdk.secagg.roster import MaskingCohort, Roster, Vouching, join
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair, unseal_pair
from client_sdk.secagg.statement import Stage, signed
from client_sdk.secagg.survivors import Proof, Survivors
from client_sdk.secagg.unmask import RevealedShares
from client_sdk.tensors.floats import Float32


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this memory durable before anything else happens."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Transmit:
    """One message of the device: the same bytes each time that it is sent."""

    stage: Stage
    body: bytes
    signature: bytes
    """Over the header's digest (advertise) or h, the stage and the body."""
    blob: bytes = b""
    """With *advertise* the certificate, with *mask* the packed vector."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The coordinator's answer and its time (Unix seconds, device's clock)."""

    at: float
    body: bytes


DevicePart = Generator[Persist | Transmit, ServerAnswer | None, Memory]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceContribution:
    """What a device contributes: encoded values (1-d float32), its weight, and its own rounding secret (32 bytes).

    The values are not changed here, since another attempt may need them: the driver overwrites them when the checkpoint
    is spent or the round is over."""

    values: Float32
    weight: int
    rounding_secret: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Primitives:
    """The expensive and the secret steps, so that tests and simulations can observe or replace them."""

    split: Callable[..., list[bytes]] = split
    seal: Callable[..., bytes] = seal_pair
    unseal: Callable[..., SharePair] = unseal_pair
    masker: Callable[..., Masker] = Masker


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureDevice:
    """The participating device: what is the same in all its attempts."""

    device: str
    """Its id, as in its certificate."""
    certificate: bytes
    signer: Signer
    entropy: Entropy
    vouched: Vouching
    policy: SecurePolicy = field(default_factory=SecurePolicy)
    primitives: Primitives = field(default_factory=Primitives)

    def attempt(
        self, memory: Memory, header: bytes, expected: Expected, put_in: DeviceContribution, at: float
    ) -> DevicePart:
        """This device's part of the attempt of ``header``: from its memory before to its memory after the attempt.

        Starts a new attempt, or continues the one that ``memory`` holds. ``at``: Unix seconds. Raises Refusal and other
        SecaggError; what was persisted until then stays valid.
        """
        return _Attempt(self, memory, AttemptHeader.parse(header), expected, put_in, at).play()


class _Attempt:
    """The steps, in the order of the table above."""

    def __init__(
        self,
        device: SecureDevice,
        memory: Memory,
        header: AttemptHeader,
        expected: Expected,
        put_in: DeviceContribution,
        at: float,
    ) -> None:
        self.me, self.header, self.expected, self.put_in, self.at = device, header, expected, put_in, at
        self.memory = memory

    def play(self) -> DevicePart:
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
            masked = MaskedInput.of(place, self.header.lanes, cohort.roster.lane_bits, live.vector)
            listed = yield from self._transmit_signed(cohort, "mask", masked.encoded, live.vector)
            live = yield from self._agree(live, cohort, place, Survivors.parse(listed, cohort.n))
        survivors = Survivors.parse(live.survivors, cohort.n)
        proof = yield from self._transmit_signed(cohort, "survivors", survivors.encoded)
        Proof.parse(proof, cohort.n).require(cohort, place, survivors)
        yield from self._transmit_signed(cohort, "unmask", live.revealed)
        yield from self._persist(self.memory.without(self.header.model))
        return self.memory

    def _open(self) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Check consent, and replace any older attempt on this checkpoint by new secrets."""
        header, memory = self.header, self.memory
        tries = memory.tries.get(header.model)
        if tries is not None and tries.last_at > self.at:  # the clock was set back: restart the pause
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
        """Raise Refusal where the contribution does not fit the header, before the device sends anything."""
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

    def _joined(self, live: Live, roster: Roster) -> MaskingCohort:
        """The cohort of ``roster``, checked to hold this device with its own advertisement, key and certificate."""
        require_withstood(self.header.rule, len(roster), self.me.policy)
        cohort = join(self.header, roster, self.me.vouched)
        place = cohort.place_of(self.me.device)
        if roster.entries[place].advertisement.encoded != live.advertised:
            raise BadMessage("the roster shows other keys under this device's id than it advertised")
        if cohort.identities[place] != self.me.signer.public_hex:
            raise BadMessage("the roster shows another identity under this device's id")
        return cohort

    def _share(self, live: Live, cohort: MaskingCohort) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Split both secrets and seal the shares for the holders. From now on this advertisement has this roster."""
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
        self, live: Live, cohort: MaskingCohort, place: int, delivered: Bundle
    ) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Unseal the peers' shares, and mask the vector with every peer that shared."""
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
        self._require_fitting()  # after a crash the device may have trained again
        bits = cohort.roster.lane_bits
        rounding = rounding_key(self.put_in.rounding_secret, self.header.digest)
        vector = self.header.quantizer.lanes(self.put_in.values, self.put_in.weight, bits, rounding, self.header.cipher)
        masker = tools.masker(self.header.cipher, bits)
        try:
            masker.apply(vector, self_seed(secrets.self_mask, cohort.h, place), 1)
            for peer_place in delivered.places:
                agreed = secrets.mask_key.agree(cohort.roster.entries[peer_place].advertisement.mask_key)
                masker.apply(vector, pair_seed(agreed, cohort.h, place, peer_place), pair_sign(place, peer_place))
        except BaseException:  # do not leave a partly masked vector in memory
            vector[:] = 0
            raise
        finally:
            masker.wipe()
        cut(vector, bits)
        live = replace(live, held=held, vector=pack(vector, bits), secrets=None, bundle=b"")
        yield from self._persist(self.memory.going_on(self.header.model, live))
        return live

    def _agree(
        self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors
    ) -> Generator[Persist | Transmit, ServerAnswer | None, Live]:
        """Check the list. The checkpoint is then spent, and one kind of share of each peer is left."""
        model = self.header.model
        if place not in survivors.members:
            raise Refusal("The survivor list lacks this device.")
        survivors.require_enough(cohort)
        near = survivors.members & set(cohort.graph.neighbours(place))
        if not near <= live.held.keys():
            raise Refusal("The survivor list names a neighbour that never shared with this device.")
        if model in self.memory.spent:
            raise SpentOnCheckpoint
        revealed = RevealedShares.of(place, live.held, survivors).encoded
        live = replace(live, survivors=survivors.encoded, revealed=revealed, held={}, vector=b"")
        what = hashlib.sha256(cohort.h + survivors.encoded).digest()
        memory = replace(self.memory, spent={**self.memory.spent, model: what})
        yield from self._persist(memory.going_on(model, live))
        return live

    def _transmit_signed(
        self, cohort: MaskingCohort, stage: Stage, body: bytes, blob: bytes = b""
    ) -> Generator[Persist | Transmit, ServerAnswer | None, bytes]:
        return (yield from self._transmit(stage, body, signed(self.me.signer, cohort.h, stage, body), blob))

    def _transmit(
        self, stage: Stage, body: bytes, signature: bytes, blob: bytes = b""
    ) -> Generator[Persist | Transmit, ServerAnswer | None, bytes]:
        """Send a message and check the clock: after expiry the device signs and reveals nothing, and deletes all."""
        answer = yield Transmit(stage, body, signature, blob)
        if not isinstance(answer, ServerAnswer):
            raise TypeError(f"the driver answered a message with {answer!r}")
        self.at = answer.at
        if self.at > self.header.expires_at and stage != "unmask":
            yield from self._persist(self.memory.without(self.header.model))
            require_time(self.header, self.at)
        return answer.body

    def _persist(self, memory: Memory) -> Generator[Persist | Transmit, ServerAnswer | None, None]:
        self.memory = memory
        yield Persist(memory)


def _own(live: Live) -> AttemptSecrets:
    if live.secrets is None:
        raise BadMessage("this device's memory of the attempt lacks its own secrets")
    return live.secrets
