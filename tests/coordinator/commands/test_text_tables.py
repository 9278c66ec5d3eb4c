"""Tables of commands: plain lines in a pipe, and on a terminal of whatever width no number is cut off."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from client_sdk.protocol.operators import Funnel, RoundView
from coordinator.commands.tables import TextTable, drawn, rounds_table, show_table


def lines(what: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False, highlight=False).print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def rounds() -> list[RoundView]:
    funnel = Funnel(waiting=400, selected=300, training=290, reported=256, late=3, dropped=41)
    why = "256 devices reported, and one of them said [bold]nothing[/bold] of interest"
    return [
        RoundView(round=1, status="committed", opened_at=1.0, closed_at=13.5, funnel=funnel, bytes_in=7_300_000),
        RoundView(round=2, status="abandoned", reason=why, opened_at=14.0, closed_at=20.0, funnel=funnel),
    ]


def test_a_wide_terminal_shows_every_column() -> None:
    found = lines(drawn(rounds_table(rounds()), 200), 200)
    assert found[0].split() == [
        "round", "kind", "status", "selected", "reported", "late", "dropped", "withdrawn", "refused",
        "seconds", "MB", "in", "why",
    ]  # fmt: skip
    assert found[1].split() == ["1", "federated", "committed", "300", "256", "3", "41", "0", "0", "12.5", "7.3"]
    assert found[2].endswith("[bold]nothing[/bold] of interest"), "text of others is no markup"
    assert len(found) == 3


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_one_cuts_no_number_and_says_what_it_leaves_out(width: int) -> None:
    table = rounds_table(rounds())
    found = lines(drawn(table, width), width)
    shown = found[0].split()
    text = " ".join(" ".join(found).split())
    assert all(len(line) <= width for line in found)
    assert "…" not in text
    for name, value in (("reported", "256"), ("selected", "300")):
        assert name in shown
        assert value in found[1].split()
    left_out = [name for name in table.columns if name not in (*shown, "MB in", "why")]
    for name in left_out:
        assert name in text.partition("Not shown on")[2]
    assert "withdrawn" in left_out or width >= 100
    assert "of interest" in text


def test_in_a_pipe_the_lines_are_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(TextTable(("run", "why"), [("mnist", "x" * 300), ("a", None)], "Nothing.", words="why", least=("run",)))
    show_table(TextTable(("run",), [], "Nothing."))
    assert capsys.readouterr().out == f"run    why\nmnist  {'x' * 300}\na      -\nNothing.\n"


def test_what_devices_write_moves_no_cursor() -> None:
    found = lines(drawn(TextTable(("device", "label"), [("d", "\x1b[2Jward\n7")], "", words="label"), 80), 80)
    assert found[1].split() == ["d", r"\x1b[2Jward\n7"]
