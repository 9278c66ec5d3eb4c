"""The interface of a codec: an encoding of float32 deltas, under a name and a version that a plan can name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Array, Manifest, Tensors, TruncatedTensors
from client_sdk.tensors.safetensors_file import TensorHeader

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

    def max_bytes(self, manifest: Manifest) -> int:
        """The longest body for deltas of ``manifest``, in bytes, header and report included."""

    def blocks(
        self, source: Path | bytes | bytearray | memoryview, header: TensorHeader, block: int = BLOCK
    ) -> Iterator[Float32]:
        """The decoded flat vector of a body in 1-d float32 blocks of at most ``block`` elements, in the order of the
        names.

        A block ends where its tensor ends. It may be overwritten when the next one is asked for. Values are not
        checked. Memory: one block. Raises TruncatedTensors when a file has become shorter than ``header`` says,
        OSError when it cannot be read.
        """


def fill(file: BinaryIO, buffer: memoryview) -> None:
    """Reads until ``buffer`` is full. TruncatedTensors where the file ends first."""
    while buffer.nbytes:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise TruncatedTensors("the file became shorter while it was read")
        buffer = buffer[count:]
