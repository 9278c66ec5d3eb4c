"""The front door for tensors: what they are, how they are written, rounded and measured, and one flat vector from many.

The parts: ``manifest`` (names, dtypes, shapes, errors), ``tensorfile`` (safetensors bytes), ``floats`` (rounding,
norms). This file adds only the flat vector: the float32 deltas of a manifest one after the other, in the manifest's
order, which is what sums are made of.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from client_sdk.tensors.floats import Float32, clip_to_norm, l2_norm, l2_norm_of_blocks, narrow, pieces, scaled, widen
from client_sdk.tensors.manifest import (
    BF16,
    FLOATING,
    NUMPY_DTYPES,
    Array,
    MalformedTensors,
    Manifest,
    ManifestMismatch,
    NotFinite,
    OutOfRange,
    TensorError,
    Tensors,
    TensorSpec,
    TrailingBytes,
    TruncatedTensors,
    dtype_name,
    numpy_dtype,
    shown,
)
from client_sdk.tensors.safetensors_file import (
    HEADER_LIMIT,
    Header,
    Source,
    canonical_bytes,
    digest,
    from_bytes,
    read_header,
    to_bytes,
)

__all__ = [
    "BF16",
    "FLOATING",
    "HEADER_LIMIT",
    "NUMPY_DTYPES",
    "Array",
    "Float32",
    "Header",
    "MalformedTensors",
    "Manifest",
    "ManifestMismatch",
    "NotFinite",
    "OutOfRange",
    "Source",
    "TensorError",
    "TensorSpec",
    "Tensors",
    "TrailingBytes",
    "TruncatedTensors",
    "canonical_bytes",
    "clip_to_norm",
    "digest",
    "dtype_name",
    "flatten",
    "from_bytes",
    "l2_norm",
    "l2_norm_of_blocks",
    "narrow",
    "numpy_dtype",
    "pieces",
    "read_header",
    "scaled",
    "shown",
    "split",
    "to_bytes",
    "widen",
]


def flatten(tensors: Mapping[str, Array], manifest: Manifest) -> Float32:
    """All of ``manifest``'s tensors as one float32 vector of ``manifest.elements``, in its order. ManifestMismatch
    when they differ in names or shapes; dtypes may be any floating ones.
    """
    manifest.as_float32().require(Manifest.of(tensors).as_float32(), "the tensors")
    flat = np.empty(manifest.elements, np.float32)
    for name, place in manifest.slices().items():
        flat[place] = widen(tensors[name]).reshape(-1)
    return flat


def split(flat: Float32, manifest: Manifest) -> Tensors:
    """The inverse of ``flatten``: views of ``flat`` by name, each in its shape. ManifestMismatch when the length
    differs.
    """
    if flat.shape != (manifest.elements,):
        raise ManifestMismatch(
            f"a flat vector of {manifest.elements} values was expected, not shape {list(flat.shape)}"
        )
    return {name: flat[place].reshape(manifest[name].shape) for name, place in manifest.slices().items()}
