"""Re-exports for tensors: their description, and how they are written, rounded, measured and flattened.

``manifest``: names, dtypes, shapes, roles and errors. ``safetensors_file``: safetensors bytes. ``floats``: rounding,
norms, one vector from many tensors. ``exact_sum``, the order-independent sum, is imported by its own name.
"""

from __future__ import annotations

from client_sdk.tensors.floats import Float32 as Float32
from client_sdk.tensors.floats import flatten as flatten
from client_sdk.tensors.floats import l2_norm_of_blocks as l2_norm_of_blocks
from client_sdk.tensors.floats import narrow as narrow
from client_sdk.tensors.floats import pieces as pieces
from client_sdk.tensors.floats import scaled as scaled
from client_sdk.tensors.floats import split as split
from client_sdk.tensors.floats import widen as widen
from client_sdk.tensors.manifest import BF16 as BF16
from client_sdk.tensors.manifest import FLOATING as FLOATING
from client_sdk.tensors.manifest import NUMPY_DTYPES as NUMPY_DTYPES
from client_sdk.tensors.manifest import Array as Array
from client_sdk.tensors.manifest import Layout as Layout
from client_sdk.tensors.manifest import MalformedTensors as MalformedTensors
from client_sdk.tensors.manifest import Manifest as Manifest
from client_sdk.tensors.manifest import ManifestMismatch as ManifestMismatch
from client_sdk.tensors.manifest import NotFinite as NotFinite
from client_sdk.tensors.manifest import OutOfRange as OutOfRange
from client_sdk.tensors.manifest import Roles as Roles
from client_sdk.tensors.manifest import TensorError as TensorError
from client_sdk.tensors.manifest import Tensors as Tensors
from client_sdk.tensors.manifest import TensorSpec as TensorSpec
from client_sdk.tensors.manifest import TrailingBytes as TrailingBytes
from client_sdk.tensors.manifest import TruncatedTensors as TruncatedTensors
from client_sdk.tensors.manifest import dtype_name as dtype_name
from client_sdk.tensors.manifest import named as named
from client_sdk.tensors.manifest import numpy_dtype as numpy_dtype
from client_sdk.tensors.manifest import shown as shown
from client_sdk.tensors.safetensors_file import HEADER_LIMIT as HEADER_LIMIT
from client_sdk.tensors.safetensors_file import REPORT_ROOM as REPORT_ROOM
from client_sdk.tensors.safetensors_file import SHORT_HEADER as SHORT_HEADER
from client_sdk.tensors.safetensors_file import Source as Source
from client_sdk.tensors.safetensors_file import TensorHeader as TensorHeader
from client_sdk.tensors.safetensors_file import canonical_bytes as canonical_bytes
from client_sdk.tensors.safetensors_file import canonical_digest as canonical_digest
from client_sdk.tensors.safetensors_file import digest as digest
from client_sdk.tensors.safetensors_file import from_bytes as from_bytes
from client_sdk.tensors.safetensors_file import header_bytes as header_bytes
from client_sdk.tensors.safetensors_file import header_limit as header_limit
from client_sdk.tensors.safetensors_file import read_header as read_header
from client_sdk.tensors.safetensors_file import to_bytes as to_bytes
