"""The device's part of one attempt, as a generator of actions; the device may crash after any of them.

Times come with replies, entropy is an argument. The driver performs every Keep durably and sends the stored memory
back; it delivers every Transmit until it is answered, and sends the coordinator's answer back.

::

    begun       deletes attempts that have expired          Keep                               the newest memory
    header      checks, deletes an older attempt, draws
                keys                                        Keep, then Transmit(advertise)     the roster
    roster      checks every entry; splits its secrets      Keep, then Transmit(share)         sealed shares of peers
    shares      unseals them                                where some do not open:
                                                            Transmit(complain)                 how that was settled
                masks its vector                            Keep, then Transmit(mask)          the survivors
    complaints  in place of either answer: opens the pairs
                of its own rows that peers complain of      Transmit(open)                     as to the one before
    survivors   checks the list, is now *spent*, deletes
                its own secrets and one of each peer's two
                shares                                      Keep, then Transmit(survivors)     their signatures
    proof       checks t signatures over its own h          Transmit(unmask)                   the round is over
    over        deletes all secrets of the attempt          Keep

A round may end, or the device may give it up, without that last answer: then its driver stores
``memory.ended(header)``.

What protects the device against a malicious coordinator:

- A step's result is stored before it is sent, and a stored step is never repeated: one roster for each advertisement,
  one masked vector, one list for each checkpoint. A device that restarts under the same header sends the same bytes.
- A step is a change of the newest memory, and is refused (Superseded) where the attempt is no longer the one from which
  it was made. So two generators of one device, in one run or in two, take each step once between them.
- Before it advertises under another header, the device deletes the older attempt on that checkpoint: it can take no
  further step in it.
- A device signs a list only where this device and enough others are on it and every neighbour on it has shared with
  this device; the checkpoint is then spent, for all headers of all runs. What it reveals follows from that list alone:
  one share for each peer, of its self-mask secret or of its mask key; the other is deleted before the list is signed.
- A pair of its own shares is opened only where its holder has signed a complaint of exactly the row that this device
  dealt (``complaints``): what was altered between two honest devices opens nothing. No key is ever opened.
- With its first header the device has joined a secure round of its learner: it refuses plain plans for that learner.
- Anything else raises Refusal or another SecaggError, and the device sends nothing more.

The limits of CPython: the key stream's buffer is overwritten after its use, and the vector is masked in place. Keys,
seeds and shares are ``bytes``, which cannot be overwritten: references are dropped as soon as no step needs them, and
freed objects may stay in memory until it is reused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np

from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import (
    AttemptAction,
    AttemptReply,
    DeviceContribution,
    DevicePart,
    Keep,
    Primitives,
    ServerAnswer,
    Transmit,
)
from client_sdk.secagg.agreement import KeyStream, derive
from client_sdk.secagg.complaints import Accusations, Complaint, OpenedPairs, Settlement, is_accusation
from client_sdk.secagg.consent import Expected, SecurePolicy, require_agreed, require_consent, require_withstood
from client_sdk.secagg.errors import BadMessage, BadShare, Expired, Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import cut, pack
from client_sdk.secagg.masks import MaskedInput, pair_sign, self_seed
from client_sdk.secagg.memory import Answered, Live, Memory, Step
from client_sdk.secagg.noise import add_noise
from client_sdk.secagg.quantize import ROUNDING_BYTES, largest, rounding_key
from client_sdk.secagg.roster import (
    Advertisement,
    AttemptSecrets,
    MaskingCohort,
    Roster,
    rejoin,
    require_list,
    sign_advertisement,
    vouched_by_list,
)
from client_sdk.secagg.shares import Bundle, Row, SharePair
from client_sdk.secagg.statement import DOMAIN, signed
from client_sdk.secagg.survivors import Proof, RevealedShares, Survivors

# ------------------------------------------------------------ dealing
# Exchange 2 on the device: its two secrets are split and sealed for the holders, and the peers' shares are opened
# and compared with the digests that their dealers signed.
#
# The coefficients of Shamir's polynomials are no fresh entropy: they are the key stream of
# HKDF(dealing secret, salt = h, info = domain, kind of secret). So one roster has one bundle, whatever the device has
# forgotten in between: a storage that is set back deals the same shares, and seals the same bytes with the same AES-GCM
# key and nonce. Another roster has another h, so other polynomials and other keys. Errors: BadParameters, BadMessage.


SecretKind = Literal["self-mask", "mask-key"]

_UNIT = 64


def coefficients(dealing: bytes, h: bytes, kind: SecretKind) -> Callable[[int], bytes]:
    """The source of the coefficients for one secret of an attempt, for one call: ``dealing`` is its dealing secret."""
    key = derive(dealing, salt=h, info=DOMAIN + b"dealing " + kind.encode())

    def draw(length: int) -> bytes:
        stream = KeyStream(-(-length // _UNIT) * _UNIT)
        stream.start(key)
        drawn = stream.take(length).tobytes()
        stream.wipe()
        return drawn

    return draw


def deal(
    cohort: MaskingCohort, place: int, secrets: AttemptSecrets, tools: Primitives
) -> tuple[Bundle, dict[int, SharePair]]:
    """The bundle of the device at ``place`` for its holders, and the pair that it holds of its own secrets (by place;
    none on a ring)."""
    holders, threshold = cohort.graph.holders(place), cohort.parameters.threshold
    xs = [holder + 1 for holder in holders]
    seeds = tools.split(secrets.self_mask, xs, threshold, coefficients(secrets.dealing, cohort.h, "self-mask"))
    keys = tools.split(secrets.mask_key.private, xs, threshold, coefficients(secrets.dealing, cohort.h, "mask-key"))
    rows, own = [], dict[int, SharePair]()
    dealer = (place, cohort.device(place))
    for holder, seed, key in zip(holders, seeds, keys, strict=True):
        pair = SharePair(seed, key)
        if holder == place:
            own[place] = pair
            continue
        agreed = tools.agree(secrets.share_key, cohort.roster.entries[holder].advertisement.share_key)
        sealed = tools.seal(agreed, cohort.h, dealer, (holder, cohort.device(holder)), pair)
        rows.append((holder, sealed, pair.digests(cohort.h, place, holder)))
    digests = own[place].digests(cohort.h, place, place) if own else b""
    return Bundle(place, tuple(rows), digests), own


def take(
    cohort: MaskingCohort, place: int, secrets: AttemptSecrets, delivered: Bundle, tools: Primitives
) -> tuple[dict[int, SharePair], list[Row]]:
    """The pairs that peers sealed for the device at ``place``, by dealer, and the rows that do not open or do not hold
    the pair of their digests. BadMessage where the delivery is not for this device, or not of its neighbours."""
    if delivered.owner != place or delivered.own or not set(delivered.places) <= set(cohort.graph.neighbours(place)):
        raise BadMessage("shares were delivered that are not for this device, or not of its neighbours")
    holder = (place, cohort.device(place))
    taken: dict[int, SharePair] = {}
    unopened: list[Row] = []
    for dealer, sealed, digests in delivered.rows:
        agreed = tools.agree(secrets.share_key, cohort.roster.entries[dealer].advertisement.share_key)
        try:
            pair = tools.unseal(agreed, cohort.h, (dealer, cohort.device(dealer)), holder, sealed)
            pair.require_dealt(cohort.h, dealer, place, digests)
            taken[dealer] = pair
        except BadShare:
            unopened.append((dealer, sealed, digests))
    return taken, unopened


def opened(
    cohort: MaskingCohort,
    place: int,
    secrets: AttemptSecrets,
    dealt: Bundle,
    accusations: Accusations,
    tools: Primitives,
) -> OpenedPairs:
    """The pairs of the rows that the device at ``place`` has ``dealt``, for those of their holders that complain of
    exactly these rows. Refusal, BadMessage: see ``Accusations.holders``."""
    holders = accusations.holders(cohort, place, dealt.rows)
    pairs, dealer = {}, (place, cohort.device(place))
    for holder, sealed, _ in dealt.rows:
        if holder in holders:
            agreed = tools.agree(secrets.share_key, cohort.roster.entries[holder].advertisement.share_key)
            pairs[holder] = tools.unseal(agreed, cohort.h, dealer, (holder, cohort.device(holder)), sealed)
    return OpenedPairs(place, pairs)


# ------------------------------------------------------------ device


T = TypeVar("T")
Steps = Generator[AttemptAction, AttemptReply, T]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureDevice:
    """The participating device: what is the same in all its attempts."""

    device: str
    """Its id, as in its certificate."""
    certificate: bytes
    """Shown in attempts that begin from now on."""
    signer: Signer
    entropy: Entropy
    authority: TrustedAuthority
    """It certifies the devices of a roster."""
    policy: SecurePolicy = field(default_factory=SecurePolicy)
    primitives: Primitives = field(default_factory=Primitives)

    def attempt(self, header: bytes, expected: Expected, put_in: DeviceContribution, at: float) -> DevicePart:
        """This device's part of the attempt of ``header``, until it is over.

        Starts a new attempt, or continues the one that is stored. ``at``: Unix seconds. Raises Refusal and other
        SecaggError; what was kept until then stays valid.
        """
        return _Attempt(self, AttemptHeader.parse(header), expected, put_in, at).play()


class _Attempt:
    """The steps, in the order of the table above."""

    def __init__(
        self, device: SecureDevice, header: AttemptHeader, expected: Expected, put_in: DeviceContribution, at: float
    ) -> None:
        self.me, self.header, self.expected, self.put_in, self.at = device, header, expected, put_in, at

    def play(self) -> DevicePart:
        require_agreed(self.header, self.expected, self.me.policy)
        memory = yield from self._keep(lambda newest: newest.swept(self.at))
        live = memory.live.get(self.expected.tensors)
        if live is None or live.header != self.header.encoded:
            live = yield from self._open(live)
        if live.step is Step.ADVERTISED:
            shown = Advertisement.parse(live.advertised)
            signature = sign_advertisement(shown, self.header.digest, self.me.signer)
            roster = yield from self._transmit("advertise", shown.encoded, signature, live.certificate)
            cohort = self._joined(live, self.me.primitives.roster(roster))
            live = yield from self._share(live, cohort, roster)
        else:
            cohort = self._rejoined(live)
        place = cohort.place_of(self.me.device)
        if live.step is Step.SHARED:
            delivered = yield from self._transmit_signed(cohort, "share", live.bundle)
            live = yield from self._mask(live, cohort, place, Bundle.parse(delivered, cohort.n))
        if live.step is Step.MASKED:
            masked = MaskedInput.of(place, self.header.lanes, cohort.roster.lane_bits, live.vector)
            listed = yield from self._settled(live, cohort, place, "mask", masked.encoded, live.vector)
            live = yield from self._agree(live, cohort, place, Survivors.parse(listed, cohort.n))
        survivors = Survivors.parse(live.survivors, cohort.n)
        proof = yield from self._transmit_signed(cohort, "survivors", survivors.encoded)
        self.me.primitives.prove(Proof.parse(proof, cohort.n), cohort, place, survivors)
        yield from self._transmit_signed(cohort, "unmask", live.revealed)
        return (yield from self._keep(lambda newest: newest.ended(self.header.encoded)))

    def _open(self, older: Live | None) -> Steps[Live]:
        """Check consent, and replace any older attempt on this checkpoint by new secrets."""
        header, tensors = self.header, self.expected.tensors
        secrets = AttemptSecrets.draw(self.me.entropy)

        def opened(newest: Memory) -> Memory:
            newest.require_seen(tensors, older)
            listed = require_consent(header, self.expected, self.me.policy, newest, self.at)
            require_list(self.me.authority, listed, self.at)
            require_fitting(header, self.put_in)  # of a spent device the update is gone: that it is spent is said first
            live = Live(
                step=Step.ADVERTISED,
                header=header.encoded,
                advertised=secrets.advertisement(self.me.device).encoded,
                secrets=secrets,
                certificate=self.me.certificate,
                revocations=listed.encoded,
            )
            begun = newest.begun(header, tensors, self.at).masked_for(self.expected.learner)
            return replace(begun, live={**newest.live, tensors: live}, revocations=header.revocations)

        return (yield from self._keep(opened)).live[tensors]

    def _joined(self, live: Live, roster: Roster) -> MaskingCohort:
        """The cohort of a roster that is new to this device: each entry is checked, by the list of the header."""
        listed = RevocationList.parse(live.revocations)
        vouched = vouched_by_list(self.me.authority, listed, self.at)
        cohort = self.me.primitives.join(self.header, roster, vouched, self.me.device)
        self._require_own(live, cohort)
        return cohort

    def _rejoined(self, live: Live) -> MaskingCohort:
        """The cohort of the roster that this device has accepted before: whom the authority revokes later stays in."""
        roster = Roster.parse(live.roster)
        cohort = rejoin(self.header, roster, near=self.me.device)
        self._require_own(live, cohort)
        return cohort

    def _require_own(self, live: Live, cohort: MaskingCohort) -> None:
        """Raise BadMessage unless the cohort holds this device, with its own advertisement and key; Refusal where it
        withstands too few."""
        require_withstood(self.header.rule, cohort.parameters.n, self.me.policy)
        place = cohort.place_of(self.me.device)
        if cohort.roster.entries[place].advertisement.encoded != live.advertised:
            raise BadMessage("the roster shows other keys under this device's id than it advertised")
        if cohort.identities[place] != self.me.signer.public_hex:
            raise BadMessage("the roster shows another identity under this device's id")

    def _share(self, live: Live, cohort: MaskingCohort, roster: bytes) -> Steps[Live]:
        """Split both secrets and seal the shares for the holders. From now on this advertisement has this roster."""
        bundle, own = deal(cohort, cohort.place_of(self.me.device), _own(live), self.me.primitives)
        moved = live.shared(roster=roster, bundle=bundle.encoded, held=own)
        return (yield from self._move(live, moved))

    def _mask(self, live: Live, cohort: MaskingCohort, place: int, delivered: Bundle) -> Steps[Live]:
        """Unseal the peers' shares, and mask the vector with every peer whose pair this device holds."""
        secrets, tools = _own(live), self.me.primitives
        taken, unopened = take(cohort, place, secrets, delivered, tools)
        if unopened:
            complaint = Complaint.of(cohort.h, place, unopened)
            answer = yield from self._settled(live, cohort, place, "complain", complaint.encoded)
            settlement = Settlement.parse(answer, cohort.n)
            taken |= settlement.pairs_for(cohort.h, complaint, {row[0]: row for row in unopened})
        held = dict(live.held) | taken
        if len(held) < cohort.parameters.threshold:
            raise Refusal(f"{len(held)} devices shared with this one; it takes {cohort.parameters.threshold}.")
        require_fitting(self.header, self.put_in)  # after a crash the device may have trained again
        vector = masked_vector(cohort, place, secrets, sorted(taken), self.put_in, tools)
        after, tensors = live.masked(held=held, vector=vector), self.expected.tensors
        model = Answered(at=self.at, near=self.expected.near, sketch=self.expected.sketch)
        yield from self._keep(lambda newest: newest.moved(tensors, live, after).answering(tensors, model))
        return after

    def _agree(self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors) -> Steps[Live]:
        """Check the list. The checkpoint is then spent, and one kind of share of each peer is left."""
        tensors = self.expected.tensors
        if place not in survivors.members:
            raise Refusal("The survivor list lacks this device.")
        survivors.require_enough(cohort)
        near = survivors.members & set(cohort.graph.neighbours(place))
        if not near <= live.held.keys():
            raise Refusal("The survivor list names a neighbour that never shared with this device.")
        revealed = RevealedShares.of(place, live.held, survivors).encoded
        after = live.signed(survivors=survivors.encoded, revealed=revealed)

        def spent(newest: Memory) -> Memory:
            moved = newest.moved(tensors, live, after)
            if newest.is_spent(tensors):
                raise SpentOnCheckpoint
            return moved.signed_on(tensors)

        yield from self._keep(spent)
        return after

    def _settled(
        self, live: Live, cohort: MaskingCohort, place: int, stage: Stage, body: bytes, blob: bytes = b""
    ) -> Steps[bytes]:
        """Send a message, and open the pairs that peers rightly complain of for as long as the answer is complaints.
        Returns the answer that is none."""
        answer = yield from self._transmit_signed(cohort, stage, body, blob)
        while is_accusation(answer):
            dealt, accusations = Bundle.parse(live.bundle, cohort.n), Accusations.parse(answer)
            pairs = opened(cohort, place, _own(live), dealt, accusations, self.me.primitives)
            answer = yield from self._transmit_signed(cohort, "open", pairs.encoded)
        return answer

    def _transmit_signed(self, cohort: MaskingCohort, stage: Stage, body: bytes, blob: bytes = b"") -> Steps[bytes]:
        return (yield from self._transmit(stage, body, signed(self.me.signer, cohort.h, stage, body), blob))

    def _transmit(self, stage: Stage, body: bytes, signature: bytes, blob: bytes = b"") -> Steps[bytes]:
        """Send a message and check the clock: after expiry the device signs and reveals nothing, and deletes all."""
        answer = yield Transmit(stage, body, signature, blob)
        if not isinstance(answer, ServerAnswer):
            raise TypeError(f"the driver answered a message with {answer!r}")
        self.at = answer.at
        if self.at > self.header.expires_at and stage != "unmask":
            yield from self._keep(lambda newest: newest.ended(self.header.encoded))
            raise Expired
        return answer.body

    def _move(self, seen: Live, after: Live) -> Steps[Live]:
        """Store the next step of the attempt."""
        yield from self._keep(lambda newest: newest.moved(self.expected.tensors, seen, after))
        return after

    def _keep(self, change: Callable[[Memory], Memory]) -> Steps[Memory]:
        memory = yield Keep(change)
        if not isinstance(memory, Memory):
            raise TypeError(f"the driver answered a Keep with {type(memory).__name__}")
        return memory


