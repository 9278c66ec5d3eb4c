"""``stochastic8@1``: eight bits a value with stochastic rounding, so that the mean of many updates is not biased.

Each tensor is cut into runs of ``RUN`` values. A run travels as int8 codes c and one float32 scale s, and is decoded as
s * c. With x a value of the run and t = x / s, the code is floor(t + u), u uniform on [0, 1): its expectation is t, so
that of s * c is x (Alistarh et al. 2017, arXiv:1610.02132, QSGD, with s from the largest magnitude of a run instead of
its norm). s is the least float32 with 127 s >= max |x|, so a code is never clipped. An error is below s: each value is
off by less than 1/127 of the largest magnitude in its run.

u comes from a counter-based generator, Philox (Salmon et al. 2011, doi 10.1145/2063384.2063405), whose key is a hash of
(task's seed, round, device, tensor): the same update has the same bytes wherever and however often it is encoded, and
no two devices round alike. NumPy keeps the raw stream of Philox from version to version.

What travels: the tensors under their own names as I8, in their shapes, and one tensor ``SCALES``, F32, that holds the
scales of all tensors in the order of the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.chance import labelled, sha256_bytes
from client_sdk.codecs.port import BLOCK, Origin, octets_of, require_encodable
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, Tensors, TensorSpec
from client_sdk.tensors.safetensors_file import Source, TensorHeader

RUN = 1024
"""Values that share a scale: 0.4 % more bytes than the codes alone."""
SCALES = "stochastic8.scales"
"""The name under which the scales travel; no tensor of a model may have it."""
LEVELS = 127
_AT_ONCE = 64 * RUN
"""Values that are encoded at a time, so that the memory beside the result stays small."""


@dataclass(frozen=True, slots=True)
class Stochastic8:
    """The codec of this file."""

    name: str = "stochastic8@1"
    lossless: bool = False

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        """int8 codes by name, and the scales. Raises NotFinite, OutOfRange, ManifestMismatch (not float32, or a tensor
        that has the scales' name).
        """
        found: Tensors = {}
        scales = []
        for name in sorted(delta):
            _require_free(name)
            codes, of_runs = _encoded(name, delta[name], _key(origin, name))
            found[name] = codes.reshape(delta[name].shape)
            scales.append(of_runs)
        return {**found, SCALES: np.concatenate([np.empty(0, np.float32), *scales])}

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch when these are not the tensors that this codec writes."""
        manifest = Manifest.of(tensors)
        self.wire(_values(manifest)).require(manifest)
        found: Tensors = {}
        at = 0
        for name in sorted(tensors.keys() - {SCALES}):
            codes = tensors[name].reshape(-1)
            runs = _runs(codes.size)
            values = _decoded(codes, tensors[SCALES][at : at + runs], 0)
            found[name] = values.reshape(tensors[name].shape)
            at += runs
        return found

    def wire(self, manifest: Manifest) -> Manifest:
        """The manifest of an encoded update: the model's names and shapes as I8, and the scales. Raises
        ManifestMismatch for the scales' name."""
        for name in manifest:
            _require_free(name)
        runs = sum(_runs(spec.elements) for spec in manifest.values())
        codes = dict(manifest.with_dtype("I8"))
        return Manifest({**codes, SCALES: TensorSpec("F32", (runs,))}).in_file_order()

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. All scales of a body, 1/256 of a model, are in memory meanwhile."""
        self.wire(_values(header.manifest)).require(header.manifest)
        return self._blocks(source, header, block)

    def _blocks(self, source: Source, header: TensorHeader, block: int) -> Iterator[Float32]:
        first, last = header.offsets[SCALES]
        with octets_of(source) as octets:
            scales = np.frombuffer(octets(first, last - first), "<f4").astype(np.float32)
            for begin, elements, at in _places(header):
                for start in range(0, elements, block):
                    codes = np.frombuffer(octets(begin + start, min(block, elements - start)), np.int8)
                    yield _decoded(codes, scales[at : at + _runs(elements)], start)


def _encoded(name: str, array: Array, key: NDArray[np.uint64]) -> tuple[NDArray[np.int8], Float32]:
    """(codes, scales) of a tensor, both 1-d."""
    require_encodable(name, array, STOCHASTIC8.name)
    flat = np.ascontiguousarray(array, np.float32).reshape(-1)
    codes, scales = np.empty(flat.size, np.int8), np.empty(_runs(flat.size), np.float32)
    philox = np.random.Philox(key=key)
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        of_runs = _scales(part)
        scales[start // RUN : start // RUN + of_runs.size] = of_runs
        steps = np.repeat(of_runs.astype(np.float64), RUN)[: part.size]
        t = np.divide(part, steps, out=np.zeros(part.size), where=steps > 0)
        codes[start : start + part.size] = np.floor(t + uniform(philox, part.size))
    return codes, scales


def _scales(part: Float32) -> Float32:
    """The least float32 s of each run with 127 s >= max |x|."""
    magnitudes = np.zeros(_runs(part.size) * RUN, np.float32)
    np.abs(part, out=magnitudes[: part.size])
    largest = magnitudes.reshape(-1, RUN).max(axis=1).astype(np.float64)
    scales = (largest / LEVELS).astype(np.float32)
    short = scales.astype(np.float64) * LEVELS < largest
    found: Float32 = np.where(short, np.nextafter(scales, np.float32(np.inf)), scales)
    return found


def _decoded(codes: NDArray[np.int8], scales: Float32, start: int) -> Float32:
    """s * c of the codes of a tensor from element ``start`` on; ``scales``: of the whole tensor."""
    first = start // RUN
    of_runs = scales[first : (start + codes.size - 1) // RUN + 1 if codes.size else first]
    spread = np.repeat(of_runs, RUN)[start - first * RUN :][: codes.size]
    values: Float32 = codes.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a body's scales may be anything: the sum checks the values
        values *= spread
    return values


def uniform(philox: np.random.Philox, count: int) -> NDArray[np.float64]:
    """The next ``count`` numbers on [0, 1), multiples of 2^-32; the halves of the raw stream's words, low half first.
    Asked for in whole runs but for the last time, so where a stream is cut changes nothing."""
    words = np.asarray(philox.random_raw(-(-count // 2)), np.dtype("<u8"))
    return words.view("<u4")[:count] * 2.0**-32


def _key(origin: Origin, name: str) -> NDArray[np.uint64]:
    """The key of the generator for one tensor of one update: SHA-256 of what identifies it. The name comes last, so it
    may hold anything."""
    message = labelled("stochastic8", origin.seed, origin.round, origin.device, name)
    return np.frombuffer(sha256_bytes(message, 16), "<u8").astype(np.uint64)


def _runs(elements: int) -> int:
    return -(-elements // RUN)


def _places(header: TensorHeader) -> Iterator[tuple[int, int, int]]:
    """(first byte, elements, first scale) of each tensor, in the order of the names."""
    at = 0
    for name in sorted(_values(header.manifest)):
        elements = header.manifest[name].elements
        yield header.offsets[name][0], elements, at
        at += _runs(elements)


def _values(manifest: Manifest) -> Manifest:
    return Manifest({name: spec for name, spec in manifest.items() if name != SCALES})


def _require_free(name: str) -> None:
    if name == SCALES:
        raise ManifestMismatch(f"a tensor named {SCALES} cannot travel as stochastic8@1, which keeps its scales there")


STOCHASTIC8 = Stochastic8()
