"""What the devices of a schedule know in secure rounds, and the coordinator must not: their values, the lanes that they
mask, and their secrets.

The devices' own memories say what they masked and signed. From it ``Vectors`` computes the sum that a round must
have, and what must be in no blob and in no row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.codecs import LinearCodec
from client_sdk.device.contribution import ClearContribution
from client_sdk.secagg.agreement import KeyStream
from client_sdk.secagg.device import noise_key
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import pack
from client_sdk.secagg.memory import Live, Step
from client_sdk.secagg.noise import DiscreteGaussian, reach
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import MaskingCohort, Roster, rejoin_all
from client_sdk.secagg.statement import DOMAIN
from client_sdk.tensors import Float32
from tests.explorer.faults import Broken
from tests.explorer.marks import marks_in
from tests.explorer.private import Streams

Lanes = NDArray[np.uint64]
_WORDS = 128
"""Of a stream, drawn at once: far more than the largest roster of a schedule takes."""
WHOLE_BYTES = 16
"""Fewer bytes than this may be in a blob by chance, and are not looked for."""


@dataclass(frozen=True, slots=True)
class Put:
    """What a device puts into a round, by its own account."""

    values: Float32
    examples: int
    parent: str
    """Digest of the checkpoint that it had read."""


@dataclass(slots=True)
class Signatures:
    """Which lists a device has signed on one checkpoint, and which shares it has revealed."""

    lists: set[bytes] = field(default_factory=set)
    kinds: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """(h, place of the dealer) -> the kind of share that was revealed."""


class Vectors:
    """Of one schedule."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.put: dict[str, Put] = {}
        """By the digest of the contribution's bytes."""
        self.models: dict[bytes, bytes] = {}
        """What the product calls the tensors of a checkpoint -> what the checks do (``tensors_of``)."""
        self.masked: dict[bytes, tuple[str, Lanes]] = {}
        """SHA-256 of a packed masked vector -> the device, and the lanes under the masks."""
        self.secret: dict[bytes, str] = {}
        """What must be stored nowhere -> whose it is."""
        self._spelled: list[tuple[str, str]] = []
        self.liars: set[str] = set()
        """Devices that have dealt shares of another secret: nobody else is barred."""
        self.accusers: set[str] = set()
        """Devices that have complained of an honest dealer."""
        self.wrong_pairs: set[str] = set()
        """Digests of messages that open another pair than was dealt."""
        self.deceived: set[str] = set()
        """Devices that were shown another list than the others: what they sign is refused."""
        self.stored: list[str] = []
        """Digests of the blobs that were written since the last look."""
        self.rows: list[tuple[str, bytes]] = []
        """Digests and contents of the messages that were written as rows since then, committed or not."""
        self.signed: dict[tuple[str, bytes], Signatures] = {}
        """By device and checkpoint."""
        self._groups: dict[tuple[bytes, bytes], dict[str, MaskingCohort]] = {}
        """By header and roster: device -> its group."""

    @property
    def spelled(self) -> list[tuple[str, str]]:
        """Each secret in hexadecimal, and as Python shows bytes."""
        new = islice(self.secret, len(self._spelled), None)
        self._spelled += [(secret.hex(), repr(secret)[2:-1]) for secret in new]
        return self._spelled

    def contribution(self, values: Float32, examples: int, tensors: str, parent: str) -> bytes:
        """The bytes of a contribution, which is remembered."""
        body = ClearContribution(delta={"marks": values}, examples=examples, tensors=tensors).encoded
        self.put[hashlib.sha256(body).hexdigest()] = Put(values, examples, parent)
        self.secret[values.tobytes()] = "values that were never to be seen"
        return body

    def kept(self, device: str, live: Live, digest: str | None, rounding: bytes, plan: dict[str, Any]) -> None:
        """The device has stored this step of an attempt. ``digest``: of its contribution."""
        if live.secrets is not None:
            secrets = live.secrets
            for secret in (secrets.self_mask, secrets.mask_key.private, secrets.share_key.private, secrets.dealing):
                self.secret.setdefault(secret, f"a secret of {device}")
        if live.step is Step.MASKED and digest is not None:
            packed = hashlib.sha256(live.vector).digest()
            if packed in self.masked:
                return
            cohort = self.group_of(device, live)
            bits = lane_bits_of(header_of(live.header), cohort.n)
            lanes = self._noised(device, live, cohort, self._lanes(live, self.put[digest], rounding, plan, bits), bits)
            self.masked[packed] = (device, lanes)
            unmasked = pack(lanes.astype(np.uint32 if bits <= 32 else np.uint64), bits)
            if len(unmasked) >= WHOLE_BYTES:
                self.secret[unmasked] = f"the update of {device}"

    def group_of(self, device: str, live: Live) -> MaskingCohort:
        """The group of the device in this attempt. The groups are those that the nonces of the roster give, and what is
        signed in one of them holds in no other."""
        found = self._groups.get((live.header, live.roster))
        if found is None:
            header, roster = header_of(live.header), Roster.parse(live.roster)
            cohorts = rejoin_all(header, roster)
            names = [[cohort.device(place) for place in range(cohort.n)] for cohort in cohorts]
            if names != divided(roster, header.groups) or len({cohort.h for cohort in cohorts}) != header.groups:
                raise Broken("groups", f"{device} joins round {header.round} of {header.run} with the groups {names}")
            found = {one: cohort for mine, cohort in zip(names, cohorts, strict=True) for one in mine}
            self._groups[live.header, live.roster] = found
        return found[device]

    def _lanes(self, live: Live, put: Put, rounding: bytes, plan: dict[str, Any], bits: int) -> Lanes:
        """The lanes that this device must have masked: within one of the exact ones, each."""
        header = header_of(live.header)
        weight = header.weight_cap
        if plan["aggregation"]["weighting"] == "examples":
            weight = min(put.examples, header.weight_cap)
        key, sent = rounding_key(rounding, header.digest), codec_of(header).forward(put.values, header.codec_seed)
        lanes = header.quantizer.lanes(sent, weight, bits, key).astype(np.uint64)
        exact = exact_lanes(sent, weight, header)
        off = np.abs(lanes[: len(exact)].astype(np.float64) - exact)
        if off.max(initial=0.0) > 1.0 + 1e-6 or lanes[len(exact) :].tolist() != [*digits_of(weight, header), 1]:
            raise Broken("same-bits", "a device's lanes are not its values, in the plan's unit, its weight and one")
        return lanes

    def _noised(self, device: str, live: Live, cohort: MaskingCohort, lanes: Lanes, bits: int) -> Lanes:
        """The lanes with the device's share of the noise, of a stream that is in no other vector; they wrap."""
        header = cohort.header
        if not header.noise:
            return lanes
        if live.secrets is None:
            raise Broken("noise", f"a vector of round {header.round} of {header.run} has noise of a key that is gone")
        key = noise_key(live.secrets, cohort.h)
        vector = f"{cohort.h.hex()} {device}", hashlib.sha256(lanes.tobytes()).digest()
        self._streams.see(key, (header.run, header.round, *vector))
        noise = DiscreteGaussian(header.share(cohort.n)).draw(key, header.noised)
        noised = lanes.astype(np.int64)
        noised[: header.noised] += noise
        return (noised & ((1 << bits) - 1)).astype(np.uint64)

    def sum_of(self, vectors: list[bytes]) -> Lanes:
        """The sum of the lanes under these packed masked vectors, before it wraps."""
        found = [self.masked.get(hashlib.sha256(vector).digest()) for vector in vectors]
        total: Lanes = np.sum(
            [lanes for _, lanes in (one for one in found if one is not None)], axis=0, dtype=np.uint64
        )
        if None in found:
            raise Broken("named", "a masked vector counts that no device has made")
        return total


