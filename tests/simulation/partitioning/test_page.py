"""docs/partitioning.md has every method, with its options' defaults and an existing picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from scripts import partition_pictures
from simulation.datasets import Dataset, LabelledExamples
from simulation.partitioning import By, label_skew, split_indices
from simulation.partitioning.indices import DEFAULTS

PAGE = Path(__file__).parents[3] / "docs" / "partitioning.md"


def sections() -> dict[str, str]:
    """Way -> what the page says of it."""
    pieces = re.split(r"^## `([\w-]+)`:", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


@pytest.mark.parametrize("way", get_args(By))
def test_every_way_has_its_section_defaults_and_picture(way: str) -> None:
    message = sections()[way]
    for name, value in DEFAULTS[way].items():
        if name == "size_sigma":
            assert "`size_sigma`" in message or way == "noise"
        elif name == "noise_sigma":
            assert "`noise_sigma * (k + 1) / K`" in message
        else:
            assert f"`{name}` ({value:g})" in message
    root = ET.parse(PAGE.parent / "images" / f"partition-{way}.svg").getroot()
    assert root.get("aria-label", "").startswith("Who holds what: ")
    assert f"](images/partition-{way}.svg)" in message


def test_the_page_has_no_other_method() -> None:
    assert set(sections()) == set(get_args(By))


def test_the_pages_probabilities_are_those_of_the_formula() -> None:
    found = {100.0: 0.10, 0.3: 0.33, 0.01: 0.92}
    assert {alpha: round((alpha + 1) / (10 * alpha + 1), 2) for alpha in found} == found
    rng = np.random.default_rng(0)
    shares_C = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    for alpha in found:
        mixtures = rng.dirichlet(alpha * 5 * shares_C, 40_000)
        wanted = (alpha * 5 * float(np.sum(shares_C**2)) + 1) / (alpha * 5 + 1)
        assert float(np.mean(np.sum(mixtures**2, axis=1))) == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(("clients", "message"), [(100, {100.0: 0.10, 0.3: 0.37, 0.01: 0.91}), (1000, {0.3: 0.33})])
def test_few_clients_differ_from_the_formula_since_labels_are_used_up(
    clients: int, message: dict[float, float]
) -> None:
    """Of balanced labels; the page's numbers are MNIST's."""
    y = np.repeat(np.arange(10), 6000)
    for alpha, frequency in message.items():
        counts = [np.bincount(y[part], minlength=10) for part in split_indices(y, clients, alpha=alpha, seed=1)]
        same = [float((one * (one - 1)).sum() / (one.sum() * (one.sum() - 1))) for one in counts]
        assert float(np.mean(same)) == pytest.approx(frequency, abs=0.02)


def test_the_script_draws_every_picture_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.tile(np.arange(10), 60)
    users = np.arange(600, dtype=np.int32) // 60
    examples = LabelledExamples(np.zeros((600, 2), np.float32), y, users)
    names = tuple(f"user-{number}" for number in range(10))
    data = Dataset("ten", examples, examples, tuple("0123456789"), licence="", citation="", user_names=names)
    monkeypatch.setattr(partition_pictures, "load", lambda name: data)
    drawn = partition_pictures.draw(tmp_path)
    assert {path.name for path in drawn} == {f"partition-{way}.svg" for way in get_args(By)}
    assert all(ET.parse(path).getroot().tag.endswith("svg") for path in drawn)


def test_one_label_each_of_many_is_a_skew_of_almost_one() -> None:
    y = np.repeat(np.arange(50), 10)
    assert label_skew(y, split_indices(y, 50, "labels", labels_per_client=1)) == pytest.approx(0.98)
