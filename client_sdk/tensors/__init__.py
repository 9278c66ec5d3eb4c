"""Re-exports for tensors: their description, and how they are written, rounded, measured and flattened.

``manifest``: names, dtypes, shapes and errors. ``safetensors_file``: safetensors bytes. ``floats``: rounding and norms.
``flat``: one vector from many tensors. ``roles``: which tensors are statistics. ``exact_sum``, the order-independent
sum, is imported by its own name.
"""

from __future__ import annotations

from client_sdk.tensors.canonical_file import canonical_digest
from client_sdk.tensors.flat import flatten, split
from client_sdk.tensors.floats import Float32, l2_norm, l2_norm_of_blocks, narrow, pieces, scaled, widen
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
    named,
    numpy_dtype,
    shown,
)
from client_sdk.tensors.roles import Layout, Roles
from client_sdk.tensors.safetensors_file import (
    HEADER_LIMIT,
    REPORT_ROOM,
    SHORT_HEADER,
    Source,
    TensorHeader,
    canonical_bytes,
    digest,
    from_bytes,
    header_bytes,
    header_limit,
    read_header,
    to_bytes,
)

__all__ = [
    "BF16",
    "FLOATING",
    "HEADER_LIMIT",
    "NUMPY_DTYPES",
    "REPORT_ROOM",
    "SHORT_HEADER",
    "Array",
    "Float32",
    "Layout",
    "MalformedTensors",
    "Manifest",
    "ManifestMismatch",
    "NotFinite",
    "OutOfRange",
    "Roles",
    "Source",
    "TensorError",
    "TensorHeader",
    "TensorSpec",
    "Tensors",
    "TrailingBytes",
    "TruncatedTensors",
    "canonical_bytes",
    "canonical_digest",
    "digest",
    "dtype_name",
    "flatten",
    "from_bytes",
    "header_bytes",
    "header_limit",
    "l2_norm",
    "l2_norm_of_blocks",
    "named",
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
