"""``verify`` finds nothing in an honest history, and names run and round of each change that somebody makes to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.coordinator.verify.doctorings import DOCTORINGS, RETAINED_ONLY
from tests.coordinator.verify.history import RUN, doctored, play, violations

pytestmark = pytest.mark.whole

RETENTIONS = (5, 0)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Played once each; a test has a copy."""
    made = {}
    for retention in RETENTIONS:
        made[retention] = tmp_path_factory.mktemp(f"retention-{retention}")
        play(made[retention], retention=retention)
    return made


def test_the_table_is_long() -> None:
    assert len(DOCTORINGS) >= 42


@pytest.mark.parametrize("retention", RETENTIONS)
def test_an_honest_history_is_clean(histories: dict[int, Path], retention: int) -> None:
    assert violations(histories[retention]) == []


def test_a_history_without_a_server_optimizer_is_clean(tmp_path: Path) -> None:
    play(tmp_path, retention=1, optimizer=False)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "retention"),
    [(name, rounds) for name in DOCTORINGS for rounds in RETENTIONS if rounds or name not in RETAINED_ONLY],
)
def test_a_doctoring_is_named_with_run_and_round(
    histories: dict[int, Path], name: str, retention: int, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(histories[retention], tmp_path / "data"))
    with doctored(folder) as doctor:
        number = DOCTORINGS[name](doctor)
    found = violations(folder)
    assert {wrong.run for wrong in found if wrong.invariant not in ("audit", "identity")} == {RUN}
    assert number in {wrong.round for wrong in found}, found
    assert all(wrong.what for wrong in found)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            "UPDATE rounds SET body = json_set(body, '$.funnel.withdrawn', 1) WHERE round = 4",
            "rounds, round 4: body.funnel.withdrawn is 1, and the log gives 0",
        ),
        (
            "UPDATE rounds SET body = json_set(body, '$.version', json('true')) WHERE round = 1",
            "rounds, round 1: body.version is True, and the log gives 1",
        ),
        (
            "UPDATE contributions SET version = 7 WHERE round = 4",
            ": version is 7, and the log gives 3",
        ),
        (
            "UPDATE checkpoints SET origin = 'me' WHERE version = 3",
            "checkpoints, version 3: origin is 'me', and the log gives 'round 4'",
        ),
        (
            "UPDATE runs SET snapshot = json_set(snapshot, '$.fence', 9)",
            "runs: snapshot.fence is 9, and the log gives 2",
        ),
        (
            "UPDATE runs SET snapshot = json_set(snapshot, '$.plan.schedule', json('{\"kind\": \"cosine\"}'))",
            "runs: snapshot.plan.schedule is {'kind': 'cosine'}, and the log gives None",
        ),
        (
            "UPDATE runs SET snapshot = json_remove(snapshot, '$.plan.finish.rounds')",
            "runs: snapshot.plan.finish.rounds is 100, and the log gives 20",
        ),
        (
            "UPDATE runs SET snapshot = json_remove(snapshot, '$.run')",
            "runs: snapshot.run is absent",
        ),
        (
            "UPDATE runs SET name = 'other'",
            "runs: name is 'other', and the log gives 'marks'",
        ),
        (
            "DELETE FROM metrics WHERE name = 'loss'",
            "metrics, version 3, source evaluator, name loss: the row is not stored, and the log gives it",
        ),
        (
            "UPDATE refusals SET reason = 'no' WHERE round = 2",
            "reason is 'no', and the log gives 'the round was abandoned",
        ),
    ],
)
def test_a_deviation_is_named_by_table_key_and_column_with_both_values(
    histories: dict[int, Path], statement: str, what: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(histories[5], tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.sql(statement)
    found = [wrong.what for wrong in violations(folder)]
    assert any(what in text for text in found), found


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("json_remove(snapshot, '$.plan.schedule')", id="a-section-that-came-later"),
        pytest.param("json_remove(snapshot, '$.plan.cohort.choose')", id="a-field-that-came-later"),
        pytest.param("json_set(snapshot, '$.format', 1, '$.plan', 'as it was then')", id="an-older-format"),
    ],
)
def test_a_snapshot_that_an_older_version_wrote_is_no_violation(
    histories: dict[int, Path], change: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(histories[5], tmp_path / "data"))
    with doctored(folder) as doctor:
        before = doctor.one("SELECT snapshot FROM runs")
        doctor.sql(f"UPDATE runs SET snapshot = {change}")
        assert doctor.one("SELECT snapshot FROM runs") != before
    assert violations(folder) == []


def test_a_datacenter_round_that_changes_the_server_optimizers_state_is_named(
    histories: dict[int, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(histories[5], tmp_path / "data"))
    with doctored(folder) as doctor:
        other = doctor.one("SELECT named_tensors FROM checkpoints ORDER BY version DESC LIMIT 1")
        seq = doctor.event("Delivered")
        number = doctor.body_of(seq)["round"]
        doctor.sql("UPDATE checkpoints SET named_tensors = ? WHERE round = ?", other, number)
    trained_nothing = "it trained nothing, and the server optimizer's state is another"
    assert (number, trained_nothing) in {(wrong.round, wrong.what) for wrong in violations(folder)}


@pytest.mark.parametrize("field", ["parent", "named_tensors.server-optimizer", "updates"])
def test_what_a_commit_says_of_the_bytes_that_it_read_is_held_against_the_line(
    histories: dict[int, Path], tmp_path: Path, field: str
) -> None:
    """Also where the forger makes the links anew: each field has a finding of its own."""
    folder = Path(shutil.copytree(histories[5], tmp_path / "data"))
    with doctored(folder) as doctor:
        doctor.set_in("events", "body", f"evidence.{field}", "0" * 64, "seq = ?", doctor.event("Committed", 5))
    found = {wrong.round: wrong.what for wrong in violations(folder) if wrong.invariant == "evidence"}
    assert list(found) == [5]
    assert "version 4 was made from 000000000000" in found[5]
