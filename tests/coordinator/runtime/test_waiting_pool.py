"""The pool in memory is that of the store, whoever changed it, and each run's tree has those that it may select."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.engine.pool_tree import PoolTree
from coordinator.runtime.waiting_pool import WaitingPool
from coordinator.store import MemoryStore, open_store
from coordinator.store.port import Reader, Store, WaitingRow
from tests.coordinator.store import rows

DEVICES = [f"d{number}" for number in range(1, 41)]
OFFERS = {"A": 1, "B": 5, "C": None}
"""By what devices offer: how many examples they must have; None: they do not fit."""
ANY = frozenset[str]()


def fewest(offer: str) -> int | None:
    return OFFERS[offer]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = MemoryStore() if request.param == "memory" else open_store("sqlite://")
    with made.transaction() as tx:
        rows.world(tx, runs=3, devices=len(DEVICES))
    return made


def waits(name: str, expires: float = 100.0, **fields: Any) -> WaitingRow:
    return rows.waiting(name, **{"expires": expires, "offer": "A", **fields})


def put(store: Store, *places: WaitingRow) -> None:
    with store.transaction() as tx:
        tx.put_waiting(places)


def tree_of(pool: WaitingPool, reader: Reader, now: float, without: set[str] = set(), **about: Any) -> PoolTree:  # noqa: B006
    given = {"run": "r1", "running": {"r1", "r2", "r3"}, "named": ANY, "fewest": fewest, **about}
    for whole in (False, True):
        with pool.held(pool.read(reader, whole=whole), now) as stands:
            if stands:
                return pool.eligible(without=without, **given).tree
    raise AssertionError("all of it was read")


def wanted(store: Store, now: float, without: set[str]) -> list[tuple[str, int]]:
    """From the store's rows alone."""
    fit = ((row, OFFERS[row.offer]) for row in store.waiting(now) if row.device not in without)
    return sorted((row.device, row.examples) for row, least in fit if least is not None and row.examples >= least)


