"""What every store must do for people's views of the fleet: labels, who took part, devices by hour, replicas."""

from __future__ import annotations

from contextlib import suppress

from coordinator.store.insight import HOUR_S, DeviceHours, Participation
from coordinator.store.port import ContributionRow, DeviceRow, Store
from coordinator.store.rows import ReplicaRow
from tests.coordinator.store import flower_rows, rows

MANY_RUNS = ["r1", *(f"r1-{number}" for number in range(1200)), "r2"]
"""A scope of more runs than a list of devices in one statement may have."""


class InsightContract:
    def test_labels_are_those_of_the_devices_that_are_asked_for(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("d1", "d2", "d3"):
                tx.insert_device(rows.device(name, label=f"label of {name}"))
            tx.forget_device("d3", 1.0)
        assert store.labels([]) == {}
        assert store.labels(["d2", "d3", "d9"]) == {"d2": "label of d2", "d3": ""}
        many = [f"x{number}" for number in range(1200)]
        assert store.labels([*many, "d1"]) == {"d1": "label of d1"}

    def test_participation_counts_contributions_and_refusals_but_those_of_abandoned_rounds(self, store: Store) -> None:
        with store.transaction() as tx:
            for run in ("r1", "r2"):
                tx.insert_run(rows.run(run))
            tx.insert_contributions([rows.contribution("d1", round=1), rows.contribution("d2", round=1)])
            tx.insert_contributions([rows.contribution("d1", run="r2", round=1)])
            kinds = (("d1", "late"), ("d3", "invalid-update"), ("d3", "late"), ("d4", "abandoned"))
            tx.insert_refusals([rows.refusal(device, kind=kind) for device, kind in kinds])
        found = {"d1": Participation(2, 1), "d2": Participation(1, 0), "d3": Participation(0, 2)}
        assert store.participation([f"d{number}" for number in range(9)]) == found
        assert store.participation(["d3", "d4", "d9"]) == {"d3": Participation(0, 2)}
        assert store.participation([]) == {}
        assert store.participation(["d1", "d2", "d3"], ["r2"]) == {"d1": Participation(1, 0)}
        assert store.participation(["d1", "d3"], ["r1", "r9"]) == {"d1": Participation(1, 1), "d3": Participation(0, 2)}
        assert store.participation(["d1"], []) == {}
        assert store.participation(["d1"], MANY_RUNS) == {"d1": Participation(2, 1)}

    def test_classes_are_counted_by_the_transactions_that_change_them(self, store: Store) -> None:
        def counted() -> dict[str, tuple[int, int, int, int]]:
            found = [store.all_classes(), *store.device_classes(9)]
            return {row.device_class: (row.devices, row.heard, row.rounds, row.left) for row in found}

        assert counted() == {"/": (0, 0, 0, 0)}
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_device(*(rows.device(name, label=f"phone/{name}") for name in ("d1", "d2", "d3")))
            tx.insert_device(rows.device("d4", label="tablet/1"), rows.device("d5", label="a name"))
            tx.insert_device(rows.device("d6", label="", left_at=9.0))
        assert counted() == {"/": (5, 0, 0, 1), "phone": (3, 0, 0, 0), "tablet": (1, 0, 0, 0), "": (1, 0, 0, 1)}
        for number in (1, 2):
            with store.transaction() as tx:
                tx.insert_contributions(
                    [rows.contribution(device, round=number) for device in ("d1", "d2", "d6", "d9")]
                )
        assert counted() == {"/": (5, 2, 4, 1), "phone": (3, 2, 4, 0), "tablet": (1, 0, 0, 0), "": (1, 0, 0, 1)}
        with suppress(ZeroDivisionError), store.transaction() as tx:
            tx.insert_device(rows.device("d7"))
            raise ZeroDivisionError
        with store.transaction() as tx:
            tx.forget_device("d1", 7.0)
            tx.forget_device("d1", 8.0)
            tx.forget_device("d4", 8.0)
        assert counted() == {"/": (3, 1, 2, 3), "phone": (2, 1, 2, 1), "": (1, 0, 0, 1)}
        assert store.registered_devices() == 3
        assert [row.device_class for row in store.device_classes(1)] == ["phone"]

    def test_what_another_store_has_committed_is_counted(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_device(rows.device("d1", label="phone/1"))
            tx.insert_contributions([rows.contribution("d1", round=1)])
        devices = [rows.device(name, label="phone/1", key_id=name, certificate="") for name in ("d1", "d2")]
        made = [rows.contribution(name, round=number) for name, number in (("d1", 2), ("d2", 1), ("d2", 2))]
        with store.transaction("r1") as tx:
            tx.put_rows(
                "r1",
                {
                    DeviceRow: {(row.device,): row for row in devices},
                    ContributionRow: {(row.run, row.round, row.device): row for row in made},
                },
            )
        (phones,) = store.device_classes(9)
        assert (phones.devices, phones.heard, phones.rounds) == (2, 2, 4)

    def test_devices_that_have_left_or_changed_in_another_store_are_counted_as_they_are(self, store: Store) -> None:
        def simulated(name: str, label: str) -> DeviceRow:
            return rows.device(name, label=label, key_id=name, certificate="")

        def write(run: str, devices: list[DeviceRow], made: list[ContributionRow]) -> None:
            with store.transaction(run) as tx:
                tx.put_rows(
                    run,
                    {
                        DeviceRow: {(row.device,): row for row in devices},
                        ContributionRow: {(row.run, row.round, row.device): row for row in made},
                    },
                )

        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        left = rows.device("d1", label="", key_id=None, certificate="", left_at=5.0)
        made = [rows.contribution(device, round=1) for device in ("d1", "d2")]
        write("r1", [left, simulated("d2", "phone/2")], made)
        write("r1", [left, simulated("d2", "tablet/2")], [rows.contribution("d2", round=2)])
        (tablets,), whole = store.device_classes(9), store.all_classes()
        assert (tablets.device_class, tablets.devices, tablets.heard, tablets.rounds) == ("tablet", 1, 1, 2)
        assert (whole.devices, whole.heard, whole.rounds, whole.left) == (1, 1, 2, 1)

    def test_runs_of_either_kind_come_in_the_order_in_which_they_were_created(self, store: Store) -> None:
        with store.transaction() as tx:
            for name, at in (("r2", 5.5), ("r1", 5.5), ("r0", 7.5)):
                tx.insert_run(rows.run(name, created_at=at))
            for name, at in (("f1", 4.5), ("r1-f", 5.5)):
                tx.insert_flower_run(flower_rows.run(name, created_at=at))
        ordered = ["f1", "r1", "r1-f", "r2", "r0"]
        assert store.runs_after("", 9) == ordered
        assert [store.runs_after(one, 2) for one in ordered] == [ordered[at : at + 2] for at in range(1, 6)]
        assert store.runs_after("nowhere", 9) == ordered
        ordered.reverse()
        assert store.runs_before("", 9) == ordered
        assert [store.runs_before(one, 2) for one in ordered] == [ordered[at : at + 2] for at in range(1, 6)]
        assert store.runs_before("nowhere", 9) == ordered

    def test_the_newest_run_of_a_plan_is_found(self, store: Store) -> None:
        with store.transaction() as tx:
            for name, plan, at in (("r3", "aa", 5.5), ("r1", "aa", 5.5), ("r2", "aa", 4.5), ("r4", "bb", 7.5)):
                tx.insert_run(rows.run(name, plan_digest=plan, created_at=at))
        found = {plan: store.newest_run(plan) for plan in ("aa", "bb", "cc")}
        assert {plan: row and row.run for plan, row in found.items()} == {"aa": "r3", "bb": "r4", "cc": None}

    def test_the_rounds_of_a_device_come_newest_first(self, store: Store) -> None:
        with store.transaction() as tx:
            for run in ("r1", "r2"):
                tx.insert_run(rows.run(run))
            for run, number, at in (("r1", 1, 10.0), ("r2", 1, 30.0), ("r1", 2, 20.0)):
                tx.put_round(rows.round_(number, run=run, status="committed", closed_at=at))
                tx.insert_contributions([rows.contribution("d1", run=run, round=number)])
            tx.insert_refusals([rows.refusal("d1", round=number, reason=str(number)) for number in (1, 2, 3)])
        found = [("r2", 1), ("r1", 2), ("r1", 1)]
        assert [(row.run, row.round) for row in store.counted_in("d1", 9)] == found
        assert [(row.run, row.round) for row in store.counted_in("d1", 2)] == found[:2]
        assert store.counted_in("d9", 9) == []
        assert [row.reason for row in store.refused_in("d1", 2)] == ["3", "2"]
        assert [(row.run, row.round) for row in store.counted_in("d1", 1, ["r1"])] == [("r1", 2)]
        assert [(row.run, row.round) for row in store.counted_in("d1", 2, MANY_RUNS)] == found[:2]
        assert [row.reason for row in store.refused_in("d1", 2, MANY_RUNS)] == ["3", "2"]
        assert store.counted_in("d1", 9, []) == []
        assert len(store.refused_in("d1", 9, ["r1"])) == 3
        assert store.refused_in("d1", 9, ["r2"]) == []

    def test_devices_seen_are_counted_and_noted_by_hour(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("d1", "d2", "d3"):
                tx.insert_device(rows.device(name))
            tx.seen({"d1": {}}, 100.5)
            tx.seen({"d2": {}}, 200.5)
        assert [store.seen_since(at) for at in (0.0, 100.5, 100.6, 300.0)] == [2, 2, 1, 0]
        with store.transaction() as tx:
            for hour, devices in ((7, 3), (8, 5), (8, 4), (9, 1), (9, 2)):
                tx.put_hour(hour, devices)
        assert store.seen_by_hour(0) == {7: 3, 8: 5, 9: 2}
        with store.transaction() as tx:
            tx.drop_hours(8)
            assert tx.seen_by_hour(0) == {8: 5, 9: 2}
        assert store.seen_by_hour(9) == {9: 2}

    def test_the_hours_of_a_device_are_noted_once_and_for_a_day(self, store: Store) -> None:
        noted: dict[str, set[int]] = {"d1": set(), "d2": set(), "d3": set()}
        with store.transaction() as tx:
            for name in noted:
                tx.insert_device(rows.device(name))
        assert store.device_hours("d1") == DeviceHours()
        for hour, seen in ((100, "d1"), (101, "d2"), (101, "d1"), (103, "d1"), (123, "d1"), (124, "d1"), (148, "d1")):
            with store.transaction() as tx:
                tx.seen({seen: {}}, hour * HOUR_S + 5)
                tx.note_device_hours(hour)
                tx.note_device_hours(hour)
            noted[seen].add(hour)
            for name, hours in noted.items():
                found = store.device_hours(name)
                assert {one for one in range(90, 160) if one in found} == {
                    one for one in hours if one > max(hours) - 24
                }
        with store.transaction() as tx:
            tx.note_device_hours(147)
        assert store.device_hours("d1") == DeviceHours(148, 1), "an hour that is over changes nothing"
        assert store.device_hours("d3") == store.device_hours("nobody") == DeviceHours()

    def test_replicas_are_replaced_and_dropped(self, store: Store) -> None:
        first, second = (ReplicaRow(replica=name, version="1", seen_at=10.5) for name in ("b", "a"))
        newer = ReplicaRow(replica="b", version="2", seen_at=20.5)
        with store.transaction() as tx:
            for row in (first, second, newer):
                tx.put_replica(row)
        assert store.replicas() == [second, newer]
        with store.transaction() as tx:
            tx.drop_replicas(20.5)
        assert store.replicas() == [newer]

    def test_the_size_is_known_where_the_data_is_on_a_disk(self, store: Store) -> None:
        size = store.size_bytes()
        assert size is None or size > 0
