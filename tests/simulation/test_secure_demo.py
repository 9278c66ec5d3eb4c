"""The secure rounds of a demo: their plan, their lines, and the whole command at small scale, as a user runs it."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from client_sdk.device.policy import work_refusal
from client_sdk.protocol.operators import ExchangeView, Funnel, MetricView, RoundView, RunView, SecureView
from client_sdk.protocol.secure import SecureBounds
from coordinator.datafolder import DATABASE_FILE
from coordinator.engine.plan import Plan
from simulation.demo import screen as screens
from simulation.demo.command import Result, closing_lines
from simulation.demo.screen import Journal, read
from simulation.demo.setting import Setting
from simulation.fleet.split import Split
from simulation.fleet.trainer import FleetHabits
from tests.rotating import on_day
from tests.simulation import synthetic

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist-secure.toml"
EXCHANGES = ("advertise", "share", "mask", "agree", "unmask")


def setting(devices: int = 400, **more: object) -> Setting:
    return Setting(split=Split(data="mnist", devices=devices), habits=FleetHabits(), **more)


# ------------------------------------------------------------ setting


def test_the_example_is_the_plan_of_the_demos_secure_rounds() -> None:
    assert EXAMPLE.read_text("utf-8") == setting().secure_plan("examples/mnist-secure.toml")
    plan = Plan.from_toml(EXAMPLE)
    assert plan.secure is not None
    assert (plan.name, plan.finish.rounds, plan.cohort.select, plan.cohort.quorum_count) == (
        "mnist-secure",
        2,
        300,
        256,
    )
    assert (plan.secure.profile, plan.secure.q, plan.secure.minimum_cohort) == ("strict", 16, 64)
    assert plan.secure.most_advertisers(plan.cohort) == 268


def test_the_secure_rounds_train_as_the_plain_ones_do() -> None:
    plain, secure = (tomllib.loads(text) for text in (setting().plan(), setting().secure_plan()))
    assert "secure" not in plain
    assert plain["task"] == secure["task"]
    assert secure["aggregation"] == {**plain["aggregation"], "partial": "refuse"}


@pytest.mark.parametrize(
    ("sizes", "batch_size"), [([65] * 400, 20), ([64] * 400, 16), ([24] * 400, 10), ([20] * 360 + [8] * 40, 10)]
)
def test_repro_batches_fit_into_the_data_of_small_devices(sizes: list[int], batch_size: int) -> None:
    """Their owners refuse larger ones, and the secure rounds never began."""
    fitted = setting().for_data(sizes)
    assert fitted.batch_size == batch_size
    plan = Plan.parse(tomllib.loads(fitted.secure_plan()))
    took = [size for size in sizes if work_refusal(plan.task, SecureBounds(), size) is None]
    assert len(took) >= fitted.pool
    assert setting(secure_rounds=0).for_data(sizes).batch_size == 20, "plain rounds take any"
    assert setting(batch_size=4).for_data(sizes).batch_size == 4


def test_devices_with_too_few_examples_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="Secure rounds take 20 examples of a device or more, and 319 of 400 devices"):
        setting().for_data([20] * 319 + [19] * 81)


def test_with_all_rounds_secure_the_plan_has_all_rounds() -> None:
    plan = Plan.parse(tomllib.loads(setting(secure=True, rounds=9).secure_plan()))
    assert (plan.name, plan.finish.rounds) == ("mnist-secure", 9)


def test_a_small_demo_hides_among_its_goal_and_a_large_one_has_few_neighbours() -> None:
    small = Plan.parse(tomllib.loads(setting(12, select=8, goal=6).secure_plan()))
    assert small.secure is not None
    assert (small.secure.minimum_cohort, small.secure.reserved(small.cohort)) == (6, 1)
    large = Plan.parse(tomllib.loads(setting(900, select=600, goal=500).secure_plan()))
    assert large.secure is not None
    assert (large.secure.profile, large.secure.drop, large.secure.reserved(large.cohort)) == ("fast", 52, 25)


def test_secure_rounds_cannot_be_compared_with_the_bare_loop() -> None:
    with pytest.raises(ValueError, match="it compares plain rounds, not --secure"):
        setting(secure=True, compare=True)


# ------------------------------------------------------------ journal and screens


def secure_round(number: int, *came: int, closed: bool = True) -> RoundView:
    expected = (300, *came[:-1])
    view = SecureView(
        attempts=1,
        roster=268,
        threshold=179,
        signers=179,
        opened=closed,
        exchanges=tuple(
            ExchangeView(exchange=name, expected=before, came=count, needed=need, bytes=10, began_at=1.0)
            for name, before, count, need in zip(EXCHANGES, expected, came, (256, 256, 256, 179, 179), strict=False)
        ),
    )
    return RoundView(
        round=number,
        status="committed" if closed else "open",
        kind="secure",
        opened_at=100.0,
        closed_at=130.0 if closed else None,
        funnel=Funnel(waiting=320, selected=300, training=297, reported=268, late=1, dropped=12),
        bytes_in=45_000_000,
        version=number if closed else None,
        secure=view,
    )


def journal(*rounds: RoundView, run: str = "mnist-secure", over: bool = True) -> Journal:
    view = RunView.model_validate(
        {
            "run": run, "name": run, "status": "finished" if over else "running", "reason": "", "phase": "masking",
            "round": rounds[-1].round, "version": 0, "checkpoint": "00" * 32, "rounds_committed": 0,
            "rounds_wanted": 2, "plan": {}, "plan_digest": "00" * 32, "origin": "", "created_at": 0, "seq": 1,
            "funnel": {},
        }
    )  # fmt: skip
    scores = [MetricView(version=v, source="evaluator", name="accuracy", value=0.9, examples=1, at=0) for v in (1, 2)]
    return read(view, rounds, scores)


def test_what_a_secure_round_has_collected_are_the_masked_updates() -> None:
    (line,) = journal(secure_round(1, 268, 265, 262, 262, 259)).lines
    assert line.collected == 262
    exchanges = {"advertise": 268, "share": 265, "mask": 262, "agree": 262, "unmask": 259}
    assert line.report() == {
        "round": 1, "selected": 300, "collected": 262, "late": 1, "dropped": 12, "accuracy": 0.9, "exchanges": exchanges
    }  # fmt: skip
    (open_line,) = journal(secure_round(1, 268, 265, closed=False), over=False).lines
    assert (open_line.collected, open_line.came("share"), open_line.needed("mask")) == (0, 265, None)


def test_a_secure_round_is_a_sentence_with_each_exchange_against_what_it_needs() -> None:
    (line,) = journal(secure_round(1, 268, 265, 262, 261, 259)).lines
    assert screens.sentence(line) == (
        "round 1: of 300 selected, 268 advertised (256 needed), 265 shared (256 needed), 262 masked (256 needed), "
        "261 signed (179 needed), 259 revealed (179 needed); 6 of the roster vanished before they masked, the masks of "
        "3 were recovered; 30.0 s, 45.0 MB in; accuracy 90.00 %"
    )


def test_both_runs_rounds_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A round of the second run has the number of one of the first."""
    plain, json_lines = screens.Plain(), screens.Json()
    for run in ("mnist", "mnist-secure"):
        plain.show(journal(secure_round(1, 268, 265, 262, 262, 259), run=run), final=True)
        json_lines.show(journal(secure_round(1, 268, 265, 262, 262, 259), run=run), final=True)
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("round 1: of 300") for line in printed) == 2
    assert [json.loads(line)["run"] for line in printed if line.startswith("{")] == ["mnist", "mnist-secure"]


