"""The partitions of NIID-Bench against its rules, written a second time as its authors' code is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulation.datasets import fcube
from simulation.partitioning import partition, split_indices

Y = np.repeat(np.arange(10), 120)
SEEDS = range(12)


def dirichlet_by_the_code(y: np.ndarray, parties: int, beta: float, least: int, rng: Any) -> list[list[int]]:
    """``noniid-labeldir`` of NIID-Bench's ``partition_data``, line by line; the generator is ours."""
    min_size, n, k = -1, len(y), len(np.unique(y))
    idx_batch: list[list[int]] = []
    while min_size < least:
        idx_batch = [[] for _ in range(parties)]
        for label in range(k):
            idx_k = rng.permutation(np.where(y == label)[0])
            proportions = rng.dirichlet(np.repeat(beta, parties))
            proportions = np.array(
                [p * (len(idx_j) < n / parties) for p, idx_j in zip(proportions, idx_batch, strict=True)]
            )
            proportions = proportions / proportions.sum()
            cuts = (np.cumsum(proportions) * len(idx_k)).astype(int)[:-1]
            idx_batch = [a + b.tolist() for a, b in zip(idx_batch, np.split(idx_k, cuts), strict=True)]
        min_size = min(len(part) for part in idx_batch)
    return idx_batch


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("beta", "least"), [(0.5, 10), (0.1, 1)])
def test_dirichlet_for_each_label_is_the_codes(seed: int, beta: float, least: int) -> None:
    found = split_indices(Y, 8, "niid-dirichlet", alpha=beta, seed=seed, min_examples=least)
    wanted = dirichlet_by_the_code(Y, 8, beta, least, np.random.Generator(np.random.PCG64(seed)))
    assert [part.tolist() for part in found] == [sorted(part) for part in wanted]


@pytest.mark.parametrize("seed", SEEDS)
def test_quantity_is_the_codes(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    order, parts = rng.permutation(len(Y)), [np.zeros(0)]
    while min(len(part) for part in parts) < 10:
        proportions = rng.dirichlet(np.repeat(0.5, 8))
        parts = np.split(order, (np.cumsum(proportions) * len(Y)).astype(int)[:-1])
    found = split_indices(Y, 8, "niid-quantity", seed=seed, min_examples=10)
    assert [part.tolist() for part in found] == [sorted(part.tolist()) for part in parts]


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_each_client_has_its_label_in_turn_and_others_at_random(each: int) -> None:
    sharers = []
    for seed in SEEDS:
        parts = split_indices(Y, 20, "niid-labels", labels_per_client=each, seed=seed)
        labels = [set(Y[part].tolist()) for part in parts]
        assert {len(one) for one in labels} == {each}
        assert all(client % 10 in one for client, one in enumerate(labels))
        for label in range(10):
            sizes = [int((Y[part] == label).sum()) for part in parts if (Y[part] == label).any()]
            assert sum(sizes) == 120
            assert max(sizes) - min(sizes) <= 1, "a label is divided evenly among its clients"
            sharers.append(len(sizes))
    assert np.mean(sharers) == 2 * each
    if 1 < each < 10:
        assert min(sharers) < 2 * each < max(sharers), "a label has many clients or few, by chance"
        others = [o for seed in SEEDS for o in np.unique(Y[split_indices(Y, 20, "niid-labels", seed=seed)[0]])]
        assert len(set(others)) > 4


def test_what_cannot_be_drawn_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"10,000 draws with alpha=0.001 not one gave each of 50 clients 20 examples"):
        split_indices(Y, 50, "niid-quantity", alpha=0.001, min_examples=20)
    with pytest.raises(ValueError, match="labels_per_client=11, but there are only 10 labels"):
        split_indices(Y, 20, "niid-labels", labels_per_client=11)
    with pytest.raises(ValueError, match="5 clients with 1 of 10 labels each leave labels to nobody"):
        split_indices(Y, 5, "niid-labels", labels_per_client=1)
    with pytest.raises(ValueError, match="size_sigma has no effect with by='niid-quantity'"):
        split_indices(Y, 5, "niid-quantity", size_sigma=1.0)


def test_fcube_gives_each_of_four_clients_two_opposite_octants() -> None:
    data = fcube()
    clients = partition(data, by="natural")
    octants = []
    for name in clients:
        x, y = clients[name].train.x, clients[name].train.y
        assert (x.shape, x.dtype, np.abs(x).max() <= 1) == ((1000, 3), np.float32, True)
        assert np.array_equal(y, np.where(x[:, 0] > 0, 0, 1))
        assert np.bincount(y).tolist() == [500, 500]
        found = {tuple(row) for row in np.sign(x).astype(int).tolist()}
        assert len(found) == 2
        assert {tuple(-value for value in row) for row in found} == found
        octants.append(found)
    assert len(octants) == 4
    assert len(set.union(*octants)) == 8
    test = np.asarray(data.test.x)
    assert (len(test), len({tuple(row) for row in np.sign(test).astype(int).tolist()})) == (1000, 8)
    assert np.array_equal(np.asarray(fcube().train.x), np.asarray(data.train.x))
    assert not np.array_equal(np.asarray(fcube(1).train.x), np.asarray(data.train.x))
