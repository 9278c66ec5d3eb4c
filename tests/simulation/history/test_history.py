"""A history tells what the coordinator tells: of a store in memory, of a saved folder, of a folder that is served."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from client_sdk.tensors import from_bytes
from coordinator.blobs import FileBlobs
from coordinator.cli import app
from coordinator.datafolder import locked
from coordinator.store import MemoryStore, open_store
from simulation.history import Curve, History, HistoryError
from simulation.history.tables import newest_scores
from tests.coordinator.service.conftest import Server
from tests.coordinator.test_blocks import flip
from tests.coordinator.world import World
from tests.simulation.history.runs import played, score

pytestmark = pytest.mark.whole


@pytest.fixture
def world() -> World:
    return played()


@pytest.fixture(params=["memory", "folder"])
def history(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Iterator[History]:
    """The same run read from the simulation's memory, and from a folder that it was saved to."""
    memory = History(world.store, world.blobs)
    if request.param == "memory":
        yield memory
        return
    with History.open(memory.save(tmp_path / "data")) as opened:
        yield opened


# ------------------------------------------------------------ its values


def test_rounds_equal_the_operators_views(world: World, history: History) -> None:
    found = world.coordinator.operators.rounds("marks")
    assert len(history.rounds) == len(found) == 4
    for row, view in zip(history.rounds, found, strict=True):
        assert (row.round, row.kind, row.status, row.reason) == (view.round, view.kind, view.status, view.reason)
        assert (row.opened_at, row.closed_at) == (view.opened_at, view.closed_at)
        assert (row.bytes, row.weight, row.version, row.digest) == (
            view.bytes_in, view.weight, view.version, view.digest,
        )  # fmt: skip
        assert (row.selected, row.reported, row.withdrawn) == (
            view.funnel.selected, view.funnel.reported, view.funnel.withdrawn,
        )  # fmt: skip
        assert (row.started, row.late, row.dropped) == (view.funnel.training, view.funnel.late, view.funnel.dropped)
        assert row.metrics == view.metrics
        assert row.downloaded == view.funnel.training * history.checkpoints[0].bytes


def test_every_selected_device_has_one_fate(history: History) -> None:
    committed, abandoned, again, _ = history.rounds
    assert (committed.counted, committed.late, committed.dropped, committed.withdrawn) == (3, 1, 0, 0)
    assert (abandoned.counted, abandoned.reported, abandoned.dropped) == (0, 1, 3)
    assert (again.counted, again.withdrawn, again.dropped) == (3, 1, 0)
    assert abandoned.seconds == 61
    assert "the quorum is 2" in abandoned.reason


def test_participation_is_who_is_in_the_model(world: World, history: History) -> None:
    """The model's lane of a device is the sum of 2^round / 3 over the rounds in which it counted."""
    lanes = history.checkpoint()["marks"]
    assert sum(history.participation.values()) == 6
    for number, row in enumerate(world.rows):
        rounds = [
            which for which in (1, 3) if row.device in {c.device for c in world.store.contributions("marks", which)}
        ]
        assert history.participation.get(row.device, 0) == len(rounds)
        assert lanes[number] == pytest.approx(sum(2.0**which for which in rounds) / 3)


def test_the_run(world: World, history: History) -> None:
    assert history.run == "marks"
    assert len(history) == 2
    assert (history.status, history.reason) == ("running", "")
    assert history.plan.finish.rounds == 5
    assert not history.interrupted
    assert str(history).startswith(
        "run marks: 2 of 5 rounds committed, 1 abandoned, running · accuracy 0.75 · loss 0.75"
    )
    assert "\n" not in repr(history)


def test_a_history_is_not_pickled_and_says_what_to_do_instead(world: World) -> None:
    with pytest.raises(TypeError, match=r"save\(folder\) keeps it, and History.open\(folder\) reads it there"):
        pickle.dumps(History(world.store, world.blobs))


