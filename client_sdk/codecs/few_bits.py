"""Codecs of 1, 2, 4 or 8 bits a value: each value is one of a few levels, times a scale that its stretch shares.

====================== ==== =========================== =========== =========================================
name                   bits NMSE of a Gaussian vector   expectation levels
====================== ==== =========================== =========== =========================================
sign@1                 1    0.363                       biased      -1, 1
eden1@1                1    0.571                       unbiased    Lloyd-Max of the normal distribution
eden2@1                2    0.134                       unbiased    the same
eden4@1                4    0.0096                      unbiased    the same
stochastic1-rotated@1  1    19                          unbiased    at equal distances, from -1 to 1
stochastic2-rotated@1  2    1.5                         unbiased    the same
stochastic4-rotated@1  4    0.056                       unbiased    the same
stochastic8-rotated@1  8    0.00020                     unbiased    the same
====================== ==== =========================== =========== =========================================

NMSE: the expectation of ||x - decoded||^2 / ||x||^2.

*EDEN* (Vargaftik et al. 2022, arXiv:2108.08842) rotates the flat delta at random, so that its coordinates are as normal
deviates whatever the delta was, and rounds each to the nearest level. With y the rotated values of a stretch and q
their levels, the scale is ||y||^2 / <y, q>, which makes the expectation over uniformly random rotations the delta. The
rotation here is that of ``linear_map``, twice, with signs of their own. Once is not enough: of a delta of two values
other than 0 it makes two magnitudes, and what is decoded then has the larger value alone, in every draw. After two
rotations of at least ``SHORTEST`` values, for which a shorter delta gets zeros behind it, 10,000 draws show no bias of
dense, sparse or heavy-tailed deltas. Each block of the rotation has a scale of its own. With scales of their own,
smaller blocks would not lower the error, since that is the same part of each block's norm, so EDEN works on the flat
delta, and a small tensor costs no scale.

*Stochastic* rounding after a rotation is the k-level quantization of Suresh et al. 2017 (arXiv:1611.00429, sections 2.2
and 3), and what a secure round's devices do (``rotated@1``), with a scale for each block: the largest magnitude there.
A rotated value between two levels becomes the upper one with a probability of how near it is, so its expectation is the
value, whatever the rotation: one is enough, and no expectation hangs on it. The price is the error: levels reach as far
as the largest value of a block, some 4.3 times the root mean square.

*sign* (signSGD: Bernstein et al. 2018, arXiv:1802.04434) sends the sign of each value, and the scale is the mean
magnitude of its stretch: the multiple of the signs that is nearest to the delta. It is biased: all values of a stretch
get one magnitude, and a mean of many devices keeps that error. Under ``aggregation.rule = "median"`` with equal weights
each coordinate moves in the direction of the majority of signs, which is the majority vote of the paper; a plain mean
is a vote in which each device counts by its scale and its weight. A value of 0 has a sign by lot, so that coordinates
which no device moves stay near 0 in the mean. No stretch goes beyond a tensor, since layers differ in magnitude.

All chance comes from (task's seed, round, device). All operations are of single float32 or float64 values in a fixed
order, so the bits are the same on every machine.

In the body are the codes, packed, the lowest bits of a byte first, and zeros in what is left of the last byte; a
float32 scale for each stretch; with EDEN the 32 bytes of the rotation's seed; and names and shapes without data. Means
of codes are not codes of means, so these codecs do not work under masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from client_sdk.chance import labelled, sha256_bytes, shake_bytes
from client_sdk.codecs.linear_map import ROTATED_BLOCK, SEED_BYTES, rotate, rotated_back, rotated_blocks
from client_sdk.codecs.port import FlatCodec, Octets, Origin, Pieces, Read, total
from client_sdk.codecs.stochastic8 import uniform
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Manifest, ManifestMismatch, OutOfRange, Tensors, TensorSpec

CODES, SCALES, SEED = "few_bits.codes", "few_bits.scales", "few_bits.seed"
"""The names under which these travel; no tensor of a model may have them."""
SHORTEST = 512
"""EDEN rotates so many values at least."""
STRETCH = 1024
"""Most signs that share a scale: 3 % more bytes, for an error on Fashion-MNIST of 0.60 in place of 0.67 by tensors."""
LARGEST_SCALE = 1e9
"""Far above the scale of any delta that a sum takes; and what is decoded with it is finite."""
_NOTHING = 2.0**-18
"""Below this part of the root mean square a rotated value is 0. Of sparse deltas many are, and the signs of what
rounding leaves of them hang on the delta: they would be a bias."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FewBits(FlatCodec):
    """One of the codecs of this file."""

    name: str
    levels: tuple[float, ...]
    """What the codes 0, 1, ... stand for, rising, in units of a stretch's root mean square; 2, 4, 16 or 256."""
    rotated: bool
    """Whether it is EDEN or stochastic; else the sign."""
    stochastic: bool = False
    """Whether values are rounded at random to one of the two nearest levels, in units of a stretch's largest."""
    lossless: bool = False

    OWN: ClassVar = (CODES, SCALES, SEED)

    def _encoded(self, flat: Float32, manifest: Manifest, origin: Origin) -> Tensors:
        """Packed codes, scales, and the seed."""
        seed = sha256_bytes(labelled("few bits", origin.seed, origin.round, origin.device), SEED_BYTES)
        values = np.zeros(self._count(manifest), np.float32)
        values[: manifest.elements] = flat
        for half in self._rotations(seed):
            rotate(values, half)
        bounds = self._bounds(manifest)
        codes, scales = np.zeros(values.size, np.uint8), np.zeros(len(bounds) - 1, np.float32)
        for place, (start, stop) in enumerate(pairwise(bounds)):
            if self.stochastic:
                codes[start:stop], scales[place] = self._drawn(values[start:stop], seed, place)
            else:
                codes[start:stop], scales[place] = self._nearest(values[start:stop])
            if not self.rotated:
                _draw_signs_of_zeros(codes[start:stop], values[start:stop], seed, place)
        own: Tensors = {CODES: _packed(codes, self._bits), SCALES: scales}
        if self.rotated:
            own[SEED] = np.frombuffer(seed, np.uint8)
        return own

    # ------------------------------------------------------------ what travels

    @property
    def _bits(self) -> int:
        return (len(self.levels) - 1).bit_length()

    def _count(self, manifest: Manifest) -> int:
        """How many codes there are."""
        return max(manifest.elements, SHORTEST) if self.rotated and manifest.elements else manifest.elements

    def _bounds(self, manifest: Manifest) -> list[int]:
        """0, and where each stretch ends."""
        if self.rotated:
            count = self._count(manifest)
            return sorted({0, *rotated_blocks(count, ROTATED_BLOCK)[0], count})
        slices = manifest.slices().values()
        return sorted({0, *(end for part in slices for end in (*range(part.start, part.stop, STRETCH), part.stop))})

    def _codes(self, manifest: Manifest) -> TensorSpec:
        return TensorSpec("U8", (-(-self._count(manifest) * self._bits // 8),))

    def _own(self, manifest: Manifest) -> dict[str, TensorSpec]:
        own = {
            CODES: self._codes(manifest),
            SCALES: TensorSpec("F32", (len(self._bounds(manifest)) - 1,)),
        }
        return {**own, SEED: TensorSpec("U8", (SEED_BYTES,))} if self.rotated else own

    def _manifest(self, travelled: Manifest) -> Manifest:
        """The manifest of the deltas in a body. ManifestMismatch where it is not one of this codec."""
        manifest = self._told(travelled)
        if travelled.get(CODES) != self._codes(manifest):  # before stretches are listed, of which shapes may claim many
            raise ManifestMismatch(f"the codes of {self.name}, {CODES}, are not those of {manifest.elements} values")
        self.wire(manifest).require(travelled)
        return manifest

    # ------------------------------------------------------------ codes and scales

    def _nearest(self, values: Float32) -> tuple[Bytes, np.float32]:
        """(codes, scale) of a stretch."""
        wide = values.astype(np.float64)
        square = total(wide * wide)
        norm = math.sqrt(square / values.size)
        if self.rotated:
            wide[np.abs(wide) < norm * _NOTHING] = 0
        levels = np.array(self.levels, np.float32).astype(np.float64)
        between = (levels[1:] + levels[:-1]) / 2 * norm
        codes = np.searchsorted(between, wide).astype(np.uint8)
        along = total(wide * levels[codes])
        if not along:
            return codes, np.float32(0)
        return codes, np.float32(square / along if self.rotated else along / values.size)

    def _drawn(self, values: Float32, seed: bytes, place: int) -> tuple[Bytes, np.float32]:
        """(codes, scale) of a stretch, rounded at random."""
        scale = np.abs(values).max()
        if not scale:
            return np.zeros(values.size, np.uint8), scale
        most = len(self.levels) - 1
        t = (values.astype(np.float64) / scale + 1) * (most / 2)
        key = np.frombuffer(sha256_bytes(labelled("stochastic rounding", seed.hex(), place), 16), "<u8")
        t += uniform(np.random.Philox(key=key.astype(np.uint64)), values.size)
        return np.minimum(t, most).astype(np.uint8), scale

    def _read(self, manifest: Manifest, own: Mapping[str, Octets]) -> Read:
        """See ``FlatCodec``. Memory: a few blocks of the rotation, and the scales. OutOfRange where a scale is none
        that this codec writes, or a bit is set behind the last code."""
        bits, count, bounds = self._bits, self._count(manifest), self._bounds(manifest)
        scales = np.frombuffer(own[SCALES](0, 4 * (len(bounds) - 1)), "<f4").astype(np.float32)
        for place in np.flatnonzero(~((scales >= 0) & (scales <= LARGEST_SCALE)))[:1]:
            raise OutOfRange(f"scale {place} is {scales[place]:g}: those of {self.name} are 0 to {LARGEST_SCALE:g}")
        if rest := count * bits % 8:
            last = own[CODES](count * bits // 8, 1)[0]
            if last >> rest:
                raise OutOfRange(f"bits are set behind the last of the {count} codes of {self.name}")
        levels = np.array(self.levels, np.float32)

        def stretch(place: int) -> Float32:
            start, stop = bounds[place], bounds[place + 1]
            first = start * bits // 8
            packed = np.frombuffer(own[CODES](first, -(-stop * bits // 8) - first), np.uint8)
            codes = _unpacked(packed, bits)[start - first * 8 // bits :][: stop - start]
            values: Float32 = levels[codes] * scales[place]
            return values

        read = Pieces(bounds, stretch).read
        for half in reversed(self._rotations(bytes(own[SEED](0, SEED_BYTES)) if self.rotated else b"")):
            read = rotated_back(read, count, half).read
        return read

    def _rotations(self, seed: bytes) -> list[bytes]:
        """The seeds of the rotations, in their order."""
        halves = [seed[: SEED_BYTES // 2], seed[SEED_BYTES // 2 :]]
        return halves[: (1 if self.stochastic else 2) * self.rotated]


def _draw_signs_of_zeros(codes: Bytes, values: Float32, seed: bytes, place: int) -> None:
    zeros = np.flatnonzero(values == 0)
    drawn = shake_bytes(labelled("sign of zero", seed.hex(), place), -(-zeros.size // 8))
    codes[zeros] = _unpacked(np.frombuffer(drawn, np.uint8), 1)[: zeros.size]


def _packed(codes: Bytes, bits: int) -> Bytes:
    per = 8 // bits
    padded = np.zeros(-(-codes.size // per) * per, np.uint8)
    padded[: codes.size] = codes
    packed: Bytes = np.zeros(padded.size // per, np.uint8)
    for place in range(per):
        packed |= padded[place::per] << np.uint8(place * bits)
    return packed


def _unpacked(packed: Bytes, bits: int) -> Bytes:
    codes: Bytes = np.empty((packed.size, 8 // bits), np.uint8)
    for place in range(8 // bits):
        codes[:, place] = packed >> np.uint8(place * bits) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)


def _symmetric(*positive: float) -> tuple[float, ...]:
    return (*(-level for level in reversed(positive)), *positive)


SIGN = FewBits("sign@1", (-1.0, 1.0), rotated=False)
# The levels of least squared error for the normal distribution (Max 1960, doi 10.1109/TIT.1960.1057548, table I), to
# more digits by Lloyd's iteration, as the test of this file repeats it.
EDEN = (
    FewBits("eden1@1", _symmetric(0.79788456), rotated=True),
    FewBits("eden2@1", _symmetric(0.45278003, 1.51041761), rotated=True),
    FewBits(
        "eden4@1",
        _symmetric(
            *(0.12839503, 0.3880483, 0.65675912, 0.94234046),
            *(1.2562312, 1.61804639, 2.06901723, 2.73258957),
        ),
        rotated=True,
    ),
)
STOCHASTIC = tuple(
    FewBits(
        f"stochastic{bits}-rotated@1",
        tuple(2 * code / (2**bits - 1) - 1 for code in range(2**bits)),
        rotated=True,
        stochastic=True,
    )
    for bits in (1, 2, 4, 8)
)
