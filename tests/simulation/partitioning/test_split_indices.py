"""Partitions are exact, seeded, as large as asked, and as uneven as alpha says."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.partitioning import By, label_skew, split_indices

TEN_LABELS = np.repeat(np.arange(10), 600)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Any labels (also a single one, also far apart) and any arguments that can be met."""
    kinds = draw(st.lists(st.integers(-5, 1000), min_size=1, max_size=8, unique=True))
    labels = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=200))
    clients = draw(st.integers(1, 30))
    by = draw(st.sampled_from(["iid", "dirichlet", "shards", "labels", "quantity", "noise"]))
    _, counts = np.unique(labels, return_counts=True)
    room = np.minimum(counts, clients).sum()
    met = [each for each in range(1, len(counts) + 1) if len(counts) <= clients * each <= room]
    by = "iid" if by == "labels" and not met else by
    case: dict[str, Any] = {
        "labels": labels,
        "clients": clients,
        "by": by,
        "seed": draw(st.integers(0, 2**63)),
        "min_examples": 0,
    }
    if by not in ("shards", "labels"):
        case["min_examples"] = draw(st.integers(0, len(labels) // clients))
    if by in ("iid", "dirichlet", "noise") or (by == "quantity" and draw(st.booleans())):
        case["size_sigma"] = draw(st.floats(0, 5))
    if by == "dirichlet" or (by == "quantity" and "size_sigma" not in case):
        case["alpha"] = draw(st.floats(1e-6, 1e6))
    if by == "shards":
        case["shards_per_client"] = draw(st.integers(1, 5))
    if by == "labels":
        case["labels_per_client"] = draw(st.sampled_from(met))
    return case


@given(cases())
@settings(max_examples=150, deadline=None)
def test_every_example_belongs_to_exactly_one_client_and_none_gets_too_few(case: dict[str, Any]) -> None:
    parts = split_indices(**case)
    assert len(parts) == case["clients"]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(case["labels"])))
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) >= case["min_examples"]
        assert np.all(np.diff(part) > 0)
        if case["by"] == "labels":
            assert len({case["labels"][i] for i in part}) == case["labels_per_client"]


@pytest.mark.slow
@given(cases())
@settings(max_examples=50, deadline=None)
def test_equal_arguments_give_equal_partitions(case: dict[str, Any]) -> None:
    for once, again in zip(split_indices(**case), split_indices(**case), strict=True):
        np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("by", ["iid", "dirichlet", "shards", "labels", "quantity"])
def test_the_seed_matters_and_the_global_generator_does_not(by: By) -> None:
    np.random.seed(1)  # what is tested: this must change nothing
    first = split_indices(TEN_LABELS, 20, by, seed=7)
    np.random.seed(2)
    assert all(map(np.array_equal, first, split_indices(TEN_LABELS, 20, by, seed=7)))
    assert not all(map(np.array_equal, first, split_indices(TEN_LABELS, 20, by, seed=8)))


def test_golden_partition() -> None:
    """A recorded run can be split again alike: a change of these draws must be intended, and in the changelog."""
    parts = split_indices(TEN_LABELS, 40, alpha=0.3, seed=11, min_examples=10, size_sigma=0.5)
    digest = hashlib.sha256(b"".join(part.astype("<i8").tobytes() + b"|" for part in parts)).hexdigest()
    assert digest == "3dafa352547cb6b23fb3415df890f66ad406a47ee63f03c586210b98164f0ad9"


def test_skew_grows_as_alpha_falls() -> None:
    for seed in range(3):
        skews = [
            label_skew(TEN_LABELS, split_indices(TEN_LABELS, 40, alpha=alpha, seed=seed))
            for alpha in (100.0, 10.0, 1.0, 0.3, 0.1, 0.01)
        ]
        assert skews == sorted(skews)
        assert skews[0] < 0.12
        assert skews[-1] > 0.8


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0, 10.0])
def test_dirichlet_mixtures_have_the_expected_purity(alpha: float) -> None:
    """For q ~ Dir(a, ..., a) over C labels, E[sum_c q_c^2] = (a + 1) / (C a + 1).

    Of a client's n_k examples, two different ones share a label with just that probability (an unbiased estimate). The
    exactness of the partition disturbs it a little, by the used-up labels of late clients: hence the tolerance.
    """
    y = np.repeat(np.arange(10), 6000)
    estimates = []
    for seed in range(5):
        for part in split_indices(y, 400, alpha=alpha, seed=seed):
            counts = np.bincount(y[part], minlength=10)
            estimates.append((counts * (counts - 1)).sum() / (len(part) * (len(part) - 1)))
    assert np.mean(estimates) == pytest.approx((alpha + 1) / (10 * alpha + 1), rel=0.12)


def test_rare_labels_keep_their_place_in_the_whole() -> None:
    """The concentration follows the labels' shares: an even partition gives each client its part of a rare label."""
    y = np.concatenate([np.zeros(9000, int), np.ones(1000, int)])
    shares = [y[part].mean() for part in split_indices(y, 20, alpha=1e4)]
    assert np.mean(shares) == pytest.approx(0.1)
    assert max(shares) < 0.16


def test_sizes_are_equal_unless_asked_otherwise() -> None:
    y = TEN_LABELS[:5003]
    ways: tuple[By, ...] = ("iid", "dirichlet")
    for by in ways:
        assert {len(part) for part in split_indices(y, 40, by)} == {125, 126}
        uneven = sorted(len(part) for part in split_indices(y, 40, by, size_sigma=1.0, min_examples=20))
        assert uneven[0] >= 20
        assert uneven[-1] > 3 * uneven[0]


