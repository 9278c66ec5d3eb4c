"""The interface of a codec: an encoding of float32 deltas, under a name and a version that a plan can name; and the
plainest codecs, which send every value by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from client_sdk.protocol.devices import Assignment
from client_sdk.tensors.exact_sum import peak
from client_sdk.tensors.floats import Float32, flatten, narrow, pieces, split, widen
from client_sdk.tensors.manifest import (
    NUMPY_DTYPES,
    Array,
    Manifest,
    ManifestMismatch,
    NotFinite,
    OutOfRange,
    Tensors,
    TensorSpec,
    TruncatedTensors,
    dtype_name,
    shown,
)
from client_sdk.tensors.safetensors_file import Source, TensorHeader, header_limit

BLOCK = 65536
"""Elements of a block by default: 256 KiB of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose update it is: the only source of a codec's randomness, so that the same update gives the same bytes
    wherever it is encoded again."""

    seed: int = 0
    """``Task.seed``. Public: what is drawn from it is no secret."""
    round: int = 0
    device: str = ""
    plan: str = ""
    """Digest of the plan: with the round, the source of what all devices draw alike (``seed.shared_seed``)."""

    @classmethod
    def of(cls, assignment: Assignment) -> Origin:
        """The origin of the update that this assignment asks for."""
        return cls(
            seed=assignment.task.seed,
            round=assignment.round,
            device=assignment.device,
            plan=assignment.plan_digest,
        )


class Codec(Protocol):
    """A named, versioned encoding of deltas. A version always reads what it wrote: its format never changes."""

    @property
    def name(self) -> str:
        """``name@version``, as in ``Task.codec``; of a package ``package:name@version``."""

    @property
    def lossless(self) -> bool:
        """Whether what is decoded has the bits that were encoded: then a simulation need not encode at all."""

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        """float32 deltas by name, as the tensors that travel: a function of its arguments. Raises NotFinite,
        OutOfRange, ManifestMismatch (not float32).
        """

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """The float32 deltas in tensors that travelled. Values are not checked. Raises ManifestMismatch (another
        dtype).
        """

    def wire(self, manifest: Manifest) -> Manifest:
        """The manifest that travels for deltas of ``manifest``, whose dtypes do not matter. Raises ManifestMismatch
        where it has names that this codec cannot take."""

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """The decoded flat vector of a body in 1-d float32 blocks of at most ``block`` elements, in the order of the
        names.

        A block ends where its tensor ends. It may be overwritten when the next one is asked for. Values are not
        checked. Memory: one block. A stream is read from wherever is needed, and not closed. Raises TruncatedTensors
        when a file has become shorter than ``header`` says, OSError when it cannot be read.
        """


class LinearCodec(Codec, Protocol):
    """A codec that is a linear map of the flat delta, the same for all devices of a round: the sum of encoded deltas is
    the encoded sum. It works under masks. The flat delta has its tensors in the order of their names."""

    @property
    def linear(self) -> bool:
        """True."""

    @property
    def seeded(self) -> bool:
        """Whether the map is drawn from the seed that all devices of a round share; else it ignores the seed."""

    def count(self, elements: int) -> int:
        """Values of an encoded delta of so many elements; at least 1 where there is an element."""

    def forward(self, flat: Float32, seed: bytes) -> Float32:
        """The encoded values of ``flat`` (1-d float32, finite, not changed): 1-d float32, a new array."""

    def back(self, read: Read, elements: int, seed: bytes) -> Read:
        """Reads the flat delta of ``elements`` values whose encoded values ``read`` reads, such as a mean of several.
        The same bits in whatever order it is read; reading in order is fast. What it returns must not be changed."""


def longest_body(codec: Codec, manifest: Manifest) -> int:
    """The longest body for deltas of ``manifest``, in bytes, header and report included. ManifestMismatch as
    ``Codec.wire``."""
    wire = codec.wire(manifest)
    return 8 + header_limit(wire) + wire.nbytes


def require_encodable(name: str, array: Array, codec: str) -> None:
    """Raise ManifestMismatch, NotFinite or OutOfRange unless the delta of tensor ``name`` is float32 that a sum can
    take."""
    if dtype_name(array.dtype) != "F32":
        raise ManifestMismatch(f"the delta of {shown(name)} has dtype {array.dtype}; a codec takes float32")
    try:
        peak(array)
    except NotFinite:
        raise NotFinite(f"the delta of {shown(name)} holds NaN or infinity") from None
    except OutOfRange as error:
        raise OutOfRange(f"the delta of {shown(name)} does not fit {codec}: {error}") from None


def opened(source: Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """The stream; a path's file is closed at the end."""
    return source.open("rb", buffering=0) if isinstance(source, Path) else nullcontext(source)


