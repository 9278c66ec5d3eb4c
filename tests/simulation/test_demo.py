"""The demo: its parts, and the whole command at small scale, as a user runs it."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import psutil
import pytest
from rich.console import Console

from client_sdk.protocol.operators import Funnel, MetricView, RoundView, RunView
from client_sdk.terminal import Failure
from coordinator.engine.plan import Plan
from simulation.demo import screen as screens
from simulation.demo.children import CommandChildren, StoppedByUser
from simulation.demo.command import loading, plot
from simulation.demo.compare import recipe_of
from simulation.demo.screen import Journal, read, wrapped
from simulation.demo.setting import Setting
from simulation.fleet.split import Split
from simulation.fleet.trainer import FleetHabits
from tests.coordinator.service.test_logging_in import LINK, with_page
from tests.rotating import on_day
from tests.simulation import synthetic

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist.toml"
SMALL = ["--devices", "12", "--select", "8", "--goal", "6", "--rounds", "2", "--secure-rounds", "0"]


def setting(**more: object) -> Setting:
    return Setting(split=Split(data="mnist", devices=400), habits=FleetHabits(), **more)


# ------------------------------------------------------------ setting


def test_the_example_is_the_demos_plan():
    assert EXAMPLE.read_text("utf-8") == setting().plan("examples/mnist.toml")
    plan = Plan.from_toml(EXAMPLE)
    assert (plan.cohort.select, plan.cohort.goal, plan.cohort.pool) == (300, 256, 320)
    assert plan.finish.rounds >= 10
    assert plan.task.learner == "quorate:mnist-mlp"


def test_every_number_of_the_setting_reaches_the_plan():
    plan = Plan.parse(
        tomllib.loads(
            Setting(
                split=Split(data="a/My Data.npz", devices=20, seed=5),
                habits=FleetHabits(),
                select=10,
                goal=7,
                rounds=3,
                epochs=4,
                batch_size=6,
                learning_rate=0.05,
                server_learning_rate=1.25,
            ).plan()
        )
    )
    assert plan.name == "my-data"
    assert (plan.cohort.pool, plan.cohort.select, plan.cohort.goal, plan.finish.rounds) == (12, 10, 7, 3)
    assert (plan.task.epochs, plan.task.batch_size, plan.task.learning_rate, plan.task.seed) == (4, 6, 0.05, 5)
    assert plan.aggregation.server_learning_rate == 1.25


@pytest.mark.parametrize(("more", "words"), [({"select": 401}, "only 400 devices"), ({"goal": 301}, "never reach it")])
def test_numbers_that_contradict_each_other_are_refused(more: dict[str, int], words: str):
    with pytest.raises(ValueError, match=words):
        setting(**more)


def test_the_bare_loop_has_the_plans_hyperparameters_or_says_what_it_lacks():
    plan = Plan.from_toml(EXAMPLE)
    recipe = recipe_of(plan)
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate) == (3, 20, 0.3)
    assert (recipe.server_learning_rate, recipe.weigh(77)) == (1.8, 77)
    for section, field, value in (
        ("task", "mu", 0.1),
        ("aggregation", "clip_norm", 1.0),
        ("aggregation", "statistics_range", 1.0),
        ("aggregation", "inverse_participation", 4),
        ("aggregation", "step_bits", 8),
        ("aggregation", "server_optimizer", "fedavgm"),
    ):
        changed = getattr(plan, section).model_copy(update={field: value})
        with pytest.raises(ValueError, match=rf"does not support {section}\.{field}"):
            recipe_of(plan.model_copy(update={section: changed}))


# ------------------------------------------------------------ journal, screens, curve


def journal(*rounds: RoundView, scores: dict[int, float] | None = None, status: str = "running") -> Journal:
    run = RunView.model_validate(
        {
            "run": "mnist",
            "name": "mnist",
            "status": status,
            "reason": "",
            "phase": "collecting",
            "round": rounds[-1].round,
            "version": 0,
            "checkpoint": "00" * 32,
            "rounds_committed": 0,
            "rounds_wanted": 2,
            "plan": {},
            "plan_digest": "00" * 32,
            "origin": "",
            "created_at": 0,
            "seq": 1,
            "funnel": {},
        }
    )
    metrics = [
        MetricView(version=version, source="evaluator", name="accuracy", value=value, examples=10, at=0)
        for version, value in (scores or {}).items()
    ]
    noise = MetricView(version=1, source="devices", name="accuracy", value=0.0, examples=10, at=0)
    return read(run, rounds, [*metrics, noise])


def committed(number: int, **funnel: int) -> RoundView:
    counts = {"waiting": 10, "selected": 8, "training": 7, "reported": 6, "late": 1, "dropped": 1} | funnel
    return RoundView(
        round=number,
        status="committed",
        opened_at=100.0,
        closed_at=102.5,
        funnel=Funnel(**counts),
        bytes_in=1_200_000,
        version=number,
    )


def opened(number: int, **funnel: int) -> RoundView:
    return RoundView(round=number, status="open", opened_at=100.0, funnel=Funnel(**funnel))


def test_the_journal_reads_rounds_and_the_evaluators_scores():
    found = journal(committed(1), opened(2, waiting=3), scores={0: 0.1, 1: 0.75})
    first, second = found.lines
    assert first.report() == {"round": 1, "selected": 8, "collected": 6, "late": 1, "dropped": 1, "accuracy": 0.75}
    assert (first.seconds, first.bytes_in) == (2.5, 1_200_000)
    assert (second.seconds, second.accuracy) == (None, None)
    assert (found.over, found.scored, found.committed) == (False, True, [first])
    assert not journal(committed(1), committed(2), scores={1: 0.5}).scored


def test_plain_lines_are_printed_once_and_only_when_they_are_true(capsys: pytest.CaptureFixture[str]):
    plain = screens.Plain()
    plain.show(journal(opened(1, waiting=5)))
    assert capsys.readouterr().out == ""
    plain.show(journal(opened(1, waiting=10, selected=8)))
    assert capsys.readouterr().out == "round 1: 8 of 10 waiting devices are selected\n"
    # Committed and scored, but late devices may still come until another round has ended.
    plain.show(journal(committed(1, late=0, dropped=2), opened(2), scores={1: 0.5}))
    assert capsys.readouterr().out == ""
    both = journal(committed(1), committed(2), scores={1: 0.5}, status="finished")
    plain.show(both)
    output = capsys.readouterr().out.splitlines()
    assert output == [
        "round 1: 6 of 8 reported, 1 late, 1 dropped; 2.5 s, 1.2 MB in; accuracy 50.00 %",
        "round 2: 8 of 10 waiting devices are selected",
    ]
    plain.show(both)
    assert capsys.readouterr().out == ""
    plain.show(journal(committed(1), committed(2), scores={1: 0.5, 2: 0.625}, status="finished"), final=True)
    assert capsys.readouterr().out.endswith("accuracy 62.50 %\n")


def test_an_abandoned_round_is_printed_with_its_reason(capsys: pytest.CaptureFixture[str]):
    abandoned = RoundView(round=1, status="abandoned", reason="4 of 8 reported", opened_at=0, closed_at=1)
    screens.Plain().show(journal(abandoned, opened(2)))
    assert capsys.readouterr().out == "round 1: abandoned: 4 of 8 reported\n"


def test_json_lines_are_objects(capsys: pytest.CaptureFixture[str]):
    shown = screens.Json()
    shown.command("quorate serve")
    shown.note("for people only")
    shown.show(journal(committed(1), scores={1: 0.5}), final=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"kind": "command", "command": "quorate serve"}
    assert (lines[1]["round"], lines[1]["collected"], lines[1]["accuracy"]) == (1, 6, 0.5)
    assert len(lines) == 2


@pytest.mark.parametrize("width", [72, 80, 110])
def test_a_terminal_gets_a_table_of_rounds(width: int):
    console = Console(force_terminal=True, width=width, record=True, file=io.StringIO())
    shown = screens.Terminal(console)
    shown.command("quorate serve")
    shown.show(journal(committed(1), opened(2, waiting=10, selected=8, training=4, reported=3), scores={1: 0.5}))
    shown.close()
    text = console.export_text()
    assert "$ quorate serve" in text
    assert "round 2 of 2" in text
    assert "…" not in text
    assert any(line.split()[:6] == ["1", "8", "7", "6", "1", "1"] and "50.00 %" in line for line in text.splitlines())
    assert any(line.split()[:4] == ["2", "8", "4", "3"] for line in text.splitlines())
    assert ("━" in text) == (width > 72)


def test_the_curve_has_each_bar_at_its_height():
    lines = plot([0.5, 0.76, None, 1.0])
    labels = [line.split("┤")[0].split("└")[0].strip() for line in lines[:-1]]
    assert labels == [f"{level} %" for level in range(100, 49, -5)], "lines of 5 %, each label at its lower edge"
    bars = [
        "".join(line[9 + 3 * place + 2 : 9 + 3 * place + 3] or " " for line in lines[-2:0:-1]) for place in range(4)
    ]
    assert [bar.rstrip() for bar in bars] == ["▁", "█████▂", "", "█" * 10]
    assert lines[-1].split() == ["1", "2", "3", "4"]


def test_repro_the_progress_of_the_last_rounds_is_seen():
    """Lines of 2.5 % had one point for 91.9 % and for 93.6 %."""
    last = [0.9194, 0.9232, 0.9243, 0.9282, 0.9298, 0.9316, 0.9338, 0.9356]
    lines = plot([0.7375, 0.8644, 0.8853, 0.8964, 0.9045, 0.9091, 0.9155, *last])
    assert len(lines) <= 13
    heights = ["".join(line[9 + 3 * place + 1 : 9 + 3 * place + 2] for line in lines[:-1]) for place in (7, 10, 14)]
    assert len(set(heights)) == 3


def test_commands_are_broken_before_options_and_can_be_copied():
    line = "$ quorate evaluate mnist --data mnist --coordinator http://127.0.0.1:38287 --source evaluator"
    parts = wrapped(line, 62)
    assert parts == [
        "$ quorate evaluate mnist --data mnist \\",
        "    --coordinator http://127.0.0.1:38287 --source evaluator",
    ]
    assert shlex.split("\n".join(parts).replace("\\\n", "")) == shlex.split(line), "as a shell joins the lines"
    assert wrapped(line, 200) == [line]


def test_a_long_curve_keeps_its_last_round_and_plain_terminals_get_ascii():
    lines = plot([n / 250 for n in range(250)], ascii_only=True)
    assert max(map(len, lines)) <= 80
    assert lines[-1].split()[-1] == "250"
    assert "".join(lines).isascii()
    assert plot([None, None]) == []
    assert "▁" in "".join(plot([None, 0.3]))


# ------------------------------------------------------------ children


@pytest.mark.slow
def test_the_error_of_a_child_that_ends_is_shown(tmp_path: Path):
    lines: list[str] = []
    with CommandChildren(tmp_path, Event(), lines.append) as children:
        with pytest.raises(Failure, match="'quorate status' ended with code 1: No coordinator answers"):
            children.run("status", "status", "--coordinator", "http://127.0.0.1:9")
    assert lines == ["quorate status --coordinator http://127.0.0.1:9"]


@pytest.mark.slow
def test_no_child_is_left_when_the_user_stops(tmp_path: Path):
    stop = Event()
    with CommandChildren(tmp_path, stop, lambda line: None) as children:
        server = children.start("serve", "serve", "--data", str(tmp_path / "c"), "--port", "0", "--json")
        assert json.loads(children.first_line(server, 60))["url"].startswith("http://127.0.0.1:")
        stop.set()
        with pytest.raises(StoppedByUser):
            children.look()
        assert server.process.poll() is None
    assert server.process.returncode == 0


# ------------------------------------------------------------ the whole command


def demo(*options: str, folder: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "client_sdk.cli", "demo", *SMALL, *options, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("data") / "blobs.npz")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The demo's folder; when the test ends no process may be left that knows it."""
    place = tmp_path / "demo"
    yield place
    left = [
        process for process in psutil.process_iter(["cmdline"]) if str(place) in " ".join(process.info["cmdline"] or [])
    ]
    for process in left:
        process.kill()
    assert left == []


