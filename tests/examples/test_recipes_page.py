"""docs/recipes.md is what its measurements say: no number on it is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.recipe_curves.page import ALGORITHMS, IMAGES, PAGE, PICTURES, RESULTS, StoredCurve, page

DOCS = Path(__file__).parents[2] / "docs"


def kept() -> dict[str, Any]:
    return json.loads(RESULTS.read_text("utf-8"))


def compared() -> dict[str, Any]:
    return json.loads(ALGORITHMS.read_text("utf-8"))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(kept(), compared()), "python -m scripts.recipe_curves --page writes it"


def test_every_group_was_measured_and_drawn() -> None:
    assert {found["group"] for found in kept().values()} == set(PICTURES)
    for group in PICTURES:
        assert (IMAGES / f"recipes-{group}.svg").read_text("utf-8").rstrip().endswith("</svg>")
        assert f"images/recipes-{group}.svg" in PAGE.read_text("utf-8")


def test_a_measured_curve_is_on_the_page() -> None:
    line = {"versions": [0, 1, 2, 3, 4, 5], "values": [0.1, 0.5, 0.6, 0.6, 0.7, 0.8]}
    curve = StoredCurve({"evaluator": line})
    assert (curve.rounds, curve.final(), curve.last()) == (5, "80.0 %", "80.0 %")
    long = StoredCurve({"evaluator": {"versions": list(range(30)), "values": [0.1] * 25 + [0.5, 0.6, 0.6, 0.7, 0.8]}})
    assert (long.final(), long.last()) == ("64.0 %", "80.0 %")
    assert (curve.reached(0.75), curve.reached(0.9)) == ("4", "–"), "4.5, to the even whole"


def test_what_was_measured_has_a_setting_and_a_seed() -> None:
    for name, found in kept().items():
        assert found["seed"] == 0, name
        assert found["setting"]["rounds"] >= len(found["evaluator"]["versions"]) - 1, name
        assert found["cpu_s"] > 0, name


def test_each_algorithm_was_measured_with_each_seed() -> None:
    from scripts.recipe_curves.algorithms import SCENES, SEEDS

    assert {key: (found["what"], [*found["methods"]]) for key, found in compared().items()} == {
        key: (scene.what, [scene.names, *scene.methods]) for key, scene in SCENES.items()
    }
    lines = [line for found in compared().values() for line in found["methods"].values()]
    assert all(len(line["accuracy"]) == len(SEEDS) == len(set(line["accuracy"])) for line in lines)