@pytest.mark.parametrize("width", [80, 110])
def test_a_terminal_shows_the_exchanges_against_what_they_need(width: int) -> None:
    console = Console(force_terminal=True, width=width, record=True, file=io.StringIO())
    shown = screens.Terminal(console)
    shown.show(journal(secure_round(1, 268, 265, 262, 261, 259), secure_round(2, 267, 66, closed=False), over=False))
    shown.close()
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["1", "300", "268", "265", "262", "261", "259", "30.0", "45.0", "90.00", "%"] in rows
    assert ["2", "300", "267", "66", "45.0"] in rows
    assert ["needed", "256", "256"] in rows


def test_the_end_says_the_rounds_of_each_kind_and_the_time(tmp_path: Path) -> None:
    first = journal(secure_round(1, 268, 265, 262, 262, 259))
    for plain, secure, words in (
        (first, first, "90.00 % after 1 plain round and 1 secure round, in 201 s."),
        (None, first, "90.00 % after 1 secure round, in 201 s."),
    ):
        found = Result(url="u", plain=plain, secure=secure, model=tmp_path / "m", seconds=200.7, bare_accuracy=None)
        assert words in closing_lines(setting(), tmp_path, found, ascii_only=True)


# ------------------------------------------------------------ the whole command


def demo(*options: str, data: Path, environment: dict[str, str]) -> str:
    """A demo in a folder of its own choice, as ``make demo`` runs it: a new one in TMPDIR."""
    done = subprocess.run(
        [sys.executable, "-m", "client_sdk.cli", "demo", "--data", str(data), *options],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def digests(folder: Path, run: str) -> list[str]:
    """Of the run's checkpoints, in their order."""
    (file,) = folder.glob(f"**/{DATABASE_FILE}")
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT digest FROM checkpoints WHERE run = ? ORDER BY version", (run,))
        return [digest for (digest,) in rows]


SMALL = (
    *("--devices", "12", "--select", "8", "--goal", "6", "--vanish", "0.05", "--slow", "0", "--late", "0"),
    *("--learning-rate", "0.05", "--server-learning-rate", "1.0"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices of 64 examples or fewer would let no batch of 20 into a sum."""
    return synthetic.write(tmp_path_factory.mktemp("data") / "blobs.npz", train=3000)


@on_day(0, of=2)
def test_all_rounds_can_be_secure_and_secure_rounds_follow_on_the_plain_ones_of_another_demo(
    tmp_path: Path, data: Path
) -> None:
    """A demo with plain rounds that is started after secure ones is not refused as plain after secure."""
    report = tmp_path / "r.json"
    environment = {"DEMO_JSON": str(report), "TMPDIR": str(tmp_path)}
    out = demo(*SMALL, "--rounds", "2", "--json", data=data, environment=environment | {"SECURE": "1"})
    found = json.loads(report.read_text())
    assert found["rounds"] == []
    assert len(found["secure_rounds"]) == 2
    assert all(line["collected"] >= 6 for line in found["secure_rounds"])
    runs = {json.loads(line).get("run") for line in out.splitlines()} - {None}
    assert runs == {"blobs-secure"}
    (first,) = tmp_path.glob("quorate-demo-*")

    out = demo(*SMALL, "--rounds", "2", "--secure-rounds", "1", data=data, environment=environment)
    (second,) = {*tmp_path.glob("quorate-demo-*")} - {first}
    found = json.loads(report.read_text())
    assert [line["round"] for line in found["rounds"]] == [1, 2]
    (line,) = found["secure_rounds"]
    assert line["collected"] == line["exchanges"]["mask"] >= 6
    assert line["exchanges"]["unmask"] >= 5
    plain, secure = digests(second, "blobs"), digests(second, "blobs-secure")
    assert secure[0] == plain[-1], "it goes on where the plain rounds ended"
    assert len({*plain, *secure}) == 4, "each round has moved the model"
    assert "the coordinator saw the sum of" in out
    assert "$ quorate rounds blobs-secure --secure --coordinator " in out
    assert re.search(r"% after 2 plain rounds and 1 secure round, in \d+ s\.", out)
