"""All-reduce on send and receive: each way gives the library's sum, and sends exactly what its formula says."""

from __future__ import annotations

import re
from functools import partial
from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from client_sdk.learning.group import Group
from examples.collectives import __main__ as command
from examples.collectives import all_reduce as ways
from examples.collectives import counts
from examples.collectives.transport import Counting, Torch, available, counted
from tests.coordinator.datacenter.ranks import together
from tests.rotating import taking_turns

README = Path(__file__).parents[2] / "examples" / "collectives" / "README.md"


def marked(rank: int, length: int) -> np.ndarray:
    """In base 9 the rank's digit is 1: the sum of up to 8 ranks shows how often each was counted at each element. The
    lowest digits are the element's place, so that a part at the wrong place is seen too."""
    return 9 ** (rank + 3) + np.arange(length) % 90


def sums(done: list[Counting]) -> tuple[int, int, float]:
    return sum(rank.messages for rank in done), sum(rank.bytes for rank in done), max(rank.clock for rank in done)


@pytest.mark.parametrize("p", range(2, 9))
def test_each_way_gives_the_sum_and_sends_what_its_formula_says(p: int) -> None:
    for name, (way, count) in counts.everything(p).items():
        for length in (1, 103):
            inputs = [marked(rank, length) for rank in range(p)]
            results, done = counted(way, inputs)
            assert all(np.array_equal(result, sum(inputs)) for result in results), (name, length)
            messages, sent, rounds = sums(done)
            expected = count(p, 8 * length, 8)
            assert (messages, sent) == (expected.messages, expected.bytes), (name, length)
            assert expected.rounds in (None, rounds), (name, length)
            assert all(np.array_equal(mine, marked(rank, length)) for rank, mine in enumerate(inputs)), name
        results, _ = counted(way, [np.random.default_rng(rank).normal(size=103) for rank in range(p)])
        assert len({result.tobytes() for result in results}) == 1, f"{name}: every rank has the same bits"


@pytest.mark.parametrize(("p", "length"), [(2, 0), (5, 0), (16, 5), (16, 48), (13, 77)])
def test_larger_groups_and_lengths_that_leave_parts_empty(p: int, length: int) -> None:
    for name, (way, count) in counts.everything(p).items():
        if not re.search(r", (\d+) a", name) or ", 4 a" in name:
            inputs = [np.full(length, 3 * rank + 1) for rank in range(p)]
            results, done = counted(way, inputs)
            assert all(np.array_equal(result, sum(inputs)) for result in results), name
            expected = count(p, 8 * length, 8)
            assert sums(done)[:2] == expected[:2], name
            assert expected.rounds in (None, sums(done)[2]), name


@pytest.mark.parametrize("p", [6, 7, 8])
def test_no_rank_sends_more_than_its_formula_says(p: int) -> None:
    n = 8 * 103
    parts = [len(ways.part(np.arange(103), rank, p)) * 8 for rank in range(p)]
    inputs = [marked(rank, 103) for rank in range(p)]
    done = {name: counted(way, inputs)[1] for name, (way, _) in counts.everything(p).items()}
    assert [rank.bytes for rank in done["star"]] == [(p - 1) * n] + (p - 1) * [n]
    assert [rank.bytes for rank in done["ring"]] == [2 * n - parts[r] - parts[(r + 1) % p] for r in range(p)]
    assert [rank.bytes for rank in done["direct"]] == [n - part + (p - 1) * part for part in parts]
    assert {rank.messages for name in ("ring", "direct") for rank in done[name]} == {2 * (p - 1)}
    assert done["tree"][0].bytes == 3 * n
    assert max(rank.bytes for rank in done["two trees"]) <= 2 * n + 16  # halves of 103 differ by an element
    assert max(rank.messages for rank in done["two trees"]) <= 4
    if p == 8:
        assert {rank.bytes for rank in done["butterfly"]} == {3 * n}
        assert {rank.messages for rank in done["halving-doubling"]} == {2 * 3}
        assert max(rank.bytes for rank in done["halving-doubling"]) < 2 * n


@pytest.mark.parametrize("local", [2, 4])
def test_a_machine_sends_little_over_the_links_between_machines(local: int) -> None:
    p, m, n = 8, 8 // local, 8 * 64
    _, done = counted(partial(ways.hierarchical, local=local), [marked(rank, 64) for rank in range(p)])
    for first in range(0, p, local):
        machine = range(first, first + local)
        assert sum(done[r].sent[to] for r in machine for to in range(p) if to not in machine) == 2 * (m - 1) * n // m


@pytest.mark.parametrize("p", range(2, 33))
def test_a_rank_is_inner_in_one_of_two_trees(p: int) -> None:
    inner = {ways.balanced(rank, p) for rank in range(1, p)}
    mirrored = {p - 1 - rank if p % 2 == 0 else (rank - 1) % p for rank in inner}
    assert len(inner & mirrored) == p % 2
    for rank in range(1, p):
        depth = 0
        while rank:
            rank, depth = ways.balanced(rank, p), depth + 1
        assert depth <= counts.log2(p)