def test_a_history_is_a_view_and_moves_with_its_store(world: World) -> None:
    history = History(world.store, world.blobs)
    before = sum(history.participation.values())
    world.report(*world.cohort()[:3], round=4)
    assert len(history) == 3
    assert sum(history.participation.values()) == before + 3
    assert history.rounds[3].status == "committed"
    world.coordinator.operators.stop("marks")
    assert (history.status, history.reason) == ("stopped", "stopped by the operator")


def test_a_run_without_any_round_is_a_history_too() -> None:
    world = World(2)
    world.create()
    history = History(world.store, world.blobs)
    assert history
    assert (len(history), set(history.participation.values()), history.metrics) == (0, {0}, ())
    assert [row.status for row in history.rounds] == ["open"]
    assert len(history.to_pandas()) == 1
    assert list(history.checkpoints) == [0]


def test_who_made_it_may_say_that_it_was_interrupted_and_how_long_rounds_took(world: World) -> None:
    history = History(world.store, world.blobs, interrupted=True, wall=[0.5, 0.25, 0.125])
    assert "interrupted" in str(history)
    assert history.wall == [0.5, 0.25, 0.125]
    assert [row.wall_s for row in history.rounds] == [0.5, 0.25, 0.125, None]
    resumed = History(world.store, world.blobs, wall={3: 0.125})
    assert [row.wall_s for row in resumed.rounds] == [None, None, 0.125, None]


# ------------------------------------------------------------ metrics


def test_a_metric_is_a_curve_over_versions(history: History) -> None:
    versions, values = history.metric("accuracy")
    assert (versions.tolist(), values.tolist()) == ([1, 2], [0.5, 0.75])
    assert history.metric("accuracy", source="clients.p10").values.tolist() == [0.3, 0.55]
    assert ("training", "loss") in history.curves
    assert history.metric("loss", source="training").values.tolist() == [0.5, 0.25], "version 2 is of round 3"
    assert len(history.metrics) == 10


def test_the_error_for_a_missing_metric_lists_those_that_exist(history: History) -> None:
    with pytest.raises(HistoryError, match=r"no metric 'recall' of 'evaluator'; there is .*accuracy of clients\.p10"):
        history.metric("recall")


def test_final_and_best() -> None:
    world = played()
    history = History(world.store, world.blobs)
    assert history.final("accuracy") == 0.75
    assert history.best("loss") == (2, 0.75)
    score(world, accuracy=0.25)
    assert history.best("accuracy") == (1, 0.5)
    assert history.best("accuracy", better="lower") == (2, 0.25)
    watched = played(finish={"rounds": 5, "metric": "accuracy", "better": "lower", "target": 0.0})
    assert History(watched.store, watched.blobs).best("accuracy") == (1, 0.5), "the plan says that lower is better"


# ------------------------------------------------------------ checkpoints


def test_checkpoints(world: World, history: History, tmp_path: Path) -> None:
    line = history.checkpoints
    assert [(version, view.origin) for version, view in line.items()] == [(0, "test"), (1, "round 1"), (2, "round 3")]
    newest = world.checkpoint()
    assert history.checkpoint()["marks"].tolist() == newest["marks"].tolist()
    assert history.checkpoint(0)["marks"].tolist() == [0.0] * 8
    assert history.checkpoint(-3)["marks"].tolist() == [0.0] * 8
    path = history.save_checkpoint(tmp_path / "model.safetensors")
    assert len(path.read_bytes()) == line[2].bytes
    assert np.array_equal(from_bytes(path.read_bytes())["marks"], newest["marks"])
    assert sorted(item.name for item in tmp_path.glob("*.*")) == ["model.safetensors"]


def test_a_checkpoint_that_cannot_be_read_is_an_error(world: World, tmp_path: Path) -> None:
    history = History(world.store, world.blobs)
    for version in (3, -4):
        with pytest.raises(HistoryError, match=f"no version {version}: the newest is 2"):
            history.checkpoint(version)
    with pytest.raises(HistoryError, match="cannot be written"):
        history.save_checkpoint(tmp_path / "nowhere" / "model.safetensors")
    world.blobs.delete(history.checkpoints[1].digest)
    with pytest.raises(HistoryError, match="bytes of version 1"):
        history.checkpoint(1)


# ------------------------------------------------------------ tables


