"""How names are written: a pattern for machines, and words for people who have mistyped one.

Knows texts. It has never heard of the messages that they stand in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIGEST_PATTERN = r"^[0-9a-f]{64}$"
LEARNER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$"
CODEC_PATTERN = r"^[a-z0-9-]+@[0-9]+$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
PLAN_PATTERN = r"^[a-z0-9][a-z0-9-]{0,47}$"
METRIC_PATTERN = r"^[A-Za-z][A-Za-z0-9_./-]{0,63}$"

_WORDS = {
    DIGEST_PATTERN: "a SHA-256 in lower-case hexadecimal, 64 digits",
    LEARNER_PATTERN: "the package and name of a learner, such as quorate:mnist-mlp",
    CODEC_PATTERN: "the name and version of a codec, such as float16@1",
    NAME_PATTERN: "up to 64 lower-case letters, digits, dots, dashes and underscores, a letter or digit first",
    PLAN_PATTERN: "up to 48 lower-case letters, digits and dashes, a letter or digit first",
    METRIC_PATTERN: "up to 64 letters, digits and . _ / -, a letter first",
}


def message_of(mistake: Mapping[str, Any]) -> str:
    """Pydantic's words for one mistake; of a text that does not match a pattern of ours, what it should be."""
    if mistake["type"] == "string_pattern_mismatch":
        words = _WORDS.get(mistake["ctx"]["pattern"])
        if words is not None:
            return f"should be {words}"
    return str(mistake["msg"]).removeprefix("Value error, ")
