"""Pictures of who holds what: well-formed, true to the numbers, and readable without any library."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.clients import Clients
from simulation.clients.picture import MOST_COLUMNS, MOST_ROWS, PALETTE, _ticks
from simulation.partitioning import partition

NS = "{http://www.w3.org/2000/svg}"
RNG = np.random.default_rng(0)
X = RNG.random((3000, 2))
Y = np.arange(3000) % 10


def bars(path: str) -> list[tuple[float, float, float, float]]:
    """(x, foot, width, height) of each bar of a path."""
    found = re.findall(r"M([\d.e+-]+) ([\d.e+-]+)h([\d.e+-]+)v([\d.e+-]+)h[\d.e+-]+z", path)
    return [(float(x), float(foot), float(wide), -float(up)) for x, foot, wide, up in found]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{NS}text")]


def test_bars_are_as_high_as_what_they_stand_for() -> None:
    """Client 0: 30 of label 0; client 1: 10 of label 0 and 30 of label 1; client 2: 40 of label 1, 20 of them held."""
    zeros, ones = np.zeros(40, int), np.ones(40, int)
    x = np.zeros((40, 1))

    class Parts:
        train, test = (x[:20], ones[:20]), (x[:20], ones[:20])

    clients = Clients.of([(x[:30], zeros[:30]), (x, np.r_[zeros[:10], ones[:30]]), Parts()])
    root = ET.fromstring(str(clients.draw()))
    paths = {node.get("class") or node.get("fill"): bars(node.get("d", "")) for node in root.iter(f"{NS}path")}
    train, held = paths["s"], paths["s2"]
    assert [bar[3] / train[1][3] for bar in train] == pytest.approx([30 / 40, 1, 20 / 40], rel=1e-3)
    assert len(held) == 1
    assert held[0][:2] == pytest.approx((train[2][0], train[2][1] - train[2][3]))
    zero, one = paths[f"#{PALETTE[0]}"], paths[f"#{PALETTE[1]}"]
    assert [bar[3] / zero[0][3] for bar in zero] == pytest.approx([1, 1 / 4], rel=1e-3)
    assert [bar[3] / zero[0][3] for bar in one] == pytest.approx([3 / 4, 1], rel=1e-3)
    assert one[0][1] == pytest.approx(zero[1][1] - zero[1][3])
    assert [title.text for title in root.iter(f"{NS}title")] == [
        "client-0: 30 to train on\n0: 30",
        "client-1: 40 to train on\n1: 30\n0: 10",
        "client-2: 20 to train on, 20 held out\n1: 40",
    ]


@given(
    clients=st.integers(1, 250),
    labels=st.integers(1, 60),
    by=st.sampled_from(["iid", "quantity", "noise"]),
    held_out=st.sampled_from([0.0, 0.3]),
    by_size=st.booleans(),
)
@settings(max_examples=25)
def test_every_picture_is_xml_and_keeps_within_its_frame(
    clients: int, labels: int, by: Any, held_out: float, by_size: bool
) -> None:
    made = partition((X, np.arange(3000) % labels), clients, by, held_out=held_out)
    root = ET.fromstring(str(made.draw(by_size=by_size)))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for node in root.iter(f"{NS}path"):
        for x, foot, wide, up in bars(node.get("d", "")):
            assert x >= 0
            assert x + wide <= width
            assert foot - up >= 0
            assert foot <= height
            assert wide > 0
    lines: dict[float, list[tuple[float, float]]] = {}
    for node in root.iter(f"{NS}text"):
        x, y, wide = float(node.get("x", "0")), float(node.get("y", "0")), 5 * len(node.text or "")
        assert 0 < y < height
        start = x - wide if node.get("text-anchor") == "end" else x
        assert start >= 0
        assert start + wide <= width
        lines.setdefault(y, []).append((start, start + wide))
    for spans in lines.values():
        assert all(left[1] <= right[0] for left, right in pairwise(sorted(spans)))
    assert len(list(root.iter(f"{NS}title"))) == min(clients, MOST_COLUMNS)


def test_many_clients_are_sampled_and_the_caption_says_so() -> None:
    made = partition((X, Y), 1000, "iid")
    assert "One column a client, client-0000 to client-0999: 100 of 1,000, at even distances." in texts(
        str(made.draw())
    )
    numbers = [made.number(column.label) for column in made.view(by_size=False).columns]
    assert len(numbers) == 100
    assert all(9 <= after - before <= 11 for before, after in pairwise(numbers))
    few = texts(str(partition((X, Y), 100, "iid").draw()))
    assert "One column a client, client-000 to client-099." in few


def test_uneven_clients_stand_by_size() -> None:
    made = partition((X, Y), 30, "quantity")
    sizes = [column.train for column in made.view(by_size=True).columns]
    assert sizes == sorted(made.sizes.tolist(), reverse=True)
    assert made.draw().svg == made.draw(by_size=True).svg != made.draw(by_size=False).svg


def test_too_many_labels_are_rows_the_rarest_together() -> None:
    """Label k, of 0 to 59, has 1 + k examples: the 25 most frequent are 35 to 59."""
    y = np.repeat(np.arange(60), np.arange(1, 61))
    view = partition((np.zeros((len(y), 1)), y), 4, "iid").view(by_size=False)
    assert view.labels == (*map(str, range(35, 60)), "others")
    assert len(view.labels) == MOST_ROWS
    assert sum(column.counts[-1] for column in view.columns) == 35 * 36 / 2
    assert sum(sum(column.counts) for column in view.columns) == len(y)


def test_labels_have_their_names_and_nothing_can_break_out_of_the_text() -> None:
    class Named:
        x, y, classes = X, Y % 3, ["<b>&", "a\x00b", "\n"]

    svg = str(partition(Named(), 3, "iid").draw())
    assert {"<b>&", "a·b", "⏎"} <= set(texts(svg))
    users = ["</svg><script>"] * 1500 + ["B"] * 1500
    titles = [
        node.text or ""
        for node in ET.fromstring(str(partition((X, Y), by="natural", users=users).draw())).iter(f"{NS}title")
    ]
    assert any(title.startswith("client-0 (</svg><script>): 1,500") for title in titles)


def test_without_labels_there_are_sizes_and_noise() -> None:
    words = texts(str(partition((X, X), 5, "noise").draw()))
    assert "examples" in words
    assert "noise" in words
    assert "labels" not in words


def test_pictures_are_written_shown_and_alike(tmp_path: Path) -> None:
    made = partition((X, Y), 5)
    picture = made.draw(tmp_path / "held.svg")
    assert (tmp_path / "held.svg").read_text() == picture.svg + "\n" == picture._repr_svg_() + "\n"
    assert picture.svg == partition((X, Y), 5).draw().svg
    html = made._repr_html_()
    assert html.startswith(f"<p>{made.summary()}</p><svg ")
    with pytest.raises(ValueError, match=r"held\.png should end in \.svg"):
        made.draw(tmp_path / "held.png")


@given(st.one_of(st.integers(1, 10**9), st.floats(1e-6, 1e6)), st.integers(1, 5))
def test_ticks_are_few_round_and_reach_the_top(most: float, parts: int) -> None:
    ticks = _ticks(most, parts)
    assert ticks[0] == 0
    assert len(ticks) <= parts + 1
    assert ticks[-1] >= most * (1 - 1e-6)
    assert ticks[-2] < most
    assert f"{ticks[1]:.0e}"[0] in "125"
    assert ticks[1] == pytest.approx(float(f"{ticks[1]:.0e}"))


def test_examples_are_counted_in_whole_numbers_and_one_client_is_called_by_its_name() -> None:
    alone = texts(str(Clients.of({"ward-7": (X[:1], X[:1])}).draw()))
    assert "One column: ward-7." in alone
    assert {"0", "1"} <= set(alone)
    assert "0.5" not in alone