def check_report(path: Path, *, compared: bool) -> dict[str, object]:
    report = json.loads(path.read_text())
    assert list(report) == ["rounds", "secure_rounds", "bare_accuracy", "seconds"]
    assert report["secure_rounds"] == []
    assert [line["round"] for line in report["rounds"]] == [1, 2]
    for line in report["rounds"]:
        assert list(line) == ["round", "selected", "collected", "late", "dropped", "accuracy"]
        assert line["selected"] == 8
        assert line["collected"] >= 6
        assert line["collected"] + line["late"] + line["dropped"] <= 8
        assert 0 < line["accuracy"] <= 1
    assert (report["bare_accuracy"] is not None) == compared
    assert 0 < report["seconds"] < 120
    return report


@on_day(0, of=2)
def test_the_demo_at_small_scale_on_made_up_data(folder: Path, data: Path, tmp_path: Path):
    """Into a pipe: it ends after the last round, and has no link to a page."""
    environment = with_page(tmp_path / "page") | {"COMPARE": "1", "DEMO_JSON": str(tmp_path / "r.json")}
    process = demo("--data", str(data), folder=folder, environment=environment)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), out
    report = check_report(tmp_path / "r.json", compared=True)
    assert abs(report["bare_accuracy"] - report["rounds"][-1]["accuracy"]) <= 0.005

    lines = out.splitlines()
    for command in ("serve", "fleet", "run create", "evaluate", "checkpoint get"):
        assert any(line.startswith(f"$ quorate {command} ") for line in lines), command
    assert any(line.endswith("/docs") for line in lines)
    assert sum(line.startswith(("round 1: ", "round 2: ")) for line in lines) == 4
    assert "The checkpoint is in" in out
    assert "Ctrl-C" not in out
    assert not LINK.findall(out)
    assert "\x1b" not in out

    # The lines that say how to load the checkpoint do load it, and the model scores what was said.
    start = next(number for number, line in enumerate(lines) if line.endswith("Load it in Python:")) + 1
    code = [line.strip() for line in lines[start : lines.index("", start)]]
    assert code == loading(
        Setting(split=Split(data=str(data), devices=400), habits=FleetHabits()), folder / "model.safetensors"
    )
    made: dict[str, object] = {}
    exec("\n".join(code), made)
    with np.load(data) as arrays:
        score = made["learner"].evaluate(made["learner"].tensors(made["model"]), (arrays["x_test"], arrays["y_test"]))
    assert score.metrics["accuracy"] == pytest.approx(report["rounds"][-1]["accuracy"])


