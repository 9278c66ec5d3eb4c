"""The lines of a training job: messages are read as they were written, and whatever a learner prints is no message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.datacenter.progress import MARK, read_line, write_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_a_message_is_one_line_that_is_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    message = {"event": "failed", "reason": 'the loss is\nnot finite: "é"', "step": 3, "loss": None}
    write_line(message)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert read_line(line) == message


@given(st.text() | st.text().map(MARK.__add__) | JSON.map(lambda value: f"{MARK}{value!r}"))
def test_what_a_learner_prints_is_a_message_only_with_mark_and_event(line: str) -> None:
    found = read_line(line)
    assert found is None or (line.startswith(MARK) and isinstance(found["event"], str))
