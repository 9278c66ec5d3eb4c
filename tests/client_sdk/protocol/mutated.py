"""JSON documents that differ a little from a given one, for property tests of whatever reads documents."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["", "0" * 64, "a:b", "\x00", "é" * 40, "1", 0, -1, 1, 2**31, 2**53, 2**63, 1e308, 5e-324]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys and positions that lead to every node of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in _places(one, (*at, key)))]


@st.composite
def mutated(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """The document with up to ``most`` nodes replaced, removed, or given an unknown neighbour."""
    whole = {"": copy.deepcopy(document)}
    for _ in range(draw(st.integers(1, most))):
        *way, last = draw(st.sampled_from([("", *place) for place in _places(whole[""])]))
        holder: Any = whole
        for key in way:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "remove" if way:
                del holder[last]
            case "add" if isinstance(holder, dict) and way:
                holder[draw(st.text(max_size=12))] = draw(VALUES)
            case _:
                holder[last] = draw(VALUES)
    return whole[""]
