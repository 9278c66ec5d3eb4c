"""The picture: three titled panels that show the numbers of the history, without a display; and the notebook's page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle, StepPatch

from coordinator.store.port import RoundRow
from simulation.history import History, HistoryError
from tests.coordinator.world import World
from tests.simulation.history.runs import played, score

pytestmark = pytest.mark.whole


@pytest.fixture
def world() -> World:
    return played()


@pytest.fixture
def history(world: World) -> History:
    return History(world.store, world.blobs)


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def heights(axes: Axes, label: str) -> list[float]:
    """Of the bars of one part of the funnel."""
    bars = next(item for item in axes.containers if item.get_label() == label)
    return [bar.get_height() for bar in bars if isinstance(bar, Rectangle)]


def test_the_panels_are_titled_and_their_axes_named(history: History) -> None:
    figure = history.plot()
    assert "marks: 2 of 5 rounds committed, 1 abandoned" in figure.get_suptitle()
    funnel, metrics, devices, losses = figure.axes
    for axes in (funnel, metrics, devices):
        assert axes.get_title()
        assert axes.get_xlabel()
        assert axes.get_ylabel()
    assert (metrics.get_ylabel(), losses.get_ylabel()) == ("accuracy", "loss")


def test_the_funnel_stacks_up_to_who_was_selected(history: History) -> None:
    funnel = history.plot().axes[0]
    assert heights(funnel, "counted") == [3, 0, 3, 0]
    assert heights(funnel, "late") == [1, 0, 0, 0]
    assert heights(funnel, "dropped") == [0, 3, 0, 0]
    assert heights(funnel, "withdrawn") == [0, 0, 1, 0]
    assert heights(funnel, "reported in vain") == [0, 1, 0, 0]
    assert heights(funnel, "under way") == [0, 0, 0, 4]
    total = np.sum([heights(funnel, str(item.get_label())) for item in funnel.containers], axis=0)
    assert total.tolist() == [row.selected for row in history.rounds]
    marks = [item for item in funnel.collections if isinstance(item, PathCollection)]
    assert [mark.get_offsets()[0][0] for mark in marks] == [2], "round 2 was abandoned"


def test_curves_and_the_spread_over_clients_are_drawn(history: History) -> None:
    _, metrics, _, losses = history.plot().axes
    drawn = {str(line.get_label()): line for axes in (metrics, losses) for line in axes.get_lines()}
    assert drawn["accuracy, evaluator"].get_ydata().tolist() == [0.5, 0.75]  # type: ignore[union-attr]
    assert drawn["loss, training"].get_ydata().tolist() == [0.5, 0.25]  # type: ignore[union-attr]
    (band,) = metrics.collections
    edge = {tuple(np.round(point, 6)) for point in band.get_paths()[0].vertices}
    assert {(1, 0.3), (1, 0.45), (2, 0.55), (2, 0.7)} <= edge
    assert any("clients.p10 to " in label for label in labels(metrics))


def test_participation_is_sorted(history: History) -> None:
    devices = history.plot().axes[2]
    assert heights(devices, "4 of 8 devices counted") == [2, 2, 1, 1, 0, 0, 0, 0]
    assert "mean 0.75" in labels(devices)


def test_many_rounds_become_areas() -> None:
    world = World(8)
    world.create()
    with world.store.transaction("marks") as tx:
        for number in range(2, 202):
            body = {"funnel": {"selected": 4, "training": 4, "reported": 4}, "version": None}
            status, reason = ("abandoned", "no quorum") if number % 10 == 0 else ("committed", "")
            tx.put_round(
                RoundRow(
                    run="marks", round=number, attempt=0, kind="federated", status=status, reason=reason,
                    opened_at=0.0, collecting_at=0.0, closed_at=1.0, body=body,
                )
            )  # fmt: skip
    history = History(world.store, world.blobs)
    funnel = history.plot().axes[0]
    assert not funnel.containers
    steps = {str(item.get_label()): item for item in funnel.patches if isinstance(item, StepPatch)}
    assert steps["counted"].get_data().values.sum() == 180 * 4
    assert len(history.plot().axes[0].collections[-1].get_offsets()) == 20
    assert "rounds 10, 20, 30" in history.summary()
    assert "and 8 more" in history.summary()


def test_many_classes_share_one_entry_of_the_legend(world: World, history: History) -> None:
    for number in range(20):
        score(world, source=f"class.{number}", accuracy=number / 20)
    metrics = history.plot().axes[1]
    assert "accuracy, evaluator" in labels(metrics)
    assert [label for label in labels(metrics) if "class" in label] == ["accuracy, each of 20 classes"]
    assert len(metrics.get_lines()) == 2 + 20


def test_a_few_classes_have_a_colour_and_an_entry_each(world: World, history: History) -> None:
    names = ["clinic", "phone", "tablet", "watch"]
    for number, name in enumerate(names):
        score(world, source=f"class.{name}", accuracy=number / 20)
    metrics = history.plot().axes[1]
    lines = {str(line.get_label()): line.get_color() for line in metrics.get_lines()}
    assert {f"accuracy, class.{name}" for name in names} <= set(labels(metrics)) & set(lines)
    assert len(set(lines.values())) == len(lines)


def test_of_many_metrics_a_few_are_drawn_and_the_others_named(world: World, history: History) -> None:
    many = {f"top{number}": 0.1 * number for number in range(1, 9)}
    for source in ("evaluator", "clients", "clients.p10"):
        score(world, source=source, **many)
    metrics = history.plot().axes[1]
    assert metrics.get_ylabel() == "accuracy, top1"
    assert len(metrics.collections) == 1, "one band on an axis"
    assert labels(metrics)[-1] == "not drawn: top2, top3 and 5 more"


def test_one_round_and_one_version_have_whole_numbers_below_them() -> None:
    world = World(8)
    world.create()
    world.play_round(1)
    figure = History(world.store, world.blobs).plot()
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert 1 in shown
        assert all(float(tick).is_integer() for tick in shown)


def test_each_panel_has_a_note_where_there_is_no_data() -> None:
    world = World(2)
    world.create()
    figure = History(world.store, world.blobs).plot()
    output = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert output == ["no metric yet", "no device has counted yet"]


def test_a_curve_of_losses_alone_stands_on_the_left_axis(world: World, history: History) -> None:
    bare = World(8)
    bare.create()
    bare.play_round(1)
    assert [axes.get_ylabel() for axes in History(bare.store, bare.blobs).plot().axes][1:2] == ["loss"]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_it_is_written_in_the_format_of_the_ending(history: History, tmp_path: Path, name: str, start: bytes) -> None:
    history.plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_picture_that_cannot_be_written_is_an_error(history: History, tmp_path: Path) -> None:
    for name in ("a.strange", "nowhere/a.png"):
        with pytest.raises(HistoryError, match="cannot be written"):
            history.plot(tmp_path / name)


@pytest.mark.slow
def test_no_display_and_no_global_state_is_touched(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.simulation.history.runs import played; from simulation.history import History;"
        "w = played(); h = History(w.store, w.blobs); h.plot(sys.argv[1]); h._repr_html_();"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    environment = {"PATH": "/usr/bin", "MPLBACKEND": "tkagg"}
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.png")], capture_output=True, text=True, check=False,
        timeout=100, env=environment, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert output.stdout.strip() == "False", output.stderr


# ------------------------------------------------------------ notebooks


def test_a_notebook_shows_header_picture_table_and_reasons(history: History) -> None:
    page = history._repr_html_()
    assert "<b>marks</b>: 2 of 5 rounds committed, 1 abandoned, running" in page
    assert page.count("data:image/png;base64,") == 1
    assert len(re.findall("<tr>", page)) == 1 + 4
    assert "<li>1 of 4 devices reported by the deadline; the quorum is 2: round 2</li>" in page
    assert history.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_words_from_outside_are_escaped(world: World, history: History) -> None:
    with world.store.transaction("marks") as tx:
        tx.put_round(
            RoundRow(
                run="marks", round=9, attempt=0, kind="federated", status="abandoned", reason="<script>x</script>",
                opened_at=0.0, collecting_at=0.0, closed_at=1.0, body={"metrics": {"<b>": 1.0}},
            )
        )  # fmt: skip
    page = history._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;x" in page
    assert "&lt;b&gt; 1" in page


def test_without_matplotlib_a_notebook_still_shows_the_table(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "simulation.history.figure", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    page = history._repr_html_()
    assert "<img" not in page
    assert "<table>" in page
    with pytest.raises(HistoryError, match=r"quorate\[simulation\]"):
        history.plot()
