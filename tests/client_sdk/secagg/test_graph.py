"""The mask graph: alike everywhere, regular, symmetric, in an order that depends on every nonce and favours nobody."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.graph import MaskGraph, ring_order
from tests.client_sdk.secagg.attempt import digest

FROZEN = [5, 2, 7, 6, 1, 0, 4, 3]


def nonces(n: int, seed: object = 0) -> list[bytes]:
    return [digest(f"{seed} {place}") for place in range(n)]


@given(n=st.integers(4, 60), seed=st.integers(0, 1000), data=st.data())
def test_a_ring_is_regular_symmetric_and_without_loops(n: int, seed: int, data: st.DataObject) -> None:
    degree = 2 * data.draw(st.integers(1, (n - 2) // 2))
    graph = MaskGraph.of(degree, nonces(n, seed))
    for device in range(n):
        near = graph.neighbours(device)
        assert len(near) == len(set(near)) == degree
        assert list(near) == sorted(near)
        assert device not in near
        assert all(device in graph.neighbours(other) for other in near)
        assert graph.holders(device) == near


def test_a_complete_graph_is_everybody_and_keeps_its_own_share() -> None:
    graph = MaskGraph.of(4, nonces(5))
    assert graph.neighbours(2) == (0, 1, 3, 4)
    assert graph.holders(2) == (0, 1, 2, 3, 4)


def test_the_order_is_frozen() -> None:
    assert ring_order(nonces(8)) == FROZEN
    assert MaskGraph.of(4, nonces(8)).neighbours(FROZEN[0]) == tuple(
        sorted([FROZEN[1], FROZEN[2], FROZEN[-1], FROZEN[-2]])
    )


def test_every_nonce_counts() -> None:
    base = nonces(30)
    order = ring_order(base)
    assert sorted(order) == list(range(30))
    for place in range(30):
        other = [*base[:place], digest("another"), *base[place + 1 :]]
        assert ring_order(other) != order
    assert ring_order(base[::-1]) != order


def test_every_order_is_as_likely() -> None:
    """6000 orders of 4 devices: 24 orders, 250 each on average; chi-squared of 23 degrees stays below 60 (p = 4e-5)."""
    counts = Counter(tuple(ring_order(nonces(4, seed))) for seed in range(6000))
    assert len(counts) == 24
    assert sum((count - 250) ** 2 / 250 for count in counts.values()) < 60


def components(graph: MaskGraph, removed: set[int]) -> int:
    left, parts = set(range(graph.n)) - removed, 0
    while left:
        parts += 1
        queue = deque([left.pop()])
        while queue:
            for other in graph.neighbours(queue.popleft()):
                if other in left:
                    left.remove(other)
                    queue.append(other)
    return parts


def test_fewer_than_k_removed_leave_one_piece_and_the_right_k_do_not() -> None:
    """What ``parameters`` counts on: a ring falls apart only by two stretches of k/2 places."""
    n, degree = 24, 6
    order = ring_order(nonces(n))
    graph = MaskGraph(n, degree, order)
    stretch = degree // 2
    for start in range(n):
        for other in range(n):
            removed = {order[(start + i) % n] for i in range(stretch)} | {
                order[(other + i) % n] for i in range(stretch)
            }
            apart = len(removed) == degree and stretch < (other - start) % n < n - stretch
            assert (components(graph, removed) == 2) == apart
            assert components(graph, removed - {order[start]}) == 1


@pytest.mark.parametrize(("n", "degree"), [(1, 1), (10, 0), (10, 10), (10, 3)])
def test_what_is_no_graph(n: int, degree: int) -> None:
    with pytest.raises(BadParameters):
        MaskGraph.of(degree, nonces(n))


def test_what_else_is_no_graph() -> None:
    with pytest.raises(BadParameters):
        MaskGraph(4, 2, [0, 1, 2, 2])
    with pytest.raises(BadParameters):
        MaskGraph(6, 2)
    with pytest.raises(BadParameters):
        MaskGraph.of(2, [b"short"] * 5)
    with pytest.raises(BadParameters):
        MaskGraph.of(2, nonces(5)).neighbours(5)
