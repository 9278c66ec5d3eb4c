"""Every message of the protocol, a little changed: refused with a reason, or read, and then written the same."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from client_sdk.protocol.names import message_of
from tests.client_sdk.protocol.mutated import mutated
from tests.equivalence.pinned import MESSAGES
from tests.rotating import in_parts


@pytest.mark.parametrize("name", in_parts(MESSAGES, of=2))
@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_a_changed_message_is_refused_or_read(name: str, data: st.DataObject) -> None:
    kind, document, _ = MESSAGES[name]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    sent = json.dumps(data.draw(mutated(document)))
    try:
        message = adapter.validate_json(sent)
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            assert message_of(dict(mistake))
        return
    written = adapter.dump_json(message)
    assert adapter.validate_json(written) == message, "what is read is written so that it is read the same"
    assert adapter.dump_json(adapter.validate_json(written)) == written
    assert all(math.isfinite(number) for number in _numbers(json.loads(written)))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_break_a_parser(body: bytes) -> None:
    for kind, _, _ in MESSAGES.values():
        try:
            TypeAdapter(kind).validate_json(body)
        except ValidationError:
            pass


def _numbers(value: Any) -> list[float]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, int | float) else []
    return [*own, *(number for one in inner for number in _numbers(one))]
