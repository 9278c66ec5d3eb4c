"""Content-addressed blobs: the port, its errors, and its two implementations (files, memory)."""

from coordinator.blobs.files import BlobFolder, FileBlobs
from coordinator.blobs.port import (
    BlobError,
    Blobs,
    Damaged,
    DigestMismatch,
    DiskFull,
    Gone,
    MemoryBlobs,
    Missing,
    Spool,
    TooLarge,
)

__all__ = [
    "BlobError",
    "BlobFolder",
    "Blobs",
    "Damaged",
    "DigestMismatch",
    "DiskFull",
    "FileBlobs",
    "Gone",
    "MemoryBlobs",
    "Missing",
    "Spool",
    "TooLarge",
]
