"""Counting share holders: against the graph that devices build, and a slow count over it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.graph import MaskGraph
from coordinator.engine.event_fields import Group
from coordinator.engine.secure import holders
from coordinator.engine.secure.holders import lacking, needed
from coordinator.engine.secure.state import SecureRound


def of(order: tuple[str, ...], **numbers: Any) -> SecureRound:
    return SecureRound(groups=(Group(order=order, **{"fewest": 0, "signers": 0, **numbers}),))


def enough(quorum: int, secure: SecureRound, present: Collection[str], sharers: Collection[str]) -> bool:
    return holders.enough(quorum, secure, holders.complete(secure, present, sharers), present)


def slowly(graph: MaskGraph, order: tuple[str, ...], threshold: int, present: set[str], wanted: set[str]) -> list[str]:
    there = {order.index(device) for device in present}
    return sorted(d for d in wanted if len(there & set(graph.holders(order.index(d)))) < threshold)


@given(data=st.data(), n=st.integers(4, 24))
def test_on_a_ring_it_counts_the_neighbours_that_devices_have(data: st.DataObject, n: int) -> None:
    order = tuple(f"d{place:02}" for place in range(n))
    neighbours = 2 * data.draw(st.integers(1, (n - 2) // 2))
    ring = tuple(data.draw(st.permutations(range(n))))
    threshold = data.draw(st.integers(1, neighbours + 1))
    secure = of(order, ring=ring, neighbours=neighbours, threshold=threshold)
    present, wanted = (data.draw(st.sets(st.sampled_from(order))) for _ in range(2))
    graph = MaskGraph(n, neighbours, ring)
    assert list(lacking(secure, present, wanted)) == slowly(graph, order, threshold, present, wanted)


@given(data=st.data(), n=st.integers(3, 12))
def test_in_a_complete_graph_a_device_holds_its_own_share(data: st.DataObject, n: int) -> None:
    order = tuple(f"d{place:02}" for place in range(n))
    threshold = data.draw(st.integers(1, n))
    secure = of(order, threshold=threshold)
    present, wanted = (data.draw(st.sets(st.sampled_from(order))) for _ in range(2))
    assert list(lacking(secure, present, wanted)) == slowly(MaskGraph(n, n - 1), order, threshold, present, wanted)


def test_enough_is_the_largest_of_quorum_threshold_and_the_shortest_list() -> None:
    order = tuple("abcdefgh")
    secure = of(order, threshold=4, fewest=5)
    assert [needed(quorum, secure) for quorum in (3, 5, 6)] == [5, 5, 6]
    assert not enough(6, secure, order[:5], order)
    assert enough(6, secure, order[:6], order)
    assert needed(2, of(order, threshold=7, fewest=5)) == 7


def test_many_are_not_enough_where_one_device_keeps_too_few_holders() -> None:
    order = tuple("abcdefgh")
    secure = of(order, ring=tuple(range(8)), neighbours=4, threshold=3, fewest=3)
    assert lacking(secure, set("abefh"), order) == ("a", "b", "e", "f")
    assert not enough(4, secure, set("abefh"), order)
    assert enough(4, secure, set("abefh"), ("c", "d", "g", "h"))
