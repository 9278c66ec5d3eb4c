"""The tree of who waits: its root is that of the list, however devices came and went; ranks and places in the sum are
the list's; and what it shows of itself proves them."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.chance import labelled, sha256_bytes
from coordinator.engine.pool_tree import PoolTree

NAMES = st.text("01abc-", min_size=1, max_size=6)
POOLS = st.dictionaries(NAMES, st.integers(0, 9), min_size=1, max_size=70)


@cache
def bits(name: str) -> str:
    return "".join(f"{byte:08b}" for byte in name.encode().ljust(20, b"\0"))


def hashed(pool: list[tuple[str, int]]) -> bytes:
    """As the module's docstring says, from the list."""
    if len(pool) == 1:
        ((name, examples),) = pool
        return hashlib.sha256(b"\0" + examples.to_bytes(8, "big") + name.encode()).digest()
    first, last = bits(min(pool)[0]), bits(max(pool)[0])
    at = next(at for at in range(160) if first[at] != last[at])
    sides = ([item for item in pool if bits(item[0])[at] == side] for side in "01")
    total = sum(max(1, examples) for _, examples in pool)
    head = b"\1" + len(pool).to_bytes(8, "big") + total.to_bytes(8, "big")
    return hashlib.sha256(head + b"".join(map(hashed, sides))).digest()


def of_shown(shown: Any) -> tuple[int, int, bytes]:
    if len(shown) == 3:
        return shown[0], shown[1], bytes.fromhex(shown[2])
    if isinstance(shown[0], str):
        return 1, max(1, shown[1]), hashed([tuple(shown)])
    (c1, s1, h1), (c2, s2, h2) = map(of_shown, shown)
    head = (c1 + c2).to_bytes(8, "big") + (s1 + s2).to_bytes(8, "big")
    return c1 + c2, s1 + s2, hashlib.sha256(b"\1" + head + h1 + h2).digest()


def leaves(shown: Any, rank: int = 0) -> dict[int, tuple[str, int]]:
    """Rank -> what is shown there."""
    if len(shown) == 3:
        return {}
    if isinstance(shown[0], str):
        return {rank: tuple(shown)}
    return leaves(shown[0], rank) | leaves(shown[1], rank + of_shown(shown[0])[0])


def require_list(tree: PoolTree, pool: list[tuple[str, int]]) -> None:
    sizes = [max(1, examples) for _, examples in pool]
    starts = [0, *accumulate(sizes)]
    assert (len(tree), tree.total) == (len(pool), starts[-1])
    assert [tree[rank] for rank in range(len(pool))] == pool
    assert [tree.rank(name) for name, _ in pool] == list(range(len(pool)))
    for rank, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        assert tree.at(start) == tree.at(start + size - 1) == (rank, start)
    assert tree.root == (hashed(pool).hex() if pool else "")


@given(POOLS)
def test_a_tree_is_that_of_its_sorted_list(pool: dict[str, int]) -> None:
    rows = sorted(pool.items())
    require_list(PoolTree(rows), rows)


@given(POOLS, st.lists(st.tuples(NAMES, st.integers(-3, 9)), max_size=60))
def test_it_follows_who_comes_and_leaves(pool: dict[str, int], changes: list[tuple[str, int]]) -> None:
    tree = PoolTree(sorted(pool.items()))
    before = tree.root
    for name, examples in changes:
        if examples < 0:
            tree.drop(name)
            pool.pop(name, None)
        else:
            tree.put(name, examples)
            pool[name] = examples
    require_list(tree, sorted(pool.items()))
    assert before, "hashes that were computed before do not stay"


def test_a_crowd_comes_and_leaves() -> None:
    """Ids as the authority gives them out: lists become forks and lists again."""
    chance = random.Random(5)
    names = [sha256_bytes(labelled("pool", number), 10).hex() for number in range(700)]
    tree, pool = PoolTree(), dict[str, int]()
    for step, name in enumerate([*names, *names]):
        if step < len(names) or chance.random() < 0.3:
            pool[name] = chance.randrange(40)
            tree.put(name, pool[name])
        else:
            del pool[name]
            tree.drop(name)
        if step % 200 == 0:
            assert tree.root == hashed(sorted(pool.items())).hex()
    require_list(tree, sorted(pool.items()))
    for name in [*pool]:
        tree.drop(name)
    require_list(tree, [])


@given(POOLS, st.randoms(use_true_random=False))
def test_what_it_shows_proves_ranks_and_sums(pool: dict[str, int], chance: random.Random) -> None:
    rows = sorted(pool.items())
    tree, ranks = PoolTree(rows), chance.sample(range(len(rows)), chance.randint(1, min(12, len(rows))))
    shown = tree.shown(ranks)
    assert of_shown(shown) == (len(tree), tree.total, bytes.fromhex(tree.root))
    assert leaves(shown) == {rank: rows[rank] for rank in ranks}


def test_who_is_not_there_has_no_rank() -> None:
    for rows in ([], [("b", 3)]):
        tree = PoolTree(rows)
        with pytest.raises(LookupError):
            tree.rank("a")
        with pytest.raises(IndexError):
            tree[len(rows)]
