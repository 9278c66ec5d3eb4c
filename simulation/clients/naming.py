"""Clients' ids: converts a client's number to its id and back, without a table of a million strings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

ID_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
"""The pattern of a device's id (``client_sdk.protocol.devices.DeviceId``)."""
_ID = re.compile(ID_PATTERN)
RULE = "at most 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"


class Names(Protocol):
    """Ids of clients 0, 1, ..., and their names in the data."""

    def __len__(self) -> int:
        """How many clients there are."""

    def id(self, number: int) -> str:
        """The id of a client; ``number`` is in range."""

    def number(self, id: str) -> int | None:
        """The inverse of ``id``; None for an unknown id."""

    def name(self, number: int) -> str:
        """The client's name in the data; its id where there is none."""


class Numbered:
    """Made ids: ``client-0000042``, as wide as the count. ``names``: those in the data, [clients], if there are any."""

    def __init__(self, count: int, names: npt.NDArray[Any] | None = None) -> None:
        self._count, self._names, self._width = count, names, len(str(count))

    def __len__(self) -> int:
        return self._count

    def id(self, number: int) -> str:
        return f"client-{number:0{self._width}d}"

    def number(self, id: str) -> int | None:
        digits = id.removeprefix("client-")
        if not (digits.isascii() and digits.isdigit() and len(digits) == self._width):
            return None
        number = int(digits)
        return number if number < self._count and self.id(number) == id else None

    def name(self, number: int) -> str:
        return self.id(number) if self._names is None else str(self._names[number])


class Named:
    """The names in the data are the ids. ``names``: ascending and without doubles, as ``np.unique`` gives them."""

    def __init__(self, names: npt.NDArray[Any]) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def id(self, number: int) -> str:
        return str(self._names[number])

    def number(self, id: str) -> int | None:
        if self._names.dtype.kind in "iu":
            if not (id.isascii() and id.isdigit() and len(id) <= 20 and int(id) <= np.iinfo(self._names.dtype).max):
                return None
            wanted = np.array(int(id), self._names.dtype)
        else:
            wanted = np.array(id)
            if wanted.dtype.itemsize > self._names.dtype.itemsize:  # a longer id than any; numpy would widen them all
                return None
        place = int(np.searchsorted(self._names, wanted))
        return place if place < len(self._names) and self.id(place) == id else None

    def name(self, number: int) -> str:
        return self.id(number)


class Listed:
    """Ids in any order, in a table. Raises ``ValueError`` that names the first id that is not valid."""

    def __init__(self, ids: Iterable[Any]) -> None:
        self._ids = list(ids)
        for given in self._ids:
            if not isinstance(given, str):
                raise ValueError(f"the client id {given!r} is no text; ids are {RULE}")
            if not is_id(given):
                raise ValueError(f"the client id {given!r} will not do; ids are {RULE}")
        self._numbers = {given: number for number, given in enumerate(self._ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, number: int) -> str:
        return str(self._ids[number])

    def number(self, id: str) -> int | None:
        return self._numbers.get(id)

    def name(self, number: int) -> str:
        return self.id(number)


def is_id(text: str) -> bool:
    """Whether a coordinator accepts ``text`` as an id."""
    return _ID.fullmatch(text) is not None


def names_of(users: npt.NDArray[Any]) -> Names:
    """The names of ``users`` [clients] as ids where all of them can be ids, else made ids."""
    texts = [str(user) for user in users]
    if len(set(texts)) < len(texts) or not all(map(is_id, texts)):
        return Numbered(len(users), users)
    return Named(users) if bool((users[:-1] < users[1:]).all()) else Listed(texts)
