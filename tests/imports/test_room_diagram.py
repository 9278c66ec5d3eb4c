"""The map shows the rooms that there are: its diagrams are drawn from the imports, and its tables name every folder."""

from __future__ import annotations

import re

import pytest

from scripts.room_diagram import PACKAGES, PAGE, ROOT, diagram, page, reduced


def test_the_diagrams_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m scripts.room_diagram"
    assert [text.count(f"subgraph {package}\n") for package in PACKAGES] == [1] * len(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tables_name_every_folder(package: str) -> None:
    section = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (mine,) = (text for text in section if text.startswith(f"{package}:"))
    rows = [line.split("|")[1] for line in mine.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert named == folders


def test_an_arrow_that_a_longer_way_replaces_is_left_out() -> None:
    graph = {"a.top": frozenset({"a.middle", "a.low"}), "a.middle": frozenset({"a.low"}), "a.low": frozenset({"b.x"})}
    assert reduced(graph) == {"a.top": ["a.middle"], "a.middle": ["a.low"], "a.low": ["b.x"]}
    drawn = diagram("a", graph)
    assert "a__top --> a__middle" in drawn
    assert "a__top --> a__low" not in drawn
    assert "a__low -.-> b([b])" in drawn


def test_rooms_in_a_circle_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"in a circle: a\.x -> a\.y -> a\.x"):
        reduced({"a.x": frozenset({"a.y"}), "a.y": frozenset({"a.x"})})
