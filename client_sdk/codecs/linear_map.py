"""Codecs that are one linear map of the flat delta, the same for all devices of a round: a part of the coordinates is
drawn (*sampling*), or the vector is rotated (*rotation*), or the drawn part is rotated.

==================================== ================================================= =====================
name                                 what it sends                                     values sent of d
==================================== ================================================= =====================
rotated@1                            all values, rotated                               d
sampled-half@1                       every second coordinate on average                about d / 2
sampled-quarter@1                    every fourth                                      about d / 4
sampled-half-rotated@1               every second, the drawn ones rotated              about d / 2
sampled-quarter-rotated@1            every fourth, rotated                             about d / 4
sampled-half-unbiased@1, ...         as these four, and what is decoded is scaled up   the same
==================================== ================================================= =====================

Because the map is the same for all, sums of encoded deltas are encoded sums: these codecs work under masks, where a
rotation makes few bits a value enough. Of a sampled delta the coordinates that are not drawn are 0, so the model stays
as it is there (a server optimizer with a memory of its own, such as FedAvgM, may still move it). Only the *unbiased*
forms scale the others up, where they are decoded: what travels, and so its range, is that of the other forms.

The flat delta has its tensors in the order of their names. In the body of a plain update the encoded values are one
float32 tensor ``VALUES``, and the seed one tensor ``SEED`` of 32 bytes, so that a body can be decoded by itself. Each
tensor of the delta is there under its own name with a dimension of 0 before its shape: names and shapes without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from client_sdk.chance import labelled, sha256_bytes, shake_bytes
from client_sdk.codecs.port import FlatCodec, Octets, Origin, Pieces, Read, octets_of
from client_sdk.tensors import compiled
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Manifest, Tensors, TensorSpec
from client_sdk.tensors.safetensors_file import TensorHeader

# ------------------------------------------------------------ rotation
# A random rotation of a flat vector, block by block, which spreads large coordinates over their block.
#
# Each block x of 2^k values becomes H D x / sqrt(2^k): D has random signs on its diagonal, H is the Walsh-Hadamard
# matrix (``transform``). That is the rotation of Suresh et al. 2017 (arXiv:1611.00429, section 3). It keeps norms.
# Whatever the block was, a coordinate of it is then as a normal deviate of standard deviation norm / sqrt(2^k), or
# less far out: beyond c times that with chance at most 2 exp(-c^2 / 2). So few bits a value are enough.
#
# Blocks have ``ROTATED_BLOCK`` values, or in a shorter vector the largest power of two that fits. The values after
# the last whole block are not padded: one more block is rotated that ends where the vector ends, and so overlaps the
# last whole one. The length stays the same, the map stays orthogonal, and it is undone in the opposite order.
#
# The signs of block i are the bits of SHAKE256 of the labelled (seed, i), the lowest bit of each byte first; a 1
# changes the sign.


ROTATED_BLOCK = 1 << 16
"""Values of a block: a power of two, of which float32 values stay in a core's cache."""


def rotate(values: Float32, seed: bytes, block: int = ROTATED_BLOCK) -> None:
    """Rotate ``values`` (1-d float32, contiguous) in place. ``block``: a power of two."""
    starts, size = rotated_blocks(values.size, block)
    scratch = np.empty(size, np.float32)
    for place, start in enumerate(starts):
        part = values[start : start + size]
        _change_signs(part, seed, place)
        transform(part, scratch)


def rotated_back(read: Read, count: int, seed: bytes, block: int = ROTATED_BLOCK) -> Pieces:
    """The vector of ``count`` values of which ``read`` reads the rotated ones. Memory: a few blocks."""
    starts, size = rotated_blocks(count, block)
    whole = count // size if size else 0
    scratch = np.empty(size, np.float32)

    def undone(place: int) -> Float32:
        start = starts[place]
        last = place == whole - 1
        piece = np.array(read(start, count - start if last else size))
        for other in reversed(range(place, len(starts) if last else place + 1)):
            part = piece[starts[other] - start :][:size]
            transform(part, scratch)
            _change_signs(part, seed, other)
        return piece

    return Pieces([*starts[:whole], count], undone)


def rotated_blocks(count: int, block: int) -> tuple[list[int], int]:
    """(where each block begins, values of a block); the last one may overlap the one before."""
    if not count:
        return [], 0
    size = min(block, 1 << (count.bit_length() - 1))
    starts = list(range(0, count - size + 1, size))
    if count % size:
        starts.append(count - size)
    return starts, size


