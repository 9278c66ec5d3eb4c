"""Pages of lists join to the list without a gap or an entry twice, and end with what their reader may know."""

from __future__ import annotations

from random import Random

import pytest

from client_sdk.protocol.names import Page, first_of
from coordinator.store import paging
from coordinator.store.paging import page_of

NAMES = [f"{number:02}" for number in range(40)]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("looked_at", [1, 7, 10_000])
def test_pages_of_some_rows_join_to_all_of_these(monkeypatch: pytest.MonkeyPatch, looked_at: int, hidden: bool) -> None:
    monkeypatch.setattr(paging, "LOOKED_AT", looked_at)
    for seed in range(200):
        chance = Random(seed)
        limit, share = chance.randint(1, 9), chance.choice([0.05, 0.3, 1.0])
        shown = [name for name in NAMES if chance.random() < share]
        looked = list[int]()

        def read(after: str, size: int) -> list[str]:
            found = [name for name in NAMES if name > after][:size]
            looked[-1] += len(found)  # noqa: B023 - it is called in this turn of the loop
            return found

        after, found, ends = "", list[str](), list[str]()
        while not ends or after:
            looked.append(0)
            page = page_of(read, str, lambda name: name if name in shown else None, after, limit, hidden=hidden)  # noqa: B023
            found, after = found + page, page.next
            ends.append(after)
            assert len(page) <= limit
        assert found == shown, seed
        if hidden:
            assert {*ends} <= {*shown, ""}, "nobody is told of a row that is not shown"
            assert all(end for end in ends[:-1])
            assert len(ends) == max(1, -(-len(shown) // limit)), "each page but the last one is full"
        else:
            assert max(looked) <= looked_at + 2 * limit + 1


def test_a_page_that_ends_the_list_says_no_next_one() -> None:
    assert [first_of([1, 2, 3], limit, str).next for limit in (1, 2, 3, 4)] == ["1", "2", "", ""]
    assert first_of([1, 2, 3], 2, str) == Page([1, 2])
