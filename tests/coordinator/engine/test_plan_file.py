"""A plan's file: changes on top of it, and errors that name the place in which the user can correct them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError

TEXT = """\
name = "mnist"            # line 1

[task]
learner = "quorate:mnist-mlp"
averaged = [
  "layers.*",
]

[cohort]
select = 30
goal = 20

[finish]
rounds = 5
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("before", "after", "place", "sentence"),
    [
        ("select = 30", "selct = 30", "line 10", "cohort.selct: there is no such field; did you mean select?"),
        ("[cohort]", "[cohrt]", "line 9", "cohrt: there is no such field; did you mean cohort?"),
        ("rounds = 5", "zzz = 5", "line 14", "finish.zzz: there is no such field"),
        ("goal = 20", "goal = 0", "line 11", "cohort.goal: "),
        ("goal = 20", "goal = 40", "line 9", "cohort: goal (40) is above select (30)"),
        ('learner = "quorate:mnist-mlp"', "", "line 3", "task.learner: is required"),
        ('"layers.*",\n]', '"layers.*",\n  3,\n]', "line 8", "task.averaged.1: "),
        ('name = "mnist"', 'name = "Not Ours"', "line 1", "name: "),
        ("[finish]", "[datacenter]\npatience = 2\nworkers = 1\n[finish]", "line 15", "datacenter.workers: there is no"),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, before: str, after: str, place: str, sentence: str) -> None:
    path = written(tmp_path, TEXT.replace(before, after))
    with pytest.raises(PlanError) as error:
        Plan.from_toml(path)
    assert f"{path}, {place}: {sentence}" in str(error.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (TEXT.encode("utf-8-sig"), "begins with a byte-order mark: save it as UTF-8 without one"),
        (TEXT.encode("utf-16"), "is in UTF-16: save it as UTF-8"),
        (TEXT.encode("utf-16-be"), "is in UTF-16: save it as UTF-8"),
        (TEXT.encode("utf-16-le"), "is in UTF-16: save it as UTF-8"),
        (b"# caf\xe9\n" + TEXT.encode(), "is not in UTF-8, at byte 6: save it as UTF-8"),
    ],
)
def test_a_file_in_another_coding_says_how_to_save_it(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError) as error:
        Plan.from_toml(path)
    assert str(error.value) == f"{path} {sentence}"


def test_every_mistake_has_a_place_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.replace("goal = 20", "gaol = 20").replace("rounds = 5", "rounds = 0"))
    with pytest.raises(PlanError) as error:
        Plan.from_toml(path)
    assert f"{path}, line 11: cohort.gaol: there is no such field; did you mean goal?" in str(error.value)
    assert f"{path}, line 14: finish.rounds" in str(error.value)


def test_what_is_nowhere_in_the_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.replace('name = "mnist"', ""))
    with pytest.raises(PlanError, match=f"{path}: name: is required"):
        Plan.from_toml(path)


def test_changes_are_made_on_top(tmp_path: Path) -> None:
    plan = Plan.from_toml(
        written(tmp_path),
        ["finish.rounds=20", "cohort.goal = 25", "name=other", 'task.averaged=["a", "b"]', "retention.rounds=3"],
    )
    assert (plan.finish.rounds, plan.cohort.goal, plan.cohort.select, plan.name) == (20, 25, 30, "other")
    assert plan.task.averaged == ("a", "b")
    assert plan.retention.rounds == 3, "a section that the file does not have is made"


def test_a_change_of_a_text_needs_no_quotes(tmp_path: Path) -> None:
    """It was ``Input should be a valid string``: 2.0 is a number in TOML."""
    plan = Plan.from_toml(
        written(tmp_path), ["task.learner_version=2.0", "name=3", "finish.metric=true", "finish.target=1.0"]
    )
    assert (plan.task.learner_version, plan.name, plan.finish.metric) == ("2.0", "3", "true")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("finish.rounds=0", "--set finish.rounds=0: finish.rounds: "),
        ("finish.round=2", "--set finish.round=2: finish.round: there is no such field; did you mean rounds?"),
        ("epochs=2", "--set epochs=2: epochs: there is no such field; did you mean task.epochs?"),
        (
            "task.rounds=2",
            "--set task.rounds=2: task.rounds: there is no such field; did you mean finish.rounds or ",
        ),
        ("cohort.goal=2.5", "--set cohort.goal=2.5: cohort.goal: "),
        ("finish.rounds", "--set finish.rounds: a change is written FIELD=VALUE, as in cohort.select=20"),
        (".=1", "--set .=1: a change is written FIELD=VALUE"),
        ("name.first=1", "--set name.first=1: name is not a section of the plan"),
        ("cohort.goal=many", "--set cohort.goal=many: cohort.goal: "),
    ],
)
def test_a_wrong_change_is_named(tmp_path: Path, change: str, sentence: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan.from_toml(written(tmp_path), [change])
    assert str(error.value).startswith(sentence)


def test_an_error_survives_the_way_between_processes() -> None:
    """Pools of processes pickle exceptions."""
    with pytest.raises(PlanError) as error:
        Plan.parse({"name": "a", "tsk": {}})
    copy = pickle.loads(pickle.dumps(error.value))
    assert str(copy) == str(error.value)
    assert "tsk: there is no such field; did you mean task?" in str(copy)
