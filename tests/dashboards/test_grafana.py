"""The Grafana dashboard asks Prometheus for meters that a coordinator has, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from client_sdk.protocol.problems import problem
from coordinator.service.observe import Meters
from tests.coordinator.world import World

BOARD = json.loads((Path(__file__).resolve().parents[2] / "dashboards" / "grafana" / "quorate.json").read_text())
OF_PROMETHEUS = {"job", "instance"}
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Each sample of a coordinator that has answered and refused requests, and of which a round has ended."""
    world = World(0)
    meters = Meters(world.coordinator)
    meters.answered("/v1/runs", "GET", 200, 0.1, 10)
    meters.refused(problem("late", "the round has closed").problem)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(meters.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    # Of runs and of ended rounds, of which this coordinator has none.
    return found | {"quorate_runs": {"status"}, "quorate_rounds_total": {"outcome", "kind"}}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_for_what_there_is(expression: str, labels: dict[str, set[str]]) -> None:
    named = re.findall(r"(quorate_\w+)(?:\{([^}]*)\})?", expression)
    assert named
    for name, chosen in named:
        assert name in labels
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", chosen))
        asked |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        assert asked - OF_PROMETHEUS <= labels[name]


def test_every_meter_has_a_panel(labels: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"quorate_\w+", " ".join(EXPRESSIONS)))
    left_out = {name for name in labels if not name.endswith(("_created", "_sum", "_count"))} - shown
    assert left_out == set()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
