"""Codecs by name and version. A plan names one (``Task.codec``); devices encode with it and the coordinator decodes.

Knows which codecs there are. Has never heard of how any of them works.
"""

from __future__ import annotations

from client_sdk.codecs.identity import FLOAT16, FLOAT32, Identity
from client_sdk.codecs.port import BLOCK, Codec
from client_sdk.tensors.manifest import TensorError, shown

__all__ = ["BLOCK", "FLOAT16", "FLOAT32", "Codec", "Identity", "UnknownCodec", "get", "names"]

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (FLOAT32, FLOAT16)}


class UnknownCodec(TensorError):
    """No codec of this name and version is installed; the text lists those that are."""


def names() -> tuple[str, ...]:
    """The codecs there are, as ``name@version``."""
    return tuple(_CODECS)


def get(name: str) -> Codec:
    """The codec called ``name`` (``float32@1``). Raises UnknownCodec."""
    codec = _CODECS.get(name)
    if codec is None:
        raise UnknownCodec(f"there is no codec {shown(name)}; there are {', '.join(_CODECS)}")
    return codec
