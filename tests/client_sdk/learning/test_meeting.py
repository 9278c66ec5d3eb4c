"""How the ranks of a group find each other in a store that may hold what an earlier group left."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from client_sdk.learning.group import await_all_ranks

pytestmark = pytest.mark.datacenter


class Ranks:
    """Ranks that meet, each in a thread of its own, at one store."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.came: dict[int, str] = {}
        self.failed: dict[int, Exception] = {}

    def start(self, rank: int, world: int, patience_s: float = 20.0) -> threading.Thread:
        def come() -> None:
            try:
                self.came[rank] = await_all_ranks(self.store, rank, world, patience_s)
            except Exception as error:
                self.failed[rank] = error

        thread = threading.Thread(target=come, daemon=True)
        thread.start()
        return thread

    def meet(self, world: int) -> str:
        """All of them; the word of their meeting."""
        self.came = {}
        for thread in [self.start(rank, world) for rank in reversed(range(world))]:
            thread.join(30)
        assert set(self.came) == set(range(world))
        assert len(set(self.came.values())) == 1
        return self.came[0]


def test_every_meeting_has_a_word_of_its_own_also_of_fewer_and_of_more_ranks() -> None:
    ranks = Ranks()
    words = [ranks.meet(world) for world in (3, 3, 2, 4, 1)]
    assert len(set(words)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_who_comes_early_waits_for_who_comes_late_and_takes_no_earlier_one_for_it(late: int) -> None:
    """As it is where one machine starts its ranks again long before another does."""
    ranks = Ranks()
    before = ranks.meet(2)
    ranks.came = {}
    early = ranks.start(1 - late, 2)
    early.join(0.5)
    assert ranks.came == {}, "the other's word is there, and it is of the group that broke"
    last = ranks.start(late, 2)
    for thread in (early, last):
        thread.join(30)
    assert ranks.came[0] == ranks.came[1] != before


@pytest.mark.slow
def test_a_rank_that_dies_while_they_meet_is_waited_for_and_its_successor_counts() -> None:
    ranks = Ranks()
    first = ranks.start(0, 3)
    ranks.store.set("here/2", "of one that died before it saw the list")
    second = ranks.start(1, 3)
    second.join(0.5)
    assert ranks.came == {}
    third = ranks.start(2, 3)
    for thread in (first, second, third):
        thread.join(30)
    assert len(set(ranks.came.values())) == 1
    assert len(ranks.came) == 3


def test_a_missing_rank_is_awaited_no_longer_than_the_patience() -> None:
    ranks = Ranks()
    ranks.start(1, 2, patience_s=0.2).join(30)
    assert str(ranks.failed[1]) == "not all ranks came within 0.2 s"
