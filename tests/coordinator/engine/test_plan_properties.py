"""Plans and plan files, a little changed: refused with the place of the mistake, or read, and then written the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from tests.client_sdk.protocol.mutated import mutated

ROOT = Path(__file__).parents[3]
FILES = sorted(path for path in (ROOT / "examples").rglob("*.toml") if path.name != "pyproject.toml")
SECURE = Plan.parse(
    {"name": "s", "task": {"learner": "a:b"}, "secure": {"max_norm": 4.0, "max_abs": 0.5}, "retention": {"rounds": 0}}
)
DOCUMENTS: list[Any] = [
    *(tomllib.loads(path.read_text()) for path in FILES),
    {**Plan.from_toml(FILES[0]).model_dump(mode="json")},
    SECURE.model_dump(mode="json"),
]


@given(st.sampled_from(DOCUMENTS).flatmap(mutated))
def test_a_changed_plan_is_refused_or_read(document: Any) -> None:
    try:
        plan = Plan.parse(document)
    except PlanError as error:
        mistakes = error.mistakes
    else:
        _written_the_same(plan)
        return
    assert mistakes
    assert all(mistake.what.strip() for mistake in mistakes)


def _written_the_same(plan: Plan) -> None:
    stored = json.loads(json.dumps(plan.model_dump(mode="json"), allow_nan=False))
    again = Plan.parse(stored)
    assert again == plan
    assert again.digest == plan.digest
    assert 1 <= plan.cohort.quorum_count <= plan.cohort.goal <= plan.cohort.select <= plan.cohort.pool_count


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.data())
def test_a_changed_file_is_refused_or_read(tmp_path: Path, file: Path, data: st.DataObject) -> None:
    text = file.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text(max_size=6)) + text[at + data.draw(st.integers(0, 8)) :]
    path = tmp_path / "plan.toml"
    path.write_text(text, "utf-8", newline="")
    try:
        Plan.from_toml(path)
    except PlanError as error:
        places = [str(mistake) for mistake in error.mistakes]
    else:
        return
    assert all(place.startswith((str(path), f"cannot read the plan {path}")) for place in places)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=40) | st.builds("{}.{}={}".format, *3 * [st.sampled_from(["cohort", "goal", "task", "7", '"x"'])])
)
def test_any_change_is_made_or_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(FILES[0].read_bytes())
    try:
        Plan.from_toml(path, [change])
    except PlanError as error:
        text = str(error)
    else:
        return
    assert text.startswith((f"--set {change}", str(path)))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(bytes(range(256)))
    with pytest.raises(PlanError, match="save it as UTF-8"):
        Plan.from_toml(tmp_path / "plan.toml")