def _change_signs(part: Float32, seed: bytes, place: int) -> None:
    drawn = shake_bytes(labelled("rotation", seed.hex(), place), -(-part.size // 8))
    bits = np.unpackbits(np.frombuffer(drawn, np.uint8), count=part.size, bitorder="little")
    words = part.view(np.uint32)
    words ^= bits.astype(np.uint32) << np.uint32(31)


# ------------------------------------------------------------ the Walsh-Hadamard transform
# Of a block of 2^k values, orthonormal and in place: x <- H x / sqrt(2^k).
#
# H is Sylvester's matrix, H[i, j] = (-1)^(number of ones in i & j). H / sqrt(2^k) is its own inverse. The fast
# transform has k stages, each of which replaces pairs (a, b) by (a + b, a - b). Every operation is one float32
# addition, subtraction or multiplication of single values in a fixed order, so the bits are the same on every machine.
# There is no product of matrices here, because libraries add up its terms in an order of their own.
#
# Speed: the block is seen as a matrix of 2^floor(k/2) rows. The stages of the high half of the index run along its
# columns; then it is transposed, so that those of the low half do so too, and all loops run over contiguous memory.


def transform(values: Float32, scratch: Float32) -> None:
    """Replace ``values`` (1-d float32, contiguous, a power of two long) by H values / sqrt(length). ``scratch``: of the
    same shape, overwritten.

    The values are multiplied by 1 / sqrt(length) first, so that nothing below 1e33 overflows in a block of 2^16.
    """
    size = values.size
    rows = 1 << ((size.bit_length() - 1) // 2)
    columns = size // rows
    if compiled.loops is not None and values.flags.aligned:
        compiled.loops.transform(values, columns, size**-0.5)
        return
    values *= np.float32(size**-0.5)
    _stages(values, scratch, columns)
    scratch.reshape(columns, rows)[:] = values.reshape(rows, columns).T
    _stages(scratch, values, rows)
    values.reshape(rows, columns)[:] = scratch.reshape(columns, rows).T


def _stages(values: Float32, scratch: Float32, first: int) -> None:
    """The stages with distances ``first``, twice ``first`` and so on within pairs. The result is in ``values``."""
    source, target, distance = values, scratch, first
    while distance < values.size:
        pairs, found = source.reshape(-1, 2, distance), target.reshape(-1, 2, distance)
        np.add(pairs[:, 0], pairs[:, 1], out=found[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=found[:, 1])
        source, target = target, source
        distance *= 2
    if source is not values:
        values[:] = source


# ------------------------------------------------------------ linear map


# ------------------------------------------------------------ seed
# The seed of what all devices of a round draw alike: the signs of a rotation, the coordinates that are sent.
#
# It follows from the plan and the round alone, so the coordinator and every device compute it without asking each
# other. It is public: what is drawn from it is no secret.


SEED_BYTES = 32
NOTHING_DRAWN = bytes(SEED_BYTES)
"""The seed where the codec draws nothing that devices share."""


def shared_seed(plan: str, round: int) -> bytes:
    """32 bytes: SHA-256 of the labelled (plan's digest in hexadecimal, round)."""
    return sha256_bytes(labelled("codec seed", plan, round), SEED_BYTES)


# ------------------------------------------------------------ sampling
# A random mask of coordinates that all devices of a round share: only those that are drawn are sent.
#
# Konecny et al. 2016 (arXiv:1610.05492, section 2, "random mask"). The paper draws a mask for each device; here it is
# one for all, so that the masked values of a round can be added. Coordinates that are not drawn have a delta of 0.
# Those that are drawn come back as they were, so one round moves a part of the model by its mean, the next round
# another part, and the expectation over draws is only that part of the delta; or *unbiased*, times (length of the
# stretch) / (values drawn of it), the inverse of the probability of being drawn, so that the expectation is the delta
# itself.
#
# Each stretch of ``STRETCH`` coordinates has the same part drawn, ceil(length / one_in), so the number of values that
# are sent is known beforehand. Of a stretch those coordinates are drawn that have the smallest words; where words are
# equal, the lower coordinates. Word j of stretch i is four bytes from byte 4 j on, little endian, of SHAKE256 of the
# labelled (seed, i).


STRETCH = 1 << 16


def sampled_count(elements: int, one_in: int) -> int:
    """How many of ``elements`` coordinates are drawn."""
    whole, rest = divmod(elements, STRETCH)
    return whole * _part(STRETCH, one_in) + _part(rest, one_in)


def sampled(flat: Float32, one_in: int, seed: bytes) -> Float32:
    """The drawn values of ``flat`` (1-d float32), in the order of their coordinates: a new array."""
    found = [
        flat[start : start + STRETCH][_drawn(min(STRETCH, flat.size - start), one_in, seed, place)]
        for place, start in enumerate(range(0, flat.size, STRETCH))
    ]
    return np.concatenate([np.empty(0, np.float32), *found])


def spread_out(read: Read, elements: int, one_in: int, seed: bytes, *, unbiased: bool = False) -> Pieces:
    """The vector of ``elements`` values of which ``read`` reads the drawn ones; the others are 0. ``unbiased``: the
    drawn ones are scaled up in float32."""

    def filled(place: int) -> Float32:
        size = min(STRETCH, elements - place * STRETCH)
        piece = np.zeros(size, np.float32)
        values = read(place * _part(STRETCH, one_in), _part(size, one_in))
        piece[_drawn(size, one_in, seed, place)] = values * np.float32(size / values.size) if unbiased else values
        return piece

    return Pieces([*range(0, elements, STRETCH), elements], filled)


def _part(size: int, one_in: int) -> int:
    return -(-size // one_in)


def _drawn(size: int, one_in: int, seed: bytes, place: int) -> npt.NDArray[np.bool_]:
    """Which coordinates of a stretch are drawn."""
    count = _part(size, one_in)
    words = np.frombuffer(shake_bytes(labelled("sampled coordinates", seed.hex(), place), 4 * size), "<u4")
    highest = np.partition(words, count - 1)[count - 1]
    drawn: npt.NDArray[np.bool_] = words < highest
    equal = np.flatnonzero(words == highest)
    drawn[equal[: count - int(np.count_nonzero(drawn))]] = True
    return drawn


# ------------------------------------------------------------ linear map


VALUES = "linear.values"
SEED = "linear.seed"
"""The names under which values and seed travel; no tensor of a model may have them."""


@dataclass(frozen=True, slots=True)
class LinearMap(FlatCodec):
    """One of the codecs of this file."""

    name: str
    rotated: bool
    """Whether the values are rotated, after the drawing."""
    one_in: int = 1
    """One in so many coordinates is sent; 1: all are."""
    unbiased: bool = False
    """Whether the expectation of what is decoded, over the draws of rounds, is the delta."""
    lossless: bool = False
    linear: bool = True
    seeded: bool = True

    # ------------------------------------------------------------ flat vectors

    def count(self, elements: int) -> int:
        """See ``LinearCodec.count``."""
        return sampled_count(elements, self.one_in)

    def forward(self, flat: Float32, seed: bytes) -> Float32:
        """See ``LinearCodec.forward``."""
        values = np.array(flat) if self.one_in == 1 else sampled(flat, self.one_in, seed)
        if self.rotated:
            rotate(values, seed)
        return values

    def back(self, read: Read, elements: int, seed: bytes) -> Read:
        """See ``LinearCodec.back``."""
        if self.rotated:
            read = rotated_back(read, self.count(elements), seed).read
        return read if self.one_in == 1 else spread_out(read, elements, self.one_in, seed, unbiased=self.unbiased).read

    # ------------------------------------------------------------ bodies of plain updates

    OWN: ClassVar = (VALUES, SEED)

    def _own(self, manifest: Manifest) -> dict[str, TensorSpec]:
        return {VALUES: TensorSpec("F32", (self.count(manifest.elements),)), SEED: TensorSpec("U8", (SEED_BYTES,))}

    def _encoded(self, flat: Float32, manifest: Manifest, origin: Origin) -> Tensors:
        """The values and the seed."""
        seed = shared_seed(origin.plan, origin.round)
        return {VALUES: self.forward(flat, seed), SEED: np.frombuffer(seed, np.uint8)}

    def _read(self, manifest: Manifest, own: Mapping[str, Octets]) -> Read:
        """See ``FlatCodec``. Memory: a few blocks of the rotation and of the drawing."""

        def stored(start: int, count: int) -> Float32:
            return np.frombuffer(own[VALUES](4 * start, 4 * count), "<f4").astype(np.float32, copy=False)

        return self.back(stored, manifest.elements, bytes(own[SEED](0, SEED_BYTES)))

    def seed_of(self, source: Path | BinaryIO, header: TensorHeader) -> bytes:
        """The seed in the body of an update, which has the manifest of ``wire``."""
        with octets_of(source) as octets:
            return bytes(octets(header.offsets[SEED][0], SEED_BYTES))


ROTATED = LinearMap("rotated@1", rotated=True)
SAMPLED: tuple[LinearMap, ...] = tuple(
    LinearMap(
        f"sampled-{name}{'-rotated' * rotated}{'-unbiased' * unbiased}@1",
        rotated=rotated,
        one_in=one_in,
        unbiased=unbiased,
    )
    for unbiased in (False, True)
    for rotated in (False, True)
    for name, one_in in (("half", 2), ("quarter", 4))
)
