"""Content-addressed blobs: the port, its errors, and its two implementations (files, memory)."""

from coordinator.blobs.files import BlobFolder as BlobFolder
from coordinator.blobs.files import FileBlobs as FileBlobs
from coordinator.blobs.port import BlobError as BlobError
from coordinator.blobs.port import Blobs as Blobs
from coordinator.blobs.port import Damaged as Damaged
from coordinator.blobs.port import DigestMismatch as DigestMismatch
from coordinator.blobs.port import DiskFull as DiskFull
from coordinator.blobs.port import Gone as Gone
from coordinator.blobs.port import MemoryBlobs as MemoryBlobs
from coordinator.blobs.port import Missing as Missing
from coordinator.blobs.port import Spool as Spool
from coordinator.blobs.port import TooLarge as TooLarge
