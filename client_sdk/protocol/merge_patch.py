"""JSON merge patches (RFC 7396): what changed between two objects, and an object with a patch on it.

In such a patch ``null`` deletes a field, so no value of a patched object is ``null``: a field that is absent stands for
it. Lists are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def without_nulls(value: Mapping[str, Any]) -> Json:
    """The object without its fields that are null, also deep inside it, but not inside lists."""
    return {
        name: without_nulls(one) if isinstance(one, Mapping) else one for name, one in value.items() if one is not None
    }


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
    """The patch that makes ``after`` of ``before``; empty where they are equal. Neither has nulls."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if old != value:
                patch[name] = difference(old, value)
        elif name not in before or old != value:
            patch[name] = value
    return patch


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """``target`` with the patch on it."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[name] = value
    return result
