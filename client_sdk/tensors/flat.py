"""One flat vector from many tensors: the float32 values of a manifest one after the other, in the manifest's order.

Sums are made of such vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from client_sdk.tensors.floats import Float32, widen
from client_sdk.tensors.manifest import Array, Manifest, ManifestMismatch, Tensors


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
