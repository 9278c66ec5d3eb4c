"""``quorate plot``: what is drawn, that equal data give equal files, and what is said where nothing can be drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from client_sdk.protocol.insight import Lane, LaneBucket, LanesView
from client_sdk.protocol.operators import ExchangeView, Funnel, MetricView, RoundView, SecureView
from coordinator.pictures.run_figure import ENDS, FORMATS, PARTS, STEPS, PicturedRun, draw, lanes_panel, segments, write
from tests.coordinator.commands.test_run_picture import view
from tests.coordinator.service.conftest import Server, server
from tests.rotating import in_parts, on_day

__all__ = ["server"]

LANES = LanesView(
    devices=3,
    lanes=[
        Lane(
            device="a", selected_at=100, started_at=102, ended_at=110, reported_at=110, end="reported",
            fetch_s=1, train_s=6, encode_s=1,
        ),
        Lane(device="b", selected_at=100, started_at=103, ended_at=112, end="late"),
        Lane(device="c", selected_at=100, ended_at=111, end="dropped"),
    ],
)  # fmt: skip


def round_view(number: int, **more: Any) -> RoundView:
    funnel = Funnel(waiting=9, selected=6, training=6, reported=4, late=1, dropped=1)
    return RoundView(round=number, status="committed", opened_at=99.0, closed_at=111.0, funnel=funnel, **more)


def pictured(**more: Any) -> PicturedRun:
    metrics = [
        MetricView(
            version=version, source="evaluator", name="accuracy", value=0.1 * version, examples=9, at=float(version)
        )
        for version in (2, 0, 1)
    ]
    rounds = [round_view(1), round_view(2)]
    return PicturedRun(view=view(), rounds=rounds, metrics=metrics, **({"round": rounds[1], "lanes": LANES} | more))


def panel(figure: Figure, words: str) -> Axes:
    return next(axes for axes in figure.axes if words in axes.get_title())


def legend_of(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_a_devices_steps_fill_its_time() -> None:
    reported, late, dropped = LANES.lanes
    assert segments(reported, 100, 20) == [(0, 1), (1, 2), (2, 8), (8, 10)]
    assert segments(late, 100, 20) == [(0, 3), (3, 3), (3, 12), (12, 12)], "how long it trained was never told"
    assert segments(dropped, 100, 20) == [(0, 11), (11, 11), (11, 11), (11, 11)]
    assert segments(dropped.model_copy(update={"ended_at": None}), 100, 20)[0] == (0, 20)


def test_lanes_have_their_steps_their_ends_and_the_line_of_the_close() -> None:
    axes = panel(draw(pictured()), "Round 2")
    assert legend_of(axes) == [*STEPS, "late (1)", "dropped (1)", "the round closed"]
    assert [line.get_xdata()[0] for line in axes.lines] == [11.0]
    training = [one for one in axes.collections if isinstance(one, PolyCollection)][2]
    assert [path.vertices[:, 0].max() for path in training.get_paths()] == [8.0, 12.0]
    assert "seconds" in axes.get_xlabel()
    assert axes.get_xlim()[1] > 12


def test_many_devices_are_counted_in_parts_of_the_time() -> None:
    buckets = [
        LaneBucket(from_at=100, to_at=105, started=1500),
        LaneBucket(from_at=105, to_at=110, ends={"reported": 1400, "late": 100}),
    ]
    found = LanesView(devices=1500, ends={"reported": 1400, "late": 100}, lanes=LANES.lanes, buckets=buckets)
    axes = Figure().add_subplot()
    lanes_panel(axes, round_view(1), found)
    assert legend_of(axes) == ["reported (1400)", "late (100)", "the round closed"]
    assert sum(bar.get_height() for bar in axes.patches) == 1500


def test_a_secure_run_has_exchanges_in_place_of_lanes() -> None:
    came = tuple(
        ExchangeView(exchange=name, expected=6, came=5, needed=4, bytes=1, began_at=1.0)
        for name in ("advertise", "share", "mask")
    )
    rounds = [round_view(1, kind="secure", secure=SecureView(attempts=1, exchanges=came))]
    figure = draw(PicturedRun(view=view(kind="secure", plan={"secure": {}}), rounds=rounds, metrics=[]))
    assert "needed" in legend_of(panel(figure, "exchange"))
    assert not any("Round" in axes.get_title() for axes in figure.axes)


def test_a_run_without_any_round_is_drawn_empty() -> None:
    figure = draw(PicturedRun(view=view(), rounds=[], metrics=[]))
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"no round yet", "no round has selected devices yet"} <= texts
    assert not any("ecure" in text for text in texts | {axes.get_title() for axes in figure.axes})


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_equal_data_give_equal_files_and_say_nothing_of_the_time(ending: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"one{ending}", tmp_path / f"two{ending}"
    write(pictured(), one)
    write(pictured(), two)
    content = one.read_bytes()
    assert content == two.read_bytes()
    assert b"dc:date" not in content
    assert b"CreationDate" not in content
    if ending == ".svg":
        assert b"seconds since the cohort was selected</text>" in content, "text that an editor can change"


def test_what_is_told_apart_has_colours_and_shapes_of_its_own() -> None:
    assert len({marker for name, (_, marker) in ENDS.items() if name not in ("waiting", "training")}) == 4
    assert len(set(STEPS.values())) == len(STEPS)
    assert set(PARTS) == {"reported", *ENDS}


# ------------------------------------------------------------ the command


def plot(server: Server, *words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    run = f"{code}; import sys; from client_sdk.cli import main; main(sys.argv[1:])"
    options = ["--coordinator", server.url, "--key-file", str(server.folder / "owner-key")]
    command = [sys.executable, "-c", run.lstrip("; "), "plot", *words, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_a_run_is_drawn_from_the_coordinators_answers(server: Server, tmp_path: Path) -> None:
    run = server.create_run("drawn", select=1)
    device = server.device(run)
    work = device.wait_for_work()
    device.started(work)
    device.put(work, device.body(work)).raise_for_status()
    done = plot(server, run, "--out", str(tmp_path / "run.svg"), "--round", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "with the lanes of round 1, to " in done.stdout
    text = (tmp_path / "run.svg").read_text("utf-8")
    assert "Round 1: the lanes of 1 device<" in text
    assert device.id not in text


@on_day(0, of=2)
def test_a_run_without_a_cohort_says_nothing_of_secure_rounds(server: Server, tmp_path: Path) -> None:
    run = server.create_run("waits", select=9)
    done = plot(server, run, "--out", str(tmp_path / "run.svg"))
    assert "without lanes, as no round has selected devices, to " in done.stdout
    assert "secure" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    in_parts(
        [
            (("nothing",), "there is no run 'nothing'"),
            (("nothing", "--out", "x.gif"), "must end in .svg, .pdf or .png"),
            (("nothing", "--out", "no-such-folder/x.svg"), "There is no folder no-such-folder"),
        ],
        of=3,
    ),
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(server: Server, words: tuple[str, ...], sentence: str) -> None:
    done = plot(server, *words)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert sentence in line


@pytest.mark.slow
def test_without_matplotlib_the_extra_is_named(server: Server) -> None:
    done = plot(server, "nothing", code="import sys; sys.modules['matplotlib'] = None")
    assert done.returncode == 1
    assert done.stderr == "Error: This needs matplotlib, which is not installed: pip install 'quorate[plot]'\n"