def _own(live: Live) -> AttemptSecrets:
    if live.secrets is None:
        raise BadMessage("this device's memory of the attempt lacks its own secrets")
    return live.secrets


# ------------------------------------------------------------ exchange 3
# Exchange 3 on the device: its contribution as lanes, under its own mask and one mask with each peer that shared.


def require_fitting(header: AttemptHeader, put_in: DeviceContribution) -> None:
    """Raise Refusal where the contribution cannot be masked under ``header``."""
    values, weight = put_in.values, put_in.weight
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise Refusal("This device's update is not an array of float32.")
    if values.shape != (header.dimension,):
        raise Refusal("This device's update has another number of values than the header says.")
    if put_in.tensors != tuple((one.elements, one.non_negative) for one in header.statistics):
        raise Refusal("This device's model has other statistics than the header says.")
    if put_in.statistics.shape != (sum(size for size, _ in put_in.tensors),):
        raise Refusal("This device's update has another number of values of statistics than its tensors.")
    if not math.isfinite(largest(values)) or not math.isfinite(largest(put_in.statistics)):
        raise Refusal("This device's update holds NaN or infinity.")
    if not header.quantizer.takes_weight(weight):
        raise Refusal("This device's weight is not within the header's cap.")
    if len(put_in.rounding_secret) != ROUNDING_BYTES:
        raise Refusal(f"This device's rounding secret is not {ROUNDING_BYTES} bytes.")


