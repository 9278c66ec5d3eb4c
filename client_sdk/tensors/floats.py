"""Conversion between float32, in which all work is done, and the dtype of a stored tensor; and the norm of tensors.

Every result is a function of the values alone: the same bits on any processor, in any order, since the numbers that are
summed here are chosen so that their sums are exact.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.tensors import compiled
from client_sdk.tensors.manifest import (
    BF16,
    NUMPY_DTYPES,
    Array,
    Manifest,
    ManifestMismatch,
    OutOfRange,
    Tensors,
    dtype_name,
)

Float32 = npt.NDArray[np.float32]

_BLOCK = 65536
"""Elements processed at once. At most 2^16: the exactness of ``l2_norm_of_blocks`` depends on it."""


def widen(array: Array) -> Float32:
    """``array`` as float32, any shape: exact for F16 and BF16, itself for F32, rounded to nearest even for F64.

    ManifestMismatch for integers and booleans; OutOfRange when a finite float64 has no finite float32.
    """
    if array.dtype == np.float32:
        return array
    name = dtype_name(array.dtype)
    if name == "BF16":
        bits = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "F64":
        return _cast(array, np.dtype(np.float32), name)
    if name not in ("F16", "F32"):
        raise ManifestMismatch(f"{name} is not a floating-point dtype and is never averaged")
    return array.astype(np.float32)


def as_array(name: object, value: Any) -> Array:
    """A numpy array of what is one, of a torch tensor on the CPU (bfloat16 as ``BF16``), or of an object that numpy
    converts. ManifestMismatch, naming the tensor, for anything else."""
    kind = type(value).__name__
    if isinstance(value, np.ma.MaskedArray):
        raise ManifestMismatch(
            f"the delta of {name!r} is a masked array: give .filled(0), or what its masked values are"
        )
    if isinstance(name, str) and isinstance(value, np.ndarray):
        return value
    if not isinstance(name, str) or not hasattr(value, "dtype"):
        raise ManifestMismatch(f"the delta maps names to NumPy arrays, not {name!r} to a {kind}")
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout is not torch.strided:
                where = value.device if value.device.type != "cpu" else value.layout
                raise ManifestMismatch(f"the delta of {name!r} is a tensor on {where}: give .cpu(), and dense tensors")
            plain = value.detach().resolve_conj().resolve_neg()
            if plain.dtype is torch.bfloat16:
                return np.asarray(plain.contiguous().view(torch.int16).numpy()).view(BF16)
            return np.asarray(plain.numpy())
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, ManifestMismatch):
            raise
        raise ManifestMismatch(f"the delta of {name!r} is a {kind} that is no array of numbers: {error}") from None


def narrow(array: Float32, dtype: str | np.dtype[Any]) -> Array:
    """float32 ``array`` as ``dtype`` (F32, F16, BF16 or F64, by name or of numpy), rounded to nearest, ties to even;
    NaN and infinity stay what they are.

    OutOfRange when a finite value would become infinite: nothing overflows silently.
    """
    if not isinstance(dtype, str):
        dtype = dtype_name(dtype)
    if dtype == "F32":
        return array
    if dtype == "F64":
        return array.astype(np.float64)
    if dtype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).reshape(array.shape)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        rounded = np.where(np.isnan(array), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
        _refuse_overflow(array, (rounded & np.uint16(0x7FFF)) == np.uint16(0x7F80), dtype)
        return rounded.reshape(-1).view(BF16).reshape(array.shape)
    if dtype != "F16":
        raise ManifestMismatch(f"{dtype} is not a floating-point dtype that float32 can be rounded to")
    return _cast(array, NUMPY_DTYPES["F16"], dtype)


def _cast(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = array.astype(dtype)
    _refuse_overflow(array, np.isinf(result), name)
    return result


def _refuse_overflow(array: Array, became_infinite: npt.NDArray[np.bool_], dtype: str) -> None:
    if became_infinite.any() and bool((became_infinite & np.isfinite(array)).any()):
        largest = float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))
        raise OutOfRange(f"a value of magnitude {largest:g} overflows between {dtype} and float32")


def l2_norm_of_blocks(blocks: Iterable[Float32], peak: float) -> float:
    """The Euclidean norm of 1-d blocks of at most 65536 values, none larger than ``peak`` in magnitude.

    Independent of the order, and fast: with e such that peak <= 2^e, every square s = (x / 2^e)^2 <= 1 is exact in
    float64. It is split by three additions of a constant into multiples of 2^-36, 2^-72 and 2^-108. Up to 2^16 of
    each add up to less than 2^53 units, so a block's three sums are exact in whatever order the processor takes;
    math.fsum rounds their total once.
    """
    if peak == 0.0:
        return 0.0
    exponent = math.frexp(peak)[1]
    shrink = np.float64(math.ldexp(1.0, -exponent))
    sums: list[float] = []
    scratch = np.empty((2, 0))
    for block in blocks:
        if block.size > _BLOCK:
            raise OutOfRange(f"a block of {block.size} values is longer than {_BLOCK}")
        if compiled.loops is not None:
            sums += compiled.loops.squares(block, float(shrink))
            continue
        if block.size > scratch.shape[1]:
            scratch = np.empty((2, block.size))
        rest, part = scratch[0, : block.size], scratch[1, : block.size]
        np.multiply(block, shrink, out=rest)
        rest *= rest
        for bits in (36, 72, 108):
            anchor = np.float64(math.ldexp(1.5, 52 - bits))
            np.add(rest, anchor, out=part)
            part -= anchor
            rest -= part
            sums.append(float(part.sum()))
    return math.ldexp(math.sqrt(math.fsum(sums)), exponent)


def scaled(array: Float32, factor: float) -> Float32:
    """float32(x * factor) with the product in float64: the same bits wherever a clip is repeated."""
    return (array.astype(np.float64) * np.float64(factor)).astype(np.float32)


def pieces(flat: Float32, size: int = _BLOCK) -> Iterator[Float32]:
    """A 1-d array in views of at most ``size`` elements."""
    for start in range(0, flat.size, size):
        yield flat[start : start + size]


def joined(arrays: Iterable[Float32]) -> Iterator[Float32]:
    """The arrays as 1-d views, in their order: those that lie one after another in one 1-d array come as one view."""
    whole: Array | None = None
    start = stop = 0
    for array in arrays:
        flat = array.reshape(-1)
        base = flat.base
        first = _place(flat, base) if isinstance(base, np.ndarray) else None
        if first is not None and base is whole and first == stop:
            stop += flat.size
            continue
        if whole is not None:
            yield whole[start:stop]
        whole, start, stop = (flat, 0, flat.size) if first is None else (base, first, first + flat.size)
    if whole is not None:
        yield whole[start:stop]


def _place(flat: Float32, base: Array) -> int | None:
    """Where a 1-d view begins in the 1-d array that it is a part of; None where it is not simply a part."""
    if base.ndim != 1 or base.dtype != flat.dtype or base.strides != flat.strides or flat.strides != (flat.itemsize,):
        return None
    behind: int = flat.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return behind // flat.itemsize


# ------------------------------------------------------------ flat
# One flat vector from many tensors: the float32 values of a manifest one after the other, in the manifest's order.
#
# Sums are made of such vectors.


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
