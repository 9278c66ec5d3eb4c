"""Codecs by name and version. A plan names one (``Task.codec``); devices encode with it and the coordinator decodes.

Some codecs are built in, each in a file of its own. Others are found in installed packages: an entry ``sketch`` of the
group ``quorate.codecs`` in distribution ``clinic`` gives a codec named ``clinic:sketch@1``, or a list of several
versions of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import cast

from client_sdk.codecs.entropy import ENTROPY as ENTROPY
from client_sdk.codecs.entropy import EntropyCoded as EntropyCoded
from client_sdk.codecs.few_bits import EDEN as EDEN
from client_sdk.codecs.few_bits import SIGN as SIGN
from client_sdk.codecs.few_bits import STOCHASTIC as STOCHASTIC
from client_sdk.codecs.few_bits import FewBits as FewBits
from client_sdk.codecs.linear_map import NOTHING_DRAWN as NOTHING_DRAWN
from client_sdk.codecs.linear_map import ROTATED as ROTATED
from client_sdk.codecs.linear_map import SAMPLED as SAMPLED
from client_sdk.codecs.linear_map import LinearMap as LinearMap
from client_sdk.codecs.linear_map import shared_seed as shared_seed
from client_sdk.codecs.port import BLOCK as BLOCK
from client_sdk.codecs.port import FLOAT16 as FLOAT16
from client_sdk.codecs.port import FLOAT32 as FLOAT32
from client_sdk.codecs.port import Codec as Codec
from client_sdk.codecs.port import Identity as Identity
from client_sdk.codecs.port import LinearCodec as LinearCodec
from client_sdk.codecs.port import Origin as Origin
from client_sdk.codecs.port import longest_body as longest_body
from client_sdk.codecs.stochastic8 import STOCHASTIC8 as STOCHASTIC8
from client_sdk.codecs.top import TOP as TOP
from client_sdk.extensions import CannotLoad, extensions, provided_now
from client_sdk.protocol.names import did_you_mean
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, TensorError, Tensors, shown
from client_sdk.tensors.safetensors_file import Source, TensorHeader

GROUP = "quorate.codecs"
_LISTED, _LONGEST = 12, 60
"""How many names an error lists, and how many letters of a name are looked at for a similar one."""

_ADDED: tuple[LinearCodec, ...] = (FLOAT32, ROTATED, *SAMPLED)
_LINEAR = {codec.name: codec for codec in _ADDED}
_BUILT_IN: tuple[Codec, ...] = (
    FLOAT32,
    FLOAT16,
    STOCHASTIC8,
    *_LINEAR.values(),
    *EDEN,
    SIGN,
    *STOCHASTIC,
    *ENTROPY,
    *TOP,
)
_CODECS = {codec.name: codec for codec in _BUILT_IN}


class CodecFailed(Exception):
    """A codec fails, or gives other tensors than were encoded: one sentence."""


def as_decoded(codec: Codec, delta: Tensors, origin: Origin) -> Tensors:
    """These deltas as a coordinator decodes them. CodecFailed."""
    if codec.lossless:
        return delta
    try:
        found = codec.decode(codec.encode(delta, origin))
        Manifest.of(delta).require(Manifest.of(found), "what it decodes")
    except ManifestMismatch as error:
        raise CodecFailed(f"The codec {codec.name} gives other tensors than were encoded: {error}.") from error
    except (TensorError, MemoryError):
        raise
    except Exception as error:
        raise CodecFailed(f"The codec {codec.name} failed: {type(error).__name__}: {error}.") from error
    return found


class UnknownCodec(TensorError):
    """No codec of this name and version is installed; the text lists some of those that are built in."""


def names() -> tuple[str, ...]:
    """The codecs that are built in, as ``name@version``."""
    return tuple(_CODECS)


def get(name: str) -> Codec:
    """The codec called ``name`` (``float32@1``, ``clinic:sketch@1``). Raises UnknownCodec."""
    codec = _CODECS.get(name)
    if codec is not None:
        return codec
    if (here := provided_now(GROUP).get(name.rpartition("@")[0])) is not None and here.made.name == name:
        return cast("Codec", here.made)
    if ":" in name:
        return _of_package(name)
    near = did_you_mean(name[:_LONGEST], _CODECS)
    begin = f"{near} There are" if near else "; there are"
    more = f" and {len(_CODECS) - _LISTED} more, see docs/rounds.md"
    raise UnknownCodec(f"there is no codec {shown(name)}{begin} {', '.join(names()[:_LISTED])}{more}")


def beside(name: str, statistics: Collection[str]) -> Codec:
    """The codec called ``name`` for a model with these ``statistics``, which travel beside it as float32. Raises
    UnknownCodec."""
    codec = get(name)
    return BesideStatistics(codec, frozenset(statistics)) if statistics else codec


def linear_names() -> tuple[str, ...]:
    """The codecs whose encodings can be added, which work under masks. They are all built in."""
    return tuple(_LINEAR)


def linear(name: str) -> LinearCodec:
    """The linear codec called ``name``. Raises UnknownCodec where there is none of that name."""
    if name not in _LINEAR:
        raise UnknownCodec(f"encodings of {shown(name)} cannot be added; those of {', '.join(_LINEAR)} can")
    return _LINEAR[name]


def seed_for(name: str, plan: str, round: int) -> bytes:
    """The 32 bytes from which all devices of a round draw alike: zeros where the linear codec ``name`` draws nothing.
    ``plan``: the plan's digest in hexadecimal. A device computes it and compares it with the attempt's header. Raises
    UnknownCodec."""
    return shared_seed(plan, round) if linear(name).seeded else NOTHING_DRAWN


@dataclass(frozen=True, slots=True)
class BesideStatistics:
    """The codec of a run whose model has statistics: the plan's codec takes the parameters, and the statistics travel
    beside them as float32, under their own names. A rounded, rotated or sampled running variance would be noise.

    See ``Codec``. ``blocks`` gives the parameters first, then the statistics (``tensors.manifest``)."""

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


@lru_cache(maxsize=64)
def _of_package(name: str) -> Codec:
    """A codec of an installed package. Cached: installed packages do not change while a process runs."""
    entry = extensions(GROUP).get(name.rpartition("@")[0])
    if entry is None:
        raise UnknownCodec(f"the codec {shown(name)} is not installed here: install its package")
    try:
        given = entry.load()
    except CannotLoad as error:
        raise UnknownCodec(f"the codec {shown(name)}: {error}") from None
    found = {getattr(codec, "name", ""): codec for codec in (given if isinstance(given, list | tuple) else [given])}
    if name not in found:
        have = ", ".join(str(known) for known in found if known) or "none"
        raise UnknownCodec(f"the package of the codec {shown(name)}, in version {entry.version}, has {have}")
    codec: Codec = found[name]
    return codec