def test_times_are_those_of_the_literature() -> None:
    """A message of x bytes takes 3 + x/2; 8 ranks, 2 of them a machine, and 64 elements: all cuts are even."""
    p, alpha, beta, local = 8, 3, 0.5, 2
    n, m, steps = 8 * 64, p // local, log2(p)
    found = {
        name: max(rank.clock for rank in counted(way, [np.arange(64)] * p, alpha, beta)[1])
        for name, (way, _) in counts.everything(p).items()
    }
    assert found["star"] == 2 * (p - 1) * (alpha + n * beta)
    assert found["ring"] == found["direct"] == 2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta
    assert found["tree"] == 2 * steps * (alpha + n * beta)
    assert found["butterfly"] == steps * (alpha + n * beta)
    assert found["halving-doubling"] == 2 * steps * alpha + 2 * (p - 1) / p * n * beta
    assert found[f"hierarchical, {local} a machine"] == (
        2 * (local - 1 + m - 1) * alpha + (2 * (local - 1) / local + 2 * (m - 1) / p) * n * beta
    )


def test_a_server_that_trains_nothing_gets_a_message_of_each_rank() -> None:
    """The CPU of a machine as the server of its GPUs: one more rank, with zeros."""
    inputs = [np.zeros(5, np.int64), *(marked(rank, 5) for rank in range(4))]
    results, done = counted(ways.star, inputs)
    assert all(np.array_equal(result, sum(inputs)) for result in results)
    assert sums(done)[:2] == (2 * 4, 2 * 4 * 5 * 8)


def entries(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Between none and seven of a hundred places, some of them of other ranks too."""
    places = np.unique(np.random.default_rng(rank).integers(0, 100, 7 * rank % 15))
    return places, 9.0**rank + places


def dense(sparse: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    full = np.zeros(100)
    full[sparse[0]] = sparse[1]
    return full


@pytest.mark.parametrize("p", range(2, 9))
def test_sparse_arrays_are_added_at_their_places(p: int) -> None:
    inputs = [entries(rank) for rank in range(p)]
    results, done = counted(ways.sparse, inputs)
    for places, values in results:
        assert np.array_equal(places, np.unique(np.concatenate([mine for mine, _ in inputs])))
        assert np.array_equal(dense((places, values)), sum(dense(mine) for mine in inputs))
    assert sums(done) == counts.sparse(p, sum(len(places) for places, _ in inputs), 8)


def test_what_cannot_be_done_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"^7 ranks do not fill machines of 2: each part needs a rank on every machine\.$"
    ):
        counted(partial(ways.hierarchical, local=2), [np.arange(3)] * 7)
    for backend, why in {
        "mpi": "built without MPI",
        "ccl": "oneccl_bindings_for_pytorch is not installed",
        "nccl": "joins GPUs alone",
        "pigeon": "no backend 'pigeon'",
    }.items():
        with pytest.raises(ValueError, match=why):
            available(backend)
    assert available("gloo") == "gloo"


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command.count(6, 1000)
    assert capsys.readouterr().out in README.read_text("utf-8")


def test_the_page_names_functions_that_torch_has() -> None:
    named = re.findall(r"`dist\.(\w+)", README.read_text("utf-8"))
    assert len(named) > 8
    assert [name for name in named if not hasattr(dist, name)] == []


def all_ways(group: Group) -> list[str]:
    """What is not as the library's, over Gloo."""
    wrong, t = [], Torch()
    places, values = (torch.from_numpy(part) for part in entries(t.rank))
    tensor = torch.sparse_coo_tensor(places[None], values, (100,))
    dist.all_reduce(tensor)
    if not np.array_equal(dense(ways.sparse(t, entries(t.rank))), tensor.to_dense().numpy()):
        wrong.append("sparse")
    for mine in (marked(t.rank, 1), marked(t.rank, 103), np.random.default_rng(t.rank).random(103)):
        expected = torch.from_numpy(mine.copy())
        dist.all_reduce(expected)
        for name, (way, _) in counts.everything(t.size).items():
            sum_ = way(t, mine)
            close = np.abs(sum_ - expected.numpy()) <= (0 if mine.dtype == np.int64 else 1e-15) * expected.numpy()
            if not close.all() or sum_.dtype != mine.dtype:
                wrong.append(f"{name}, {mine.dtype}, {len(mine)}")
    t.close()
    return wrong


@pytest.mark.slow
@pytest.mark.datacenter
@pytest.mark.parametrize("p", taking_turns(*range(2, 9)))
def test_each_way_gives_what_the_library_gives_over_gloo(p: int) -> None:
    assert together(p, all_ways) == [[]] * p