@pytest.mark.parametrize("seed", range(6))
def test_it_follows_all_replicas_claims_and_clocks(store: Store, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pools of two processes, whose clocks differ and fall; one of them looks seldom."""
    chance = random.Random(seed)
    monkeypatch.setattr("coordinator.runtime.waiting_pool._EXPIRED", 4)
    pools, now = [WaitingPool(), WaitingPool()], 50.0

    def come() -> None:
        for one in chance.sample(DEVICES, 4):
            offer, examples = chance.choice("AABC"), chance.randint(1, 9)
            put(store, waits(one, now + chance.randint(-1, 9), offer=offer, examples=examples))

    def leave() -> None:
        with store.transaction() as tx:
            tx.drop_waiting(chance.sample(DEVICES, 2))

    def end() -> None:
        with store.transaction() as tx:
            for row in tx.places()[:2]:
                tx.drop_hold(row[0], row[3] + chance.choice([0, 1]))

    def claim() -> None:
        with store.transaction() as tx:
            free = [one for one in chance.sample(DEVICES, 5) if tx.claim(one) is None]
            tx.put_claims([rows.claim(one, round=1) for one in free])

    def release() -> None:
        with store.transaction() as tx:
            tx.drop_claims("r1", 1, chance.sample(DEVICES, 9))

    def expire() -> None:
        with store.transaction() as tx:
            tx.expire_waiting(now + chance.choice([-5, 0, 5]))

    for _ in range(150):
        chance.choice([come, come, leave, end, claim, release, expire])()
        now += chance.choice([0, 1, 1, 2, -2, -40, 38] if chance.random() < 0.2 else [0, 1])
        for pool in pools[: 1 + (chance.random() < 0.2)]:
            out = set(chance.sample(DEVICES, chance.choice([0, 3, 20])))
            at = now + chance.choice([0, 0, -1])
            reads = chance.choice(["inside", "outside"])
            if reads == "inside":
                with store.transaction() as tx:
                    found = tree_of(pool, tx, at, out, run=chance.choice(["r1", "r2"]))
            else:
                found = tree_of(pool, store, at, out, run=chance.choice(["r1", "r2"]))
            assert [*found] == wanted(store, at, out)
            assert found.root == PoolTree(wanted(store, at, out)).root


def test_a_draw_reads_what_has_changed_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *map(waits, DEVICES))
    pool, read, places = WaitingPool(), list[Any](), type(store).places

    def counting(self: Reader, among: Any = None) -> Any:
        read.append(None if among is None else sorted(among))
        return places(self, among)

    monkeypatch.setattr(type(store), "places", counting)
    assert len(tree_of(pool, store, 1.0)) == 40
    put(store, waits("d7", examples=3))
    with store.transaction() as tx:
        tx.put_claims([rows.claim("d9")])
    assert len(tree_of(pool, store, 2.0)) == len(tree_of(pool, store, 3.0)) == 39
    assert read == [None, ["d7", "d9"]]


def test_runs_that_may_select_the_same_devices_share_a_tree(store: Store) -> None:
    put(store, *map(waits, DEVICES[:20]), *(waits(name, offer="B") for name in DEVICES[20:]))
    pool = WaitingPool()
    first = tree_of(pool, store, 1.0, {"d1"})
    second = tree_of(pool, store, 1.0, {"d2"}, run="r2")
    assert first is second
    assert "d2" not in dict(second)
    other: Callable[[str], int | None] = {"A": 1, "B": None}.get
    third = tree_of(pool, store, 1.0, run="r2", fewest=other)
    assert third is not second
    assert [len(first), len(third)] == [39, 20]
    assert tree_of(pool, store, 1.0, fewest=other) is third, "the first run now selects the same as the second one"
    named = tree_of(pool, store, 1.0, run="r3", named=frozenset(DEVICES[:3]))
    assert [*named] == [("d1", 7), ("d2", 7), ("d3", 7)]
    assert len(pool._eligible) == 2
    tree_of(pool, store, 1.0, running={"r1"})
    assert len(pool._eligible) == 1, "a tree goes with the last of its runs"


def test_what_a_run_wants_changes_with_its_version(store: Store) -> None:
    """Its own tree follows: devices that decline a version are back in the next one."""
    put(store, *map(waits, DEVICES[:20]), *(waits(name, offer="B") for name in DEVICES[20:]))
    pool = WaitingPool()
    sizes = []
    for wants_b in (1, None, 1, 8):
        offers: Callable[[str], int | None] = {"A": 1, "B": wants_b}.get
        sizes.append(len(tree_of(pool, store, 1.0, fewest=offers)))
    assert sizes == [40, 20, 40, 20]
    assert len(pool._eligible) == 1


def test_after_more_changes_than_are_stored_the_pool_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.store.port.KEPT_CHANGES", 3)
    pool = WaitingPool()
    put(store, waits("d1"))
    assert [*tree_of(pool, store, 1.0)] == [("d1", 7)]
    for name in DEVICES:
        put(store, waits(name))
        with store.transaction() as tx:
            tx.expire_waiting(0.0)
    assert store.pool_changes(1) is None
    assert len(tree_of(pool, store, 1.0)) == 40


def test_a_reading_that_another_one_has_overtaken_takes_nothing_back(store: Store) -> None:
    pool = WaitingPool()
    put(store, *map(waits, DEVICES[:5]))
    whole = pool.read(store)
    tree_of(pool, store, 1.0)
    with store.transaction() as tx:
        tx.drop_waiting(["d1"])
    old = pool.read(store)
    with store.transaction() as tx:
        tx.drop_waiting(["d2"])
        tx.put_waiting([waits("d1", examples=9)])
    assert [*tree_of(pool, store, 1.0)] == [("d1", 9), ("d3", 7), ("d4", 7), ("d5", 7)]
    for late in (old, whole):
        with pool.held(late, 1.0) as stands:
            assert stands
    assert [*tree_of(pool, store, 1.0)] == [("d1", 9), ("d3", 7), ("d4", 7), ("d5", 7)]
    fresh = WaitingPool()
    with fresh.held(old, 1.0) as stands:
        assert not stands, "it lacks what was before"


def test_who_draws_in_a_transaction_waits_for_nobody_who_reads(store: Store) -> None:
    """A thread that reads holds no lock for which the other waits."""
    put(store, *map(waits, DEVICES))
    pool, inside, done = WaitingPool(), threading.Event(), list[int]()

    def reader() -> None:
        inside.wait(10)
        done.append(len(tree_of(pool, store, 1.0)))

    thread = threading.Thread(target=reader)
    thread.start()
    with store.transaction() as tx:
        inside.set()
        thread.join(0.05)
        done.append(len(tree_of(pool, tx, 1.0)))
    thread.join(10)
    assert done == [40, 40]
