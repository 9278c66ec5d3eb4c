"""The errors for names that do not match their pattern."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from client_sdk.device.record import Record
from client_sdk.protocol import names
from client_sdk.protocol.operators import MetricReport
from client_sdk.terminal import sentence_of
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError


@pytest.mark.parametrize(
    ("where", "bad", "expected"),
    [
        ("name", "My run", "name: should be up to 48 lower-case letters"),
        ("task.learner", "mnist", "task.learner: should be the package and name of a learner"),
        ("task.codec", "float16", "task.codec: should be the name and version of a codec, such as float16@1"),
        ("finish.metric", "99 %", "finish.metric: should be up to 64 letters"),
        ("finish.source", "", "finish.source: should be up to 64 lower-case letters"),
    ],
)
def test_the_error_describes_a_valid_name(where: str, bad: str, expected: str) -> None:
    data: dict[str, object] = {"name": "x", "task": {"learner": "a:b"}, "cohort": {"goal": 3}, "finish": {}}
    *sections, field = where.split(".")
    place: object = data
    for section in sections:
        assert isinstance(place, dict)
        place = place[section]
    assert isinstance(place, dict)
    place[field] = bad
    with pytest.raises(PlanError) as refused:
        Plan.parse(data)
    assert str(refused.value).startswith(expected)
    assert "^" not in str(refused.value)


def test_commands_tell_it_in_the_same_words() -> None:
    with pytest.raises(ValidationError) as refused:
        MetricReport.model_validate({"version": 1, "digest": "abc", "source": "x", "score": {"examples": 1}})
    assert sentence_of(refused.value) == "digest: should be a SHA-256 in lower-case hexadecimal, 64 digits."


def test_other_mistakes_keep_the_words_they_have() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(int).validate_python("x")
    error = refused.value.errors()[0]
    assert names.message_of(error) == error["msg"]


def test_a_changed_message_is_what_pydantic_copies() -> None:
    before = Record(coordinator="https://c.example", assigned_at=3.5)
    after = before.changed(assigned_at=4.0, withdrawal="no time")
    copied = before.model_copy(update={"assigned_at": 4.0, "withdrawal": "no time"})
    assert after == copied
    assert after.model_fields_set == copied.model_fields_set
    assert after.model_dump_json(exclude_unset=True) == copied.model_dump_json(exclude_unset=True)
    assert before == Record(coordinator="https://c.example", assigned_at=3.5)
    assert after.changed().model_copy() == after
    with pytest.raises(ValidationError, match="frozen"):
        after.assigned_at = 5.0  # type: ignore[misc]
