"""Group commit: what arrives together shares one transaction; nothing is lost or done twice, errors stay alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from coordinator.group_commit import LONGEST_PAUSE_S, PAUSES, GroupCommit
from coordinator.store import MemoryStore
from tests.coordinator.runtime.fragile import FragileStore, Points
from tests.coordinator.world import World


class Counter:
    """A group commit that remembers its batches, and whose first one can be delayed."""

    def __init__(
        self, answer: Callable[[int], int | BaseException] = lambda item: item * 10, *, most: int = 256
    ) -> None:
        self.batches: list[list[int]] = []
        self.held, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._answer = answer
        self.group: GroupCommit[int, int] = GroupCommit(self._commit, most=most)

    def _commit(self, items: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(items))
        self.held.set()
        assert self.go_on.wait(30)
        return [self._answer(item) for item in items]

    def together(self, *items: int) -> dict[int, object]:
        """All of these arrive while item 0 is being committed. Result or error of each."""
        self.go_on.clear()
        results: dict[int, object] = {}

        def submit(item: int) -> None:
            try:
                results[item] = self.group.enter(item)()
            except BaseException as error:
                results[item] = error

        first = threading.Thread(target=submit, args=(0,))
        first.start()
        assert self.held.wait(30)
        threads = [threading.Thread(target=submit, args=(item,)) for item in items]
        for thread in threads:
            thread.start()
        while len(self.group._queue) < len(items):
            threading.Event().wait(0.001)
        self.go_on.set()
        for thread in [first, *threads]:
            thread.join(30)
            assert not thread.is_alive()
        return results


def test_a_lone_item_is_done_at_once() -> None:
    counter = Counter()
    assert counter.group.enter(4)() == 40
    assert counter.batches == [[4]]


def test_items_that_wait_are_committed_together_and_get_their_own_results() -> None:
    counter = Counter()
    results = counter.together(*range(1, 9))
    assert results == {item: item * 10 for item in range(9)}
    assert [len(batch) for batch in counter.batches] == [1, 8], "two transactions for nine items"


def test_items_that_one_thread_enters_before_it_settles_them_are_committed_together() -> None:
    counter = Counter(lambda item: ValueError(f"not {item}") if item == 3 else item, most=3)
    entered = [counter.group.enter(item) for item in range(1, 6)]
    assert [settle() for settle in entered[:2]] == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="not 3"):
            entered[2]()
    assert [settle() for settle in entered[3:] + entered[:2]] == [4, 5, 1, 2]
    assert counter.batches == [[1, 2, 3], [4, 5]], "none is committed twice, however often it is settled"


def test_a_batch_has_a_limit() -> None:
    counter = Counter(most=3)
    assert counter.together(*range(1, 9)) == {item: item * 10 for item in range(9)}
    assert [len(batch) for batch in counter.batches] == [1, 3, 3, 2]


def test_an_error_of_one_item_is_its_own() -> None:
    counter = Counter(lambda item: ValueError(f"not {item}") if item == 3 else item)
    results = counter.together(1, 2, 3, 4)
    assert isinstance(results.pop(3), ValueError)
    assert results == {0: 0, 1: 1, 2: 2, 4: 4}


def test_an_error_of_the_commit_is_everyones_in_the_batch_and_nobody_elses() -> None:
    def answer(item: int) -> int:
        if item == 2:
            raise OSError("the disk is gone")
        return item

    counter = Counter(answer)
    results = counter.together(1, 2, 3)
    assert results.pop(0) == 0
    assert [type(result) for result in results.values()] == [OSError] * 3
    assert counter.group.enter(7)() == 7, "the next one is as if nothing had been"


def test_an_interrupted_caller_does_not_block_others() -> None:
    def answer(item: int) -> int:
        if item == 1:
            raise KeyboardInterrupt
        return item

    counter = Counter(answer)
    results = counter.together(1, 2)
    assert results.pop(0) == 0
    assert {type(result) for result in results.values()} == {KeyboardInterrupt}
    assert counter.group.enter(5)() == 5


def test_many_threads_lose_nothing_and_do_nothing_twice() -> None:
    done: list[int] = []

    def commit(items: Sequence[int]) -> list[int]:
        done.extend(items)
        return [-item for item in items]

    combiner: GroupCommit[int, int] = GroupCommit(commit, most=7)
    wrong: list[object] = []

    def worker(start: int) -> None:
        for item in range(start, start + 100):
            if combiner.enter(item)() != -item:
                wrong.append(item)

    threads = [threading.Thread(target=worker, args=(1000 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert sorted(done) == sorted(1000 * number + item for number in range(8) for item in range(100))


def test_answers_that_come_while_others_are_settled_share_the_next_transaction() -> None:
    group = Counter().group
    assert group.idle()
    with group._turn:
        assert not group.idle(), "a transaction is under way"
    assert [group.gather(name) for name in "abc"] == [True, False, False]
    assert group.take() == (["a", "b", "c"], True)
    assert not group.idle(), "whoever comes is gathered until nobody waits"
    assert not group.gather("d")
    assert group.take() == (["d"], False), "the crowd is over"
    assert group.take() == ([], False)
    assert group.idle()
    assert group.gather("e")
    assert group.take() == (["e"], True), "the first one has met another transaction"


def test_the_pause_follows_what_a_transaction_costs() -> None:
    group = Counter().group
    assert group.pause_s(0.004) == PAUSES * 0.004
    assert group.pause_s(60.0) == LONGEST_PAUSE_S, "a disk that stood still once does not make all wait"


def test_reports_that_arrive_together_share_a_transaction() -> None:
    """Through the coordinator: a held transaction gathers all other reports of the cohort behind it."""
    points = Points()
    world = World(24, store=FragileStore(MemoryStore(), points))  # type: ignore[arg-type]
    world.create(cohort={"select": 24, "goal": 24, "quorum": 1.0})
    world.check_in()
    cohort = world.cohort()
    assert len(cohort) == 24
    for part, transactions in ((cohort[:10], 3), (cohort[10:], 6)):
        points.armed = True
        _send_together(world, part)
        points.armed = False
        done = points.names.count("after a transaction is durable")
        assert done == transactions, "ours, the first report's, all the others'"
        free = {row.device for row in world.rows} - {claim.device for claim in world.store.claims()}
        assert {world.rows[number].device for number in part} <= free, "each of them is freed"
    world.settle()
    world.require({1: cohort})


def _send_together(world: World, numbers: list[int]) -> None:
    """All of them at once, held back until the first report waits for the store and all others for the first."""
    threads = [threading.Thread(target=_send, args=(world, number)) for number in numbers]
    with world.store.transaction():
        for thread in threads:
            thread.start()
        queue = world.coordinator.core.log("marks").commits
        while len(queue._queue) < len(numbers) - 1:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)


def _send(world: World, number: int) -> None:
    device = world.rows[number]
    with world.blobs.spool() as spool:
        spool.write(world.body(number))
        world.coordinator.devices.report(device, "marks", 1, 0, spool)()


def test_a_peers_fault_in_a_shared_transaction_is_reported_to_that_peer_alone() -> None:
    world = World(8)
    world.create()
    world.check_in()
    cohort = world.cohort()
    outsider = next(number for number in range(8) if number not in cohort)
    refused: list[BaseException] = []

    def send(number: int) -> None:
        try:
            _send(world, number)
        except BaseException as error:
            refused.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in (outsider, *cohort[:3])]
    with world.store.transaction():
        for thread in threads:
            thread.start()
        queue = world.coordinator.core.log("marks").commits
        while len(queue._queue) < 3:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    assert [str(error) for error in refused] == [f"device {world.rows[outsider].device} was not selected for round 1"]
    world.settle()
    world.require({1: cohort[:3]})


@pytest.mark.parametrize("most", [1, 2])
def test_the_smallest_batches_work(most: int) -> None:
    counter = Counter(most=most)
    assert counter.together(1, 2, 3) == {0: 0, 1: 10, 2: 20, 3: 30}
