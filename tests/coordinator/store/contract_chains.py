"""What every store must do with the links of events and of refusals. Those of the audit: ``contract_audit``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from coordinator.store import chain
from coordinator.store.port import AuthorityRow, Json, Store, StoreError
from tests.coordinator.store import rows


class ChainContract:
    def test_each_event_is_chained_to_the_one_before(self, store: Store) -> None:
        events: list[tuple[float, str, Json]] = [
            (1.5, "opened", {"n": 1}),
            (2.0, "reported", {"text": "ü", "ratio": 0.1}),
            (3.0, "closed", {}),
        ]
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        with store.transaction("r1") as tx:
            first = tx.append("r1", events[:2])
            second = tx.append("r1", events[2:])
        assert (first.seq, second.seq) == (2, 3)
        stored = store.events("r1", 0)
        assert [row.link for row in stored] == [*first.links, *second.links]
        run = store.run("r1")
        assert run is not None
        link = chain.log_beginning(run)
        for row in stored:
            link = chain.link_of_event(link, row)
            assert row.link == link

    def test_links_are_a_format(self, store: Store) -> None:
        """Golden values: a log that was written once is never chained anew."""
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_refusals([rows.refusal()])
        with store.transaction("r1") as tx:
            (link,) = tx.append("r1", [(1.5, "opened", {"n": 1})]).links
        assert (link, store.refusals_in_order("r1")[0].link) == GOLDEN

    def test_refusals_of_runs_that_are_written_in_turn_are_chains_of_their_own(self, store: Store) -> None:
        with store.transaction() as tx:
            for run in ("r1", "r2"):
                tx.insert_run(rows.run(run))
        for runs in ("r1", "r2", "r1"), ("r2", "r1"), ("r1",):
            with store.transaction() as tx:
                for run in runs:
                    tx.insert_refusals([rows.refusal(run=run, reason=f"{runs}"), rows.refusal("d2", run=run)])
        for name in ("r1", "r2"):
            stored, link = store.refusals_in_order(name), chain.refusals_beginning(name)
            assert len(stored) == {"r1": 8, "r2": 4}[name]
            for number, row in enumerate(stored, 1):
                link = chain.refusal_link(link, number, row)
                assert row.link == link

    def test_chains_of_two_runs_differ(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
            one = tx.append("r1", [(1.0, "k", {})])
            other = tx.append("r2", [(1.0, "k", {})])
        assert one.links != other.links

    def test_what_was_rolled_back_is_in_no_chain(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        with suppress(KeyError), store.transaction("r1") as tx:
            tx.append("r1", [(1.0, "lost", {})])
            tx.insert_refusals([rows.refusal()])
            raise KeyError("anything")
        with store.transaction("r1") as tx:
            (link,) = tx.append("r1", [(1.0, "k", {})]).links
        run = store.run("r1")
        assert run is not None
        assert link == chain.link_of_event(chain.log_beginning(run), store.events("r1", 0)[0])
        assert run.refusals == 0

    def test_refusals_are_chained_by_run_in_their_order(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
            tx.insert_refusals([rows.refusal(round=2), rows.refusal(run="r2"), rows.refusal(round=1)])
        with store.transaction() as tx:
            tx.insert_refusals([rows.refusal("d2", round=2)])
        found = store.refusals_in_order("r1")
        assert [row.round for row in found] == [2, 1, 2]
        link = chain.refusals_beginning("r1")
        for number, row in enumerate(found, start=1):
            link = chain.refusal_link(link, number, row)
            assert row.link == link
        assert [row.link for row in store.refusals("r1", 2)] == [found[0].link, found[2].link]
        run = store.run("r1")
        assert run is not None
        assert run.refusals == 3

    def test_rows_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreError), store.transaction() as tx:
            tx.insert_refusals([rows.refusal(run="nowhere")])

    def test_an_event_is_found_by_the_beginning_of_its_body(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            bodies: list[Json] = [
                {"round": 1, "device": "d1", "n": 1},
                {"round": 1, "device": "d1%", "n": 2},
                {"round": 1},
                {"round": 1, "device": "d1%", "n": 3},
            ]
            tx.append("r1", [(1.0, "k", body) for body in bodies])
        found = store.find_event("r1", "k", {"round": 1, "device": "d1%"})
        assert found == store.events("r1", 3, 1)[0], "the newest one"
        assert found is not None
        assert found.link
        assert store.find_event("r1", "k", {"round": 1, "device": "d"}) is None
        assert store.find_event("r1", "other", {"round": 1}) is None
        assert store.find_event("r2", "k", {"round": 1}) is None

    def test_reading_sees_one_moment(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_refusals([rows.refusal(round=3)])
        with store.reading() as reader:
            assert reader.runs_named() == ["r1"]
            assert reader.rows_by_round("r1") == {"rounds": {}, "contributions": {}, "refusals": {3: 1}}
        assert store.runs_named() == ["r1"]

    def test_rows_of_another_store_are_numbered_anew(self, store: Store) -> None:
        authority = AuthorityRow(number=7, authority="a", inside=True, since=1.0)
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            for _ in range(2):
                tx.insert_authority(authority)
                tx.insert_refusals([replace(rows.refusal(), number=7), replace(rows.refusal(round=2), number=7)])
                tx.insert_audit([replace(rows.audit(), number=7), replace(rows.audit(), number=7)])
        assert [row.number for row in store.authorities()] == [1, 2]
        assert [row.number for row in store.refusals_in_order("r1")] == [1, 2, 3, 4]
        assert [number for number, _ in store.audit_of_all(0, 10)] == [1, 2, 3, 4, 5, 6]
        with store.transaction() as tx:
            tx.insert_refusals([rows.refusal(round=3)])
        assert [row.number for row in store.refusals_in_order("r1")] == [1, 2, 3, 4, 5]


GOLDEN = (
    "694dd75a91fc17fd2d201f8066e58e5145823722a09f1a49c2f38168b0ee3bb1",
    "b8cce763c3eea89aaccf90dcaae8c441af449156ca2dfa8f234ea5773ff1f01f",
)
"""Links of an event and of a refusal: the first of each."""
