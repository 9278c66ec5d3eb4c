"""One file with the answer to a message: the node's new Context.state, and the reply.

::

    quorate-flower-answer-1\\n    24 bytes
    length of the header         8 bytes, little-endian
    header                       AnswerHeader as JSON
    state                        records, as ``records.encode`` gives them
    reply                        records; cut off once the coordinator has it

It is written once, in one piece, so a crash leaves the whole of it or nothing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from client_sdk.protocol.flower import FlowerError, MessageId
from client_sdk.protocol.names import Digest, Message

MAGIC = b"quorate-flower-answer-1\n"
_HEADER_LIMIT = 1 << 16


class AnswerHeader(Message):
    """What an answer consists of."""

    run: str
    number: int
    """The run's, which Flower's ``Context.run_id`` has."""
    message: MessageId
    state_bytes: int = Field(ge=0)
    reply: Digest | None = None
    """SHA-256 of the reply's bytes; None: the ClientApp itself has replied with ``error``."""
    reply_bytes: int = Field(default=0, ge=0)
    error: FlowerError | None = None


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """An answer that is stored."""

    path: Path
    header: AnswerHeader
    state_at: int
    """Where the state's bytes begin."""

    @property
    def reply_at(self) -> int:
        return self.state_at + self.header.state_bytes

    def open_reply(self) -> BinaryIO:
        """The reply's bytes, open for reading from their start."""
        return io.BufferedReader(_Part(self.path.open("rb"), self.reply_at, self.header.reply_bytes), 1 << 20)


def write_answer(
    file: BinaryIO, header: AnswerHeader, state: Iterable[bytes | memoryview], reply: Iterable[bytes | memoryview] = ()
) -> None:
    """Write an answer. ``state`` and ``reply``: their bytes in parts, as long as the header says."""
    text = header.model_dump_json().encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + text)
    file.writelines((*state, *reply))


def read_answer(path: Path) -> AnswerFile:
    """The answer in a file. ValueError where the file is none; OSError."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} is no answer to a Flower message")
        length = int.from_bytes(file.read(8), "little")
        if length > _HEADER_LIMIT:
            raise ValueError(f"the header of {path} would have {length} bytes")
        header = AnswerHeader.model_validate_json(file.read(length))
        return AnswerFile(path, header, file.tell())


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        want = max(0, min(len(view), self._length - self._at))
        self._file.seek(self._start + self._at)
        found = self._file.read(want)
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