def test_a_damaged_checkpoint_is_given_to_nobody_and_named(world: World, tmp_path: Path) -> None:
    History(world.store, world.blobs).save(tmp_path)
    with History.open(tmp_path) as history:
        digest = history.checkpoints[1].digest
        flip(tmp_path / "blobs" / digest[:2] / digest, 60)
        for ask in (lambda: history.checkpoint(1), lambda: history.save(tmp_path / "copy")):
            with pytest.raises(HistoryError, match=digest):
                ask()
        assert history.checkpoint(0)


def test_tables(history: History) -> None:
    rounds = history.to_pandas()
    assert rounds["counted"].tolist() == [3, 0, 3, 0]
    assert rounds["opened_s"].tolist() == [0.0, 0.0, 61.0, 61.0]
    assert rounds["version"].fillna(-1).tolist() == [1, -1, 2, -1]
    assert rounds["training.loss"].tolist()[:3] == [0.5, 0.5, 0.25]
    metrics = history.to_pandas("metrics").set_index(["version", "source", "name"])["value"]
    assert metrics[2, "clients", "accuracy"] == 0.7
    participation = history.to_pandas("participation").set_index("device")["counted"]
    assert participation.to_dict() == dict(history.participation)
    events = history.to_pandas("events")
    assert events["seq"].tolist() == list(range(1, 23))
    assert json.loads(events["body"][1])["round"] == 1
    with pytest.raises(HistoryError, match="no table 'nothing'"):
        history.to_pandas("nothing")  # type: ignore[arg-type]


def test_without_pandas_it_says_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HistoryError, match=r"quorate\[simulation\]"):
        History(world.store, world.blobs).to_pandas()


def test_the_summary_is_a_table_for_people(history: History) -> None:
    lines = history.summary(last=3).splitlines()
    assert lines[2].split()[:3] == ["round", "status", "selected"]
    assert [line.split()[:2] for line in lines[3:6]] == [["2", "abandoned"], ["3", "committed"], ["4", "open"]]
    assert lines[8] == "  1 of 4 devices reported by the deadline; the quorum is 2: round 2"


def test_why_devices_withdrew_is_shown(world: World, history: History) -> None:
    (gone,) = history.withdrawals
    assert (gone.round, gone.reason) == (3, "the battery is low")
    assert history.summary().splitlines()[-2:] == [
        "Devices that withdrew:",
        f"  the battery is low: {gone.device} in round 3",
    ]
    assert f"the battery is low: {gone.device} in round 3" in history._repr_html_()
    assert history.to_pandas("withdrawals").to_dict("records") == [
        {"round": 3, "device": gone.device, "reason": "the battery is low"}
    ]
    live = History(world.store, world.blobs)
    assert live.withdrawals == history.withdrawals
    world.coordinator.devices.withdraw(world.rows[world.cohort()[0]].device, "marks", 4, 0, "the owner came back")
    assert [one.reason for one in live.withdrawals] == ["the battery is low", "the owner came back"]


# ------------------------------------------------------------ folders


def test_the_error_for_a_folder_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    def refused(words: str, folder: Path, run: str | None = None) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(HistoryError, match=words) as refusal:
            History.open(folder, run)
        assert "\n" not in str(refusal.value)
        assert sorted(tmp_path.rglob("*")) == before, "opening makes nothing"

    refused("There is no folder", tmp_path / "nowhere")
    refused("it is not a data folder", tmp_path)
    (tmp_path / "quorate.sqlite3").write_text("not a database, but long enough to be looked at " * 100)
    refused("cannot be read", tmp_path)


