"""``--node-config "partition-id=0 num-partitions=4"``: what ``Context.node_config`` has, typed as Flower types it."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from client_sdk.protocol.flower import ConfigValue

_PAIR = re.compile(r"""\s*([^\s=]+)=('[^']*'|"[^"]*"|[^\s'"]\S*)(?=\s|$)""")


def parse_node_config(texts: Iterable[str]) -> dict[str, ConfigValue]:
    """The values of ``key=value`` pairs, which stand in one text or in several. A value is written as in TOML: ``4``,
    ``0.5``, ``true``, ``"text"``. The same key again replaces its value.

    ValueError, in one sentence, for anything else.
    """
    found: dict[str, ConfigValue] = {}
    for text in texts:
        position = 0
        while text[position:].strip():
            pair = _PAIR.match(text, position)
            if pair is None:
                raise ValueError(f"{text[position:].strip()!r} is no key=value; {_EXAMPLE}")
            found |= _values(pair[1], pair[2])
            position = pair.end()
    return found


_EXAMPLE = """write for example --node-config 'partition-id=0 num-partitions=4 name="ward 7"'."""


def _values(key: str, value: str) -> dict[str, ConfigValue]:
    try:
        return _flat(tomllib.loads(f"{key} = {value}"))
    except tomllib.TOMLDecodeError:
        raise ValueError(f"{key}={value} has no value of TOML (a text needs quotes); {_EXAMPLE}") from None


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, ConfigValue]:
    """A table's values by their dotted names."""
    found: dict[str, ConfigValue] = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which cannot travel; {_EXAMPLE}")
        elif isinstance(value, bool | int | float | str):
            found[name] = value
        else:
            raise ValueError(f"{name} is a {type(value).__name__}, not a number, a text, true or false; {_EXAMPLE}")
    return found
