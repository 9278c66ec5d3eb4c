"""The canonical text of a plan and of its parts, of which digests are made.

A section or field that is not named, or is named with its default, is absent. So a field that a later version adds
changes the text, and the digest, of no plan that does not use it; and a default, once released, never changes.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, WrapSerializer


def named(part: BaseModel) -> dict[str, Any]:
    """The fields that are not at their defaults, as JSON."""
    return part.model_dump(mode="json", exclude_defaults=True)


def canonical(content: object) -> bytes:
    """JSON with sorted keys and without spaces. ValueError for what is no JSON, as NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


AS_NAMED = WrapSerializer(lambda part, _: named(part))
"""Of a field that is a part of the plan: it is sent as ``named``, since its reader refuses fields that it does not know
and may be older than its sender."""