def fill(file: BinaryIO, buffer: memoryview) -> None:
    """Reads until ``buffer`` is full. TruncatedTensors where the file ends first."""
    while buffer.nbytes:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise TruncatedTensors("the file became shorter while it was read")
        buffer = buffer[count:]


Octets = Callable[[int, int], memoryview]
"""``octets(begin, size)``: that many bytes from there on. The memory may be the source's own."""


@contextmanager
def octets_of(source: Source) -> Iterator[Octets]:
    """Reads bytes of ``source`` from wherever is asked. TruncatedTensors where a file ends first."""
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        yield lambda begin, size: view[begin : begin + size]
        return
    with opened(source) as file:

        def octets(begin: int, size: int) -> memoryview:
            file.seek(begin)
            fill(file, found := memoryview(bytearray(size)))
            return found

        yield octets


# ------------------------------------------------------------ reading
# A flat vector that is computed piece by piece where it is read. Memory: one piece.


Read = Callable[[int, int], Float32]
"""``read(start, count)``: that many values of a flat vector, 1-d float32. The array may be the reader's own."""


class Pieces:
    """Reads a vector of which piece i, from ``bounds[i]`` to ``bounds[i + 1]``, is ``compute(i)``. The last piece that
    was read is kept, so reading in order computes each piece once."""

    def __init__(self, bounds: Sequence[int], compute: Callable[[int], Float32]) -> None:
        """``bounds`` begins with 0 and rises; it is empty of pieces where the vector is empty."""
        self._bounds = np.asarray(bounds, np.int64)
        self._compute = compute
        self._held, self._piece = -1, np.empty(0, np.float32)

    def read(self, start: int, count: int) -> Float32:
        """See ``Read``. What is returned is overwritten by nobody, and must not be changed."""
        found = []
        while count:
            place = int(np.searchsorted(self._bounds, start, side="right")) - 1
            if place != self._held:
                self._piece, self._held = self._compute(place), place
            part = self._piece[start - int(self._bounds[place]) :][:count]
            found.append(part)
            start, count = start + part.size, count - part.size
        if len(found) == 1:
            return found[0]
        return np.concatenate([np.empty(0, np.float32), *found])


# ------------------------------------------------------------ bodies of a flat vector
# A codec that mixes tensors sends names and shapes as tensors without data: of a dimension of 0 before their shape.


