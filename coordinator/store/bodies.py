"""How every store turns a JSON body into the text that it stores, and back.

Storing text makes the memory store and the SQL store behave alike: tuples come back as lists, keys as strings, no
object is shared with the caller, and NaN and infinity, which are not JSON, are refused.
"""

from __future__ import annotations

import json
import math

from coordinator.store.errors import StoreError
from coordinator.store.rows import Json

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def to_text(body: Json) -> str:
    """The body as compact JSON. StoreError when it cannot be written as JSON."""
    try:
        return _encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"A body that is not JSON can't be stored: {error}.") from None


def from_text(text: str) -> Json:
    """The body that ``to_text`` wrote. ValueError where the text is no JSON object, or nested too deeply to be read."""
    try:
        body = json.loads(text)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError(f"the body is no object, but a {type(body).__name__}")
    return body


def beginning_of(body: Json) -> str:
    """How the text of a body begins that has these values first, and others after them."""
    return f"{to_text(body)[:-1]},"


def finite(value: float, name: str) -> float:
    """The value. StoreError when it is NaN or infinite, which databases treat differently."""
    if not math.isfinite(value):
        raise StoreError(f"The value of {name!r} is {value}; only finite numbers can be stored.")
    return value