def test_shards_are_two_cuts_of_the_labels_in_order() -> None:
    """100 clients, 200 shards of 30 within 600 of a label: each client sees one label or two, of 30 or 60 examples."""
    parts = split_indices(TEN_LABELS, 100, "shards")
    for part in parts:
        counts = np.bincount(TEN_LABELS[part], minlength=10)
        assert counts[counts > 0].tolist() in ([60], [30, 30])
    assert len({tuple(np.unique(TEN_LABELS[part])) for part in parts}) > 20


def test_clients_have_as_many_labels_as_asked_and_labels_as_many_clients_as_each_other() -> None:
    """100 clients with 3 of 10 labels each: every label has 30 clients, which share its 600 examples: 20 each."""
    parts = split_indices(TEN_LABELS, 100, "labels", labels_per_client=3)
    for part in parts:
        counts = np.bincount(TEN_LABELS[part], minlength=10)
        assert counts[counts > 0].tolist() == [20, 20, 20]
    assert len({tuple(np.unique(TEN_LABELS[part])) for part in parts}) > 40


def test_a_label_with_few_examples_has_as_many_clients_as_examples() -> None:
    """Labels of 3, 100 and 100 examples, 20 clients with 2 each: 3 clients have label 0, of 40 places 37 are left."""
    y = np.repeat([0, 1, 2], [3, 100, 100])
    kinds = [set(y[part].tolist()) for part in split_indices(y, 20, "labels", labels_per_client=2)]
    assert all(len(kind) == 2 for kind in kinds)
    assert sorted(sum(label in kind for kind in kinds) for label in range(3)) == [3, 18, 19]


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_quantity_shares_have_the_variance_of_dirichlet(alpha: float) -> None:
    """For q ~ Dir(a, ..., a) over K clients, sum_k E[q_k^2] = (a + 1) / (K a + 1); labels stay alike."""
    y = np.tile(np.arange(10), 6000)
    squares = []
    for seed in range(60):
        parts = split_indices(y, 50, "quantity", alpha=alpha, seed=seed, min_examples=0)
        squares.append(sum((len(part) / len(y)) ** 2 for part in parts))
        assert label_skew(y, parts) < 0.06
    assert np.mean(squares) == pytest.approx((alpha + 1) / (50 * alpha + 1), rel=0.1)


def test_skew_by_hand() -> None:
    assert label_skew([0, 0, 1, 1], [np.array([0, 1]), np.array([2, 3])]) == 0.5
    assert label_skew([0, 0, 1, 1], [np.array([0, 2]), np.array([1, 3])]) == 0.0
    # client 0: (1, 0) against (0.6, 0.4), distance 0.4, with weight 0.6; client 1: distance 0.6, with weight 0.4
    assert label_skew([0, 0, 0, 1, 1], [np.array([0, 1, 2]), np.array([3, 4])]) == pytest.approx(0.6 * 0.4 + 0.4 * 0.6)
    with pytest.raises(ValueError, match="no client holds"):
        label_skew([0], [np.array([], int)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"by": "random"}, "known are: iid, dirichlet, shards, labels, quantity, noise, natural, niid-labels"),
        ({"clients": 0}, "at least one client"),
        ({"clients": 7, "min_examples": 2}, "10 examples cannot give each of 7 clients 2"),
        ({"min_examples": -1}, "0 or more"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"clients": 2.0}, "clients=2.0 must be a whole number"),
        ({"by": "dirichlet", "alpha": 0.0}, "alpha=0.0"),
        ({"by": "dirichlet", "alpha": float("nan")}, "alpha=nan"),
        ({"by": "quantity", "alpha": float("inf")}, "alpha=inf"),
        ({"by": "quantity", "alpha": 1.0, "size_sigma": 1.0}, "give one of them"),
        ({"alpha": 1.0}, "alpha has no effect with by='iid'; it applies to dirichlet, quantity"),
        ({"by": "dirichlet", "shards_per_client": 2}, "it applies to shards"),
        ({"by": "shards", "labels_per_client": 2}, "it applies to labels"),
        ({"by": "shards", "shards_per_client": 0}, "shards_per_client=0 must be 1 or more"),
        ({"by": "labels", "labels_per_client": 11}, "there are only 10 labels"),
        ({"by": "labels", "labels_per_client": 3}, "3 clients with 3 of 10 labels each leave labels to nobody"),
        ({"by": "labels", "labels_per_client": 4}, "too few examples for 3 clients with 4 labels each"),
        ({"by": "natural"}, "users="),
        ({"size_sigma": -0.1}, "size_sigma=-0.1"),
        ({"by": "shards", "size_sigma": 1.0}, "size_sigma has no effect with by='shards'"),
        ({"by": "shards", "clients": 3, "min_examples": 3}, "only 2 examples"),
        ({"labels": [0.5, 1.0]}, "labels must be integers"),
        ({"labels": [[1, 2], [3, 4]]}, "labels must be integers"),
        ({"labels": []}, "labels must be integers"),
        ({"labels": np.empty(0, int)}, "no examples"),
    ],
)
def test_arguments_that_cannot_be_met(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"labels": list(range(10)), "clients": 3, "by": "iid"} | change
    with pytest.raises(ValueError, match=words):
        split_indices(**arguments)
