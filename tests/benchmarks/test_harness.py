"""The benchmarks' helper: medians, quartiles, what counts as met, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from benchmarks import aggregation
from benchmarks.harness import Pairs, Row, Spread, interleaved, main
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(3, 2, 4)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)


def test_met_is_null_where_the_quartiles_straddle_the_aim() -> None:
    spread = Spread(3, 2, 4)
    assert [spread.met(aim) for aim in (1.9, 2, 3.9, 4, 5)] == [False, None, None, True, True]
    assert [spread.met(aim, at_least=True) for aim in (1.9, 2, 2.1, 4, 5)] == [True, True, None, None, False]


def test_pairs_are_interleaved_their_order_changes_and_ratios_are_within_pairs() -> None:
    now, calls = [0.0], []

    def spend(name: str, seconds: float) -> None:
        calls.append(name)
        now[0] += seconds

    pairs = interleaved(lambda: spend("a", 3.0), lambda: spend("b", 2.0), 3, clock=lambda: now[0])
    assert "".join(calls) == "ab" + "abbaab"
    assert (pairs.ours, pairs.other) == ((3.0, 3.0, 3.0), (2.0, 2.0, 2.0))
    assert Pairs((2.0, 30.0, 4.0), (1.0, 10.0, 4.0)).ratio.median == 2.0
    assert (pairs.ours_median, pairs.other_median) == (3.0, 2.0)


def two_rows(quick: bool) -> Iterator[Row]:
    yield Row(name="first", value=1.25, unit="s", limit=1.0, ratio=1.25, aim=2.0, met=True)
    yield Row(name="quick" if quick else "full", value=None, unit="s")


def test_the_last_line_of_json_is_one_object_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    main("topic", two_rows, ["--json", "--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == {
        "results": [
            {
                "name": "first",
                "value": 1.25,
                "unit": "s",
                "peer": None,
                "limit": 1.0,
                "ratio": 1.25,
                "aim": 2.0,
                "met": True,
            },
            {
                "name": "quick",
                "value": None,
                "unit": "s",
                "peer": None,
                "limit": None,
                "ratio": None,
                "aim": None,
                "met": None,
            },
        ]
    }


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main("topic", two_rows, [])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["value", "unit", "peer", "limit", "ratio", "aim", "met"]
    assert first.split() == ["first", "1.25", "s", "-", "1", "1.25", "2", "yes"]
    assert second.split() == ["full", "-", "s", "-", "-", "-", "-", "-"]


def test_the_ways_to_sum_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "DIMENSION", 70_000)
    bodies = aggregation.bodies_of(5)
    updates = aggregation.arrays_of(bodies)
    assert aggregation.exact(updates).tobytes() == aggregation.from_bodies(bodies).tobytes()
    assert aggregation.exact(updates) == pytest.approx(aggregation.float_add(updates), abs=1e-7)
    assert 2.0 <= aggregation.memory_models(updates) < 6.5


def test_the_aggregation_benchmark_reports_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aggregation, "DIMENSION", 2_000)
    monkeypatch.setattr(aggregation, "PEERS", {"absent": lambda: __import__("quorate_no_such_peer")})
    main("aggregation", aggregation.measure, ["--quick", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["results"]}
    assert rows["exact_sum_256x1m_vs_float_add"]["aim"] == 1.5
    assert rows["memcpy"]["limit"] > 0
    assert {f"rule_{name}_32x1m_vs_mean" for name in RULES if name != "mean"} <= set(rows)
    assert {f"optimizer_{name}_1m_vs_average" for name in SERVER_OPTIMIZERS if name != "average"} <= set(rows)
    assert rows["exact_sum_vs_absent"]["value"] is None


def test_a_wrong_mean_is_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "DIMENSION", 100)
    right = aggregation.exact
    monkeypatch.setattr(aggregation, "exact", lambda updates: right(updates) * 1.001)
    with pytest.raises(SystemExit, match="wrong results"):
        next(aggregation.measure(True))