def divided(roster: Roster, groups: int) -> list[list[str]]:
    """The devices of each group: all of the roster, in an order that their nonces give (Fisher and Yates: from the last
    place down, each is swapped with one that is drawn up to there), are dealt out in turn."""
    shown = [entry.advertisement for entry in roster.entries]
    if groups == 1:
        return [[one.device for one in shown]]
    order, count = [one.device for one in shown], len(shown).to_bytes(4, "big")
    stream = KeyStream(_WORDS * 4)
    stream.start(hashlib.sha256(DOMAIN + b"groups" + count + b"".join(one.nonce for one in shown)).digest())
    words = iter(stream.take(_WORDS * 4).view(">u4").tolist())
    for last in range(len(order) - 1, 0, -1):
        drawn = next(word for word in words if word < 2**32 - 2**32 % (last + 1)) % (last + 1)
        order[last], order[drawn] = order[drawn], order[last]
    return [sorted(order[number::groups]) for number in range(groups)]


@lru_cache(maxsize=64)
def header_of(encoded: bytes) -> AttemptHeader:
    """What these bytes say: many devices and checks read the same."""
    return AttemptHeader.parse(encoded)


def codec_of(header: AttemptHeader) -> LinearCodec:
    """How the devices of this attempt encode."""
    return codecs.linear(f"{header.codec}@{header.codec_version}")


def lane_bits_of(header: AttemptHeader, n: int) -> int:
    """Bits of a lane that holds the sum of n values of q bits, and what noise adds on either side."""
    return (n * ((1 << header.q) - 1) + 2 * reach(header.spread(n))).bit_length()


def exact_lanes(values: Float32, weight: int, header: AttemptHeader) -> NDArray[np.float64]:
    """L / 2 + w / w_cap * clip(x) * L / (2 R), without rounding."""
    wide = values.astype(np.float64)
    norm = float(np.sqrt(np.sum(wide * wide)))
    clipped = np.clip(wide * min(1.0, header.max_norm / norm if norm else 1.0), -header.max_abs, header.max_abs)
    levels = levels_of(header.q)
    exact: NDArray[np.float64] = levels / 2 + weight / header.weight_cap * clipped * levels / (2 * header.max_abs)
    return exact


def levels_of(q: int) -> int:
    """L: the highest value of a lane, even where it can be."""
    return (1 << q) - 2 if q > 1 else 1


def digits_of(weight: int, header: AttemptHeader) -> list[int]:
    """The lanes of a weight: its digits in base 2^q, the lowest first, as many as the cap has."""
    count = -(-header.weight_cap.bit_length() // header.q)
    return [weight >> header.q * place & (1 << header.q) - 1 for place in range(count)]


def tensors_of(checkpoint: bytes) -> bytes:
    """What tells one model from another here: its values, in whatever file."""
    return hashlib.sha256(marks_in(checkpoint).tobytes()).digest()