@on_day(1, of=2)
@pytest.mark.service
def test_the_demo_at_small_scale_on_mnist(folder: Path, tmp_path: Path):
    from simulation.datasets import DataUnavailable, load

    try:
        load("mnist")
    except DataUnavailable as error:
        pytest.skip(f"MNIST cannot be had here: {error}")
    process = demo("--json", folder=folder, environment={"DEMO_JSON": str(tmp_path / "r.json")})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), out
    report = check_report(tmp_path / "r.json", compared=False)
    assert report["rounds"][-1]["accuracy"] > 0.5
    assert json.loads(out.splitlines()[-1]) == report


def at_work(folder: Path, data: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A demo in its first round, and all its processes."""
    process = demo("--data", str(data), "--rounds", "500", folder=folder)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 1: 8"):
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 5, "coordinator, fleet, its two workers, evaluator"
    return process, family


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=on_day(0, of=3)), pytest.param(signal.SIGTERM, marks=on_day(1, of=3))]
)
def test_ctrl_c_ends_everything(folder: Path, data: Path, number: signal.Signals):
    process, family = at_work(folder, data)
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 130
    assert err == f"Stopped. The work so far is in {folder}.\n"
    _, alive = psutil.wait_procs(family, timeout=0.5)
    assert alive == []


@on_day(2, of=3)
def test_a_killed_demo_leaves_nothing_behind(folder: Path, data: Path):
    process, family = at_work(folder, data)
    stuck = next(child for child in family if "serve" in child.cmdline())
    stuck.suspend()  # it cannot stop by itself; all others do
    process.kill()
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == [stuck]
    stuck.resume()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.mark.slow
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    process = demo(folder=tmp_path / "mine")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith(f"Error: The folder {tmp_path / 'mine'} is not empty")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
