"""The canonical encoding of what is signed: numbers, strings and bytes, and its decoding.

Numbers are big-endian of fixed width; strings and byte strings of variable length are prefixed with their length. A
message begins with its kind, one byte. A writer gives back, byte for byte, what a reader accepts: the parsers built on
it refuse every other form. Credentials and secure rounds each have a subclass of both, which sets their own ``error``.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, WrapSerializer

TEXT_LIMIT = 255
BLOB_LIMIT = 1 << 16

_DIGEST_BYTES = 32


class NotCanonical(ValueError):
    """A value that has no canonical form here, or bytes that are not in it."""


class CanonicalWriter:
    """Writes fields in sequence. ``error`` for a value that does not fit, so that nothing unreadable is signed."""

    error: ClassVar[type[ValueError]] = NotCanonical

    def __init__(self, kind: int) -> None:
        self._out = [bytes([kind])]

    def number(self, value: int, width: int) -> Self:
        """``width`` bytes, big-endian."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << (8 * width):
            raise self.error(f"{value!r} is no number of {width} bytes")
        self._out.append(value.to_bytes(width, "big"))
        return self

    def float(self, value: float) -> Self:
        """A finite number as IEEE 754 binary64; minus zero is refused, since zero has one form."""
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            raise self.error(f"{value!r} is no number that a message can hold")
        self._out.append(struct.pack(">d", value))
        return self

    def fixed(self, value: bytes, length: int) -> Self:
        """Bytes of a length that is fixed by the format."""
        if len(value) != length:
            raise self.error(f"a field of {length} bytes was given {len(value)}")
        self._out.append(value)
        return self

    def blob(self, value: bytes) -> Self:
        """Up to 65536 bytes, after their length (4 bytes)."""
        if len(value) > BLOB_LIMIT:
            raise self.error(f"a field holds at most {BLOB_LIMIT} bytes, not {len(value)}")
        self._out += len(value).to_bytes(4, "big"), value
        return self

    def text(self, value: str) -> Self:
        """1 to 255 printable ASCII characters, after their number (1 byte)."""
        written = _text(value)
        if not written:
            raise self.error("a name is 1 to 255 printable ASCII characters")
        self._out.append(written)
        return self

    def rows(self, layout: str, rows: Sequence[tuple[Any, ...]]) -> Self:
        """Entries of one fixed ``struct`` layout (big-endian, as ``>I33s``), as ``CanonicalReader.rows`` reads them:
        one call for hundreds of them, instead of one for each field."""
        pack = struct.Struct(layout).pack
        try:
            packed = b"".join([pack(*row) for row in rows])
        except struct.error as error:
            raise self.error(f"an entry does not fit {layout}: {error}") from None
        if list(struct.iter_unpack(layout, packed)) != list(rows):  # bytes of another length were filled up, or cut off
            raise self.error(f"an entry has bytes of another length than {layout}")
        self._out.append(packed)
        return self

    def done(self) -> bytes:
        """The message."""
        return b"".join(self._out)

    def checked(self) -> bytes:
        """The message followed by its SHA-256, which ``CanonicalReader.checked`` verifies: for files."""
        whole = hashlib.sha256()
        for part in self._out:
            whole.update(part)
        self._out.append(whole.digest())
        return self.done()


@lru_cache(maxsize=1 << 12)
def _text(value: str) -> bytes:
    """A name's bytes after their number, or none where it is no name. Cached: a cohort's names occur in many
    messages."""
    if not (1 <= len(value) <= TEXT_LIMIT and value.isascii() and value.isprintable()):
        return b""
    return bytes([len(value)]) + value.encode("ascii")


class CanonicalReader:
    """Reads the fields of a message in sequence; raises ``error``. ``what`` names the message in errors."""

    error: ClassVar[type[ValueError]] = NotCanonical

    def __init__(self, data: bytes | memoryview, kind: int, what: str) -> None:
        self._data = memoryview(data)
        self._at = 0
        self.what = what
        if self.number(1) != kind:
            raise self.error(f"this is no {what}")

    @classmethod
    def checked(cls, data: bytes, kind: int, what: str) -> Self:
        """A reader of the bytes of ``CanonicalWriter.checked``. ``error`` where any bit has changed."""
        body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise cls.error(f"{what}: it is damaged, its bytes are not those that were written")
        return cls(body, kind, what)

    def number(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def float(self) -> float:
        value: float = struct.unpack(">d", self._take(8))[0]
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            raise self.error(f"{self.what}: a number is not finite, or is minus zero")
        return value

    def fixed(self, length: int) -> bytes:
        return bytes(self._take(length))

    def blob(self) -> bytes:
        length = self.number(4)
        if length > BLOB_LIMIT:
            raise self.error(f"{self.what}: a field claims {length} bytes; at most {BLOB_LIMIT} are taken")
        return self.fixed(length)

    def text(self) -> str:
        raw = self.fixed(self.number(1))
        if not raw or not all(32 <= byte < 127 for byte in raw):
            raise self.error(f"{self.what}: a name is not 1 to 255 printable ASCII characters")
        return raw.decode("ascii")

    def rows(self, layout: str, count: int) -> Iterator[tuple[Any, ...]]:
        """``count`` entries of one fixed ``struct`` layout (big-endian, as ``>I33s``), each a tuple."""
        return struct.iter_unpack(layout, self._take(count * struct.calcsize(layout)))

    def count(self, width: int, item_bytes: int, least: int = 0) -> int:
        """The number of items that follow, each of at least ``item_bytes``: checked against the remaining bytes before
        any item is built."""
        count = self.number(width)
        if count < least or count * item_bytes > len(self._data) - self._at:
            raise self.error(f"{self.what}: it cannot hold {count} entries")
        return count

    def refuse(self, reason: str) -> NoReturn:
        """Raise ``error`` with this message's name."""
        raise self.error(f"{self.what}: {reason}")

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._at

    @property
    def at_end(self) -> bool:
        """Whether no byte remains."""
        return self._at == len(self._data)

    def end(self) -> None:
        """Raise ``error`` where bytes remain."""
        if self._at != len(self._data):
            raise self.error(f"{self.what}: {len(self._data) - self._at} bytes too many")

    def _take(self, length: int) -> memoryview:
        if self._at + length > len(self._data):
            raise self.error(f"{self.what}: it ends too early")
        self._at += length
        return self._data[self._at - length : self._at]


# ------------------------------------------------------------ canonical
# The canonical text of a plan and of its parts, of which digests are made.
#
# A section or field that is not named, or is named with its default, is absent. So a field that a later version adds
# changes the text, and the digest, of no plan that does not use it; and a default, once released, never changes.


def named(part: BaseModel) -> dict[str, Any]:
    """The fields that are not at their defaults, as JSON."""
    return part.model_dump(mode="json", exclude_defaults=True)


def canonical(content: object) -> bytes:
    """JSON with sorted keys and without spaces. ValueError for what is no JSON, as NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


AS_NAMED = WrapSerializer(lambda part, _: named(part))
"""Of a field that is a part of the plan: it is sent as ``named``, since its reader refuses fields that it does not know
and may be older than its sender."""
