"""Many entries of one layout are written as they are read, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.protocol.wire import CanonicalReader, CanonicalWriter, NotCanonical

LAYOUT, KIND = ">IB3s", 9


def written(*rows: tuple[Any, ...]) -> bytes:
    return CanonicalWriter(KIND).rows(LAYOUT, rows).done()


@pytest.mark.parametrize(
    "rows", [(), ((0, 0, b"abc"),), ((2**32 - 1, 255, bytes(3)), (1, 2, b"xyz"))], ids=["none", "one", "two"]
)
def test_rows_are_read_as_they_were_written_and_are_the_fields_one_by_one(rows: tuple[Any, ...]) -> None:
    data, one_by_one = written(*rows), CanonicalWriter(KIND)
    for place, kind, piece in rows:
        one_by_one.number(place, 4).number(kind, 1).fixed(piece, 3)
    assert data == one_by_one.done()
    read = CanonicalReader(data, KIND, "test")
    assert tuple(read.rows(LAYOUT, len(rows))) == rows
    read.end()


@pytest.mark.parametrize(
    "wrong",
    [
        (2**32, 1, b"abc"),
        (-1, 1, b"abc"),
        (1, 256, b"abc"),
        (1, 1, b"ab"),
        (1, 1, b"abcd"),
        (1, 1, b""),
        (1, 1, "abc"),
        (1.0, 1, b"abc"),
        (1, 1),
        (1, 1, b"abc", 1),
    ],
    ids=str,
)
def test_an_entry_that_does_not_fit_is_refused_wherever_it_stands(wrong: tuple[Any, ...]) -> None:
    for rows in ([wrong], [(1, 1, b"abc"), wrong], [wrong, (1, 1, b"abc")]):
        with pytest.raises(NotCanonical, match="an entry"):
            written(*rows)
