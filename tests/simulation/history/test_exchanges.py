"""The exchanges of secure rounds in a history: as values, as a table, and as a panel of the picture."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from simulation import Behaviour, History
from tests.simulation.test_secure_rounds import clients, plan, play


@pytest.fixture(scope="module")
def history() -> History:
    """Rounds of which some are abandoned: too few devices are left for an exchange."""
    asked = plan(2, select=14, goal=12, reserve=0, attempts=1, minimum_cohort=11)
    return play("quantized", data=clients(18), asked=asked, behaviour=Behaviour(dropout=0.3, speed_sigma=1.0), seed=2)


def test_each_secure_round_has_its_exchanges_with_what_they_need(history: History) -> None:
    statuses = {row.status for row in history.rounds}
    assert statuses >= {"committed", "abandoned"}
    for row in history.rounds:
        mine = [one for one in history.exchanges if one.round == row.round]
        assert [one.exchange for one in mine] == ["advertise", "share", "mask", "agree", "unmask"][: len(mine)]
        if row.status == "committed":
            assert len(mine) == 5
            assert all(one.came >= one.needed > 0 for one in mine)
            assert mine[2].came == row.counted
        elif mine:
            assert mine[-1].came < mine[-1].needed
        assert all(earlier.came == later.expected for earlier, later in pairwise(mine))


def test_the_table_has_a_row_for_each(history: History) -> None:
    table = history.to_pandas("exchanges")
    assert list(table.columns) == ["round", "status", "attempt", "exchange", "expected", "came", "needed", "bytes"]
    assert list(table.came) == [one.came for one in history.exchanges]


def test_the_picture_shows_who_came_against_who_was_needed(history: History) -> None:
    axes = next(axes for axes in history.plot().axes if "exchange" in axes.get_title())
    drawn = [list(np.asarray(line.get_ydata())) for line in axes.lines if len(np.asarray(line.get_ydata())) > 2]
    mine = [[one.came for one in history.exchanges if one.round == row.round] for row in history.rounds]
    assert drawn[: len(mine)] == [came for came in mine if len(came) > 2]
    marks = [float(item.get_segments()[0][0][1]) for item in axes.collections if isinstance(item, LineCollection)]
    names = ["advertise", "share", "mask", "agree", "unmask"]
    assert marks == [max(one.needed for one in history.exchanges if one.exchange == name) for name in names]
    assert [label.get_text() for label in axes.get_xticklabels()] == names


def test_a_plain_run_has_neither_exchanges_nor_their_panel() -> None:
    asked = {name: part for name, part in plan(1).items() if name != "secure"}
    history = play("masked", asked=asked)
    assert history.exchanges == ()
    assert len(history.to_pandas("exchanges")) == 0
    assert not any("exchange" in axes.get_title() for axes in history.plot().axes)


def test_the_notebook_says_that_the_picture_has_them(history: History) -> None:
    assert "exchanges of secure rounds" in history._repr_html_()