class FlatCodec(ABC):
    """What codecs of a flat vector share: a body that tells names and shapes by tensors without data, and has the
    vector in tensors of the codec's own."""

    __slots__ = ()
    OWN: ClassVar[tuple[str, ...]]
    """The names of these; no tensor of a model may have them."""
    name: str

    @abstractmethod
    def _own(self, manifest: Manifest) -> dict[str, TensorSpec]:
        """The codec's own tensors for deltas of ``manifest``."""

    @abstractmethod
    def _encoded(self, flat: Float32, manifest: Manifest, origin: Origin) -> Tensors:
        """The codec's own tensors for ``flat``, which may be overwritten."""

    @abstractmethod
    def _read(self, manifest: Manifest, own: Mapping[str, Octets]) -> Read:
        """Reads the flat delta; ``own``: the bytes of the codec's own tensors."""

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        """Names and shapes, and the codec's own tensors. Raises NotFinite, OutOfRange, ManifestMismatch (not float32,
        or a name that this codec keeps for itself)."""
        self._require_free(delta)
        for name, array in delta.items():
            require_encodable(name, array, self.name)
        manifest = Manifest.of(delta).in_file_order()
        self.wire(manifest)
        shapes: Tensors = {name: np.empty((0, *array.shape), np.float32) for name, array in delta.items()}
        return {**shapes, **self._encoded(flatten(delta, manifest), manifest, origin)}

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch when these are not the tensors that this codec writes, OutOfRange
        as ``blocks``."""
        manifest = self._manifest(Manifest.of(tensors))
        read = self._read(manifest, {name: _in_memory(tensors[name]) for name in self._own(manifest)})
        return split(np.array(read(0, manifest.elements)), manifest)

    def wire(self, manifest: Manifest) -> Manifest:
        """Names and shapes without data, and the codec's own tensors. Raises ManifestMismatch for the names of
        these."""
        self._require_free(manifest)
        shapes = {name: TensorSpec("F32", (0, *spec.shape)) for name, spec in manifest.items()}
        return Manifest({**shapes, **self._own(manifest)}).in_file_order()

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. Memory: see ``_read``. OutOfRange where the body has what this codec never writes."""
        return self._blocks(source, header, self._manifest(header.manifest), block)

    def _blocks(self, source: Source, header: TensorHeader, manifest: Manifest, block: int) -> Iterator[Float32]:
        with octets_of(source) as octets:
            read = self._read(manifest, {name: _from(octets, header.offsets[name][0]) for name in self._own(manifest)})
            for place in manifest.slices().values():
                for start in range(place.start, place.stop, block):
                    yield read(start, min(block, place.stop - start))

    def _manifest(self, travelled: Manifest) -> Manifest:
        """The manifest of the deltas in a body. ManifestMismatch where it is not one of this codec."""
        manifest = self._told(travelled)
        self.wire(manifest).require(travelled)
        return manifest

    def _told(self, travelled: Manifest) -> Manifest:
        """The manifest of the deltas in a body of whatever codec. Nothing is checked."""
        names = travelled.keys() - set(self.OWN)
        return Manifest({name: TensorSpec("F32", travelled[name].shape[1:]) for name in names}).in_file_order()

    def _require_free(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.OWN:
                taken = f"a tensor named {shown(name)} cannot travel as {self.name}"
                raise ManifestMismatch(f"{taken}: its own data is there")


def _in_memory(array: Array) -> Octets:
    view = np.ascontiguousarray(array).view(np.uint8).data
    return lambda begin, size: view[begin : begin + size]


def _from(octets: Octets, first: int) -> Octets:
    return lambda begin, size: octets(first + begin, size)


def total(values: npt.NDArray[np.float64]) -> Any:
    """The sums over the first axis, in an order of additions that depends on its length alone: the back half is added
    to the front half. The values are overwritten."""
    while len(values) > 1:
        half = -(-len(values) // 2)
        values[: len(values) - half] += values[half:]
        values = values[:half]
    return values[0]


# ------------------------------------------------------------ every value by itself
# In one dtype for all tensors: as float32, or rounded to float16.


NOBODY = Origin()


@dataclass(frozen=True, slots=True)
class Identity:
    """Deltas as they are, in one dtype: rounded to nearest, ties to even, when it is narrower than float32."""

    name: str
    dtype: str
    """F32 or F16."""
    seeded: bool = False

    @property
    def lossless(self) -> bool:
        return self.dtype == "F32"

    @property
    def linear(self) -> bool:
        """Rounding is not linear, so only float32 can be added under masks."""
        return self.lossless

    def count(self, elements: int) -> int:
        """Values of an encoded delta of so many elements: one for each."""
        return elements

    def forward(self, flat: Float32, seed: bytes) -> Float32:
        """The encoded values of ``flat``: a copy."""
        return np.array(flat)

    def back(self, read: Read, elements: int, seed: bytes) -> Read:
        """Reads the flat delta: its values are the encoded ones."""
        return read

    def encode(self, delta: Mapping[str, Array], origin: Origin = NOBODY) -> Tensors:
        """float32 deltas in this codec's dtype, for any origin. Raises NotFinite, OutOfRange (float16 ends at
        65504), ManifestMismatch.
        """
        return {name: self._encoded(name, array) for name, array in delta.items()}

    def _encoded(self, name: str, array: Array) -> Array:
        require_encodable(name, array, self.name)
        try:
            return narrow(array, self.dtype)
        except OutOfRange as error:
            raise OutOfRange(f"the delta of {shown(name)} does not fit {self.name}: {error}") from None

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        """float32 of each. Raises ManifestMismatch when a tensor has another dtype than this codec writes."""
        manifest = Manifest.of(tensors)
        self.wire(manifest).require(manifest)
        return {name: widen(array) for name, array in tensors.items()}

    def wire(self, manifest: Manifest) -> Manifest:
        """The manifest of an encoded update: the model's names and shapes, in this codec's dtype."""
        return manifest.with_dtype(self.dtype)

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        """See ``Codec.blocks``. float32 in memory is given as views of ``source``."""
        self.wire(header.manifest).require(header.manifest)
        if isinstance(source, bytes | bytearray | memoryview):
            return self._from_memory(source, header, block)
        return self._from_file(source, header, block)

    def _from_memory(
        self, source: bytes | bytearray | memoryview, header: TensorHeader, block: int
    ) -> Iterator[Float32]:
        for begin, elements in self._places(header):
            if not elements:
                continue
            stored: Array = np.frombuffer(source, NUMPY_DTYPES[self.dtype], elements, begin)
            for part in pieces(stored, block):
                yield widen(part)

    def _from_file(self, source: Path | BinaryIO, header: TensorHeader, block: int) -> Iterator[Float32]:
        buffer: Array = np.empty(block, NUMPY_DTYPES[self.dtype])
        with opened(source) as file:
            for begin, elements in self._places(header):
                file.seek(begin)
                for start in range(0, elements, block):
                    part = buffer[: min(block, elements - start)]
                    fill(file, part.view(np.uint8).data)
                    yield widen(part)

    @staticmethod
    def _places(header: TensorHeader) -> list[tuple[int, int]]:
        """(first byte, elements) of each tensor, in the order of the names: that of float32 deltas, whatever the
        file's.
        """
        return [(header.offsets[name][0], header.manifest[name].elements) for name in sorted(header.manifest)]


FLOAT32 = Identity("float32@1", "F32")
FLOAT16 = Identity("float16@1", "F16")
