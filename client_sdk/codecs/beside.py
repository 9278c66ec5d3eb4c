"""The codec of a run whose model has statistics: the plan's codec takes the parameters, and the statistics travel
beside them as float32, under their own names. A rounded, rotated or sampled running variance would be noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from client_sdk.codecs.identity import FLOAT32
from client_sdk.codecs.port import BLOCK, Codec, Origin
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, Tensors, shown
from client_sdk.tensors.safetensors_file import Source, TensorHeader


@dataclass(frozen=True, slots=True)
class BesideStatistics:
    """See ``Codec``. ``blocks`` gives the parameters first, then the statistics (``tensors.roles``)."""

    parameters: Codec
    """The plan's codec."""
    statistics: frozenset[str]

    @property
    def name(self) -> str:
        return self.parameters.name

    @property
    def lossless(self) -> bool:
        return self.parameters.lossless

    def encode(self, delta: Mapping[str, Array], origin: Origin) -> Tensors:
        of_parameters = {name: array for name, array in delta.items() if name not in self.statistics}
        of_statistics = {name: array for name, array in delta.items() if name in self.statistics}
        return {**self.parameters.encode(of_parameters, origin), **FLOAT32.encode(of_statistics)}

    def decode(self, tensors: Mapping[str, Array]) -> Tensors:
        of_statistics = {name: array for name, array in tensors.items() if name in self.statistics}
        of_parameters = {name: array for name, array in tensors.items() if name not in self.statistics}
        return {**self.parameters.decode(of_parameters), **FLOAT32.decode(of_statistics)}

    def wire(self, manifest: Manifest) -> Manifest:
        of_parameters, of_statistics = self._parts(manifest)
        encoded = self.parameters.wire(of_parameters)
        taken = sorted(encoded.keys() & self.statistics)
        if taken:
            raise ManifestMismatch(f"the codec {self.name} keeps its own data under the name {shown(taken[0])}")
        return Manifest({**encoded, **FLOAT32.wire(of_statistics)}).in_file_order()

    def blocks(self, source: Source, header: TensorHeader, block: int = BLOCK) -> Iterator[Float32]:
        of_parameters, of_statistics = (_of(header, part) for part in self._parts(header.manifest))
        return chain(self.parameters.blocks(source, of_parameters, block), FLOAT32.blocks(source, of_statistics, block))

    def _parts(self, manifest: Manifest) -> tuple[Manifest, Manifest]:
        of_statistics = {name: spec for name, spec in manifest.items() if name in self.statistics}
        rest = {name: spec for name, spec in manifest.items() if name not in self.statistics}
        return Manifest(rest), Manifest(of_statistics)


def _of(header: TensorHeader, part: Manifest) -> TensorHeader:
    """The header of a file's part: with these tensors only, where they are in the file."""
    return replace(header, manifest=part, offsets={name: header.offsets[name] for name in part})