def test_of_several_runs_one_is_chosen(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    open_store(f"sqlite:///{_made(folder) / 'quorate.sqlite3'}").close()
    with pytest.raises(HistoryError, match="There is no run in"):
        History.open(folder)
    world.create()
    for run in ("marks", "marks-2"):
        History(world.store, world.blobs, run).save(folder)
    with pytest.raises(HistoryError, match=r"several runs in .*run='marks' or 'marks-2'"):
        History.open(folder)
    with pytest.raises(HistoryError, match=r"no run 'other' in .*; there is marks, marks-2"):
        History.open(folder, "other")
    with History.open(folder, "marks-2") as opened:
        assert (opened.run, len(opened)) == ("marks-2", 0)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_saved_folder_is_whole_and_saving_again_adds_what_is_new(world: World, tmp_path: Path) -> None:
    history = History(world.store, world.blobs)
    folder = history.save(tmp_path / "a" / "data")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert history.save(folder) == folder
    world.report(*world.cohort()[:3], round=4)
    history.save(folder)
    with History.open(folder) as saved:
        assert saved.rounds == history.rounds
        assert saved.checkpoint()["marks"].tolist() == history.checkpoint()["marks"].tolist()
    done = CliRunner().invoke(app, ["verify", str(folder)])
    assert done.exit_code == 0, done.output
    assert "the rows fit each other" in done.output


def test_a_coordinator_goes_on_from_a_saved_folder(world: World, tmp_path: Path) -> None:
    folder = History(world.store, world.blobs).save(tmp_path)
    world.store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    world.blobs = FileBlobs(folder / "blobs")
    world.boot()
    world.settle()
    assert len(world.cohort()) == 4, "round 4 is still at work"
    world.report(*world.cohort()[:3], round=4)
    world.play_round(5)
    with History.open(folder) as opened:
        assert [row.status for row in opened.rounds][3:] == ["committed", "committed", "open"]
    world.store.close()
    done = CliRunner().invoke(app, ["verify", str(folder)])
    assert done.exit_code == 0, done.output


def test_a_folder_that_somebody_writes_to_is_left_alone(world: World, tmp_path: Path) -> None:
    history = History(world.store, world.blobs)
    with locked(tmp_path), pytest.raises(HistoryError, match="Another coordinator or simulation"):
        history.save(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["serve.lock"]
    other = World(8)
    other.create(cohort={"select": 5, "goal": 4})
    history.save(tmp_path)
    with pytest.raises(HistoryError, match="another run named marks"):
        History(other.store, other.blobs).save(tmp_path)


@pytest.mark.slow
def test_a_served_folder_shows_the_same_rounds(tmp_path: Path) -> None:
    """``quorate serve`` on a saved folder, ``quorate rounds`` of it, and a history of the folder meanwhile."""
    world = played(finish={"rounds": 2})
    history = History(world.store, world.blobs)
    assert history.reason == "reached 2 rounds"
    server = Server.start(history.save(tmp_path / "data"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "client_sdk.cli", "rounds", "marks", "--url", server.url, "--json"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        shown: list[dict[str, Any]] = json.loads(done.stdout)
        assert [(row["round"], row["status"], row["digest"]) for row in shown] == [
            (row.round, row.status, row.digest) for row in history.rounds
        ]
        assert [row["funnel"]["reported"] for row in shown] == [row.reported for row in history.rounds] == [3, 1, 3]
        with History.open(tmp_path / "data") as opened:
            assert opened.rounds == history.rounds
    finally:
        server.stop()


# ------------------------------------------------------------ what it costs


def test_importing_it_needs_no_heavy_package() -> None:
    program = (
        "import sys; import simulation.history; "
        "print([name for name in ('matplotlib', 'pandas', 'sqlalchemy', 'torch') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize("ask", [lambda h: h.rounds, lambda h: h.metrics, lambda h: str(h), lambda h: h._repr_html_()])
def test_reading_writes_nothing(world: World, ask: Callable[[History], object]) -> None:
    class ReadOnly(MemoryStore):
        def transaction(self, run: str | None = None) -> Any:
            raise AssertionError("a history writes")

    store = world.store
    store.__class__ = ReadOnly
    assert ask(History(store, world.blobs))


def test_a_score_of_an_older_version_says_so() -> None:
    def curve(*versions: int) -> Curve:
        return Curve(np.array(versions), np.array([version / 10 for version in versions]))

    found = newest_scores(
        {("evaluator", "loss"): curve(1, 2), ("devices", "loss"): curve(1), ("training", "loss"): curve(3)}
    )
    assert found == ["loss 0.2", "loss (devices) 0.1 at version 1"]
