"""Bodies as text: the one way in which every store turns a JSON body into what it keeps, and back.

Keeping text gives the memory store and the SQL store the same answer for every body: tuples come back as lists, keys as
strings, nothing is shared with the caller, and NaN and infinity, which are not JSON, are refused by both.
"""

from __future__ import annotations

import json
import math
from typing import cast

from coordinator.store.port import Json, StoreError

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def to_text(body: Json) -> str:
    """The body as compact JSON. StoreError when it is none."""
    try:
        return _encode(body)
    except (TypeError, ValueError) as error:
        raise StoreError(f"A body that is not JSON can't be stored: {error}.") from None


def from_text(text: str) -> Json:
    """What ``to_text`` was given."""
    return cast("Json", json.loads(text))


def finite(value: float, name: str) -> float:
    """The value, refused when it is NaN or infinite: databases disagree about those."""
    if not math.isfinite(value):
        raise StoreError(f"The value of {name!r} is {value}, and only finite numbers can be stored.")
    return value
