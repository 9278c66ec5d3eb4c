"""Codecs by name and version. A plan names one (``Task.codec``); devices encode with it and the coordinator decodes.

Some codecs are built in, each in a file of its own. Others are found in installed packages: an entry ``sketch`` of the
group ``quorate.codecs`` in distribution ``clinic`` gives a codec named ``clinic:sketch@1``, or a list of several
versions of it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from client_sdk.codecs.beside import BesideStatistics
from client_sdk.codecs.identity import FLOAT16, FLOAT32, Identity
from client_sdk.codecs.linear_map import ROTATED, SAMPLED, LinearMap
from client_sdk.codecs.port import BLOCK, Codec, LinearCodec, Origin, longest_body
from client_sdk.codecs.seed import NOTHING_DRAWN, shared_seed
from client_sdk.codecs.stochastic8 import STOCHASTIC8
from client_sdk.extensions import CannotLoad, extensions
from client_sdk.tensors.manifest import TensorError, shown

__all__ = [
    "BLOCK",
    "FLOAT16",
    "FLOAT32",
    "GROUP",
    "NOTHING_DRAWN",
    "ROTATED",
    "SAMPLED",
    "STOCHASTIC8",
    "BesideStatistics",
    "Codec",
    "Identity",
    "LinearCodec",
    "LinearMap",
    "Origin",
    "UnknownCodec",
    "beside",
    "get",
    "linear",
    "linear_names",
    "longest_body",
    "names",
    "seed_for",
    "shared_seed",
]  # fmt: skip

GROUP = "quorate.codecs"

_ADDED: tuple[LinearCodec, ...] = (FLOAT32, ROTATED, *SAMPLED)
_LINEAR = {codec.name: codec for codec in _ADDED}
_BUILT_IN: tuple[Codec, ...] = (FLOAT32, FLOAT16, STOCHASTIC8, *_LINEAR.values())
_CODECS = {codec.name: codec for codec in _BUILT_IN}


class UnknownCodec(TensorError):
    """No codec of this name and version is installed; the text lists those that are built in."""


def names() -> tuple[str, ...]:
    """The codecs that are built in, as ``name@version``."""
    return tuple(_CODECS)


def get(name: str) -> Codec:
    """The codec called ``name`` (``float32@1``, ``clinic:sketch@1``). Raises UnknownCodec."""
    codec = _CODECS.get(name)
    if codec is not None:
        return codec
    if ":" in name:
        return _of_package(name)
    raise UnknownCodec(f"there is no codec {shown(name)}; there are {', '.join(_CODECS)}")


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
