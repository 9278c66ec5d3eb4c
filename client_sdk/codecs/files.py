"""Reading a codec's data from an open file: all of it, or an error."""

from __future__ import annotations

from typing import BinaryIO

from client_sdk.tensors.manifest import TruncatedTensors


def fill(file: BinaryIO, buffer: memoryview) -> None:
    """Read until ``buffer`` is full. TruncatedTensors where the file ends first."""
    while buffer.nbytes:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise TruncatedTensors("the file became shorter while it was read")
        buffer = buffer[count:]