def noise_key(secrets: AttemptSecrets, h: bytes) -> bytes:
    """The key of a device's noise, of its dealing secret: another attempt, roster or group has other noise, and the
    secret is deleted before a list is signed."""
    return derive(secrets.dealing, salt=h, info=DOMAIN + b"noise of the values")


def masked_vector(
    cohort: MaskingCohort,
    place: int,
    secrets: AttemptSecrets,
    peers: Iterable[int],
    put_in: DeviceContribution,
    tools: Primitives,
) -> bytes:
    """The packed vector of the device at ``place``, with its noise, masked with each of ``peers`` (places). Where it
    fails, no partly masked vector is left in memory."""
    header, bits = cohort.header, cohort.roster.lane_bits
    rounding = rounding_key(put_in.rounding_secret, header.digest)
    quantizer = header.quantizer
    vector = quantizer.lanes(put_in.values, put_in.weight, bits, rounding, put_in.statistics)
    masker = tools.masker(bits)
    try:
        if share := header.share(cohort.n):
            add_noise(vector[: header.noised], share, noise_key(secrets, cohort.h))
        masker.apply(vector, self_seed(secrets.self_mask, cohort.h, place), 1)
        for peer in peers:
            agreed = tools.agree(secrets.mask_key, cohort.roster.entries[peer].advertisement.mask_key)
            masker.apply(vector, tools.pair_seed(agreed, cohort.h, place, peer), pair_sign(place, peer))
    except BaseException:
        vector[:] = 0
        raise
    finally:
        masker.wipe()
    cut(vector, bits)
    return pack(vector, bits)
