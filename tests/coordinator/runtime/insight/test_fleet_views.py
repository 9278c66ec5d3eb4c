"""The fleet as people see it: filters, pages, classes, who is never heard, and devices by hour over restarts and
replicas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from client_sdk.flower.work import node_id
from client_sdk.protocol.devices import CheckIn, DeviceFacts
from client_sdk.protocol.flower import FlowerApp, FlowerPoll
from client_sdk.protocol.insight import CertificateView, DeviceDetail
from client_sdk.protocol.operators import DeviceView
from coordinator.runtime.flower.nodes import facts_of
from coordinator.runtime.insight import fleet_views
from coordinator.runtime.insight.fleet_views import DeviceFilter, class_of
from coordinator.store import open_store
from coordinator.store.memory import MemoryStore
from coordinator.store.port import DeviceRow
from tests.coordinator.certified import key_of
from tests.coordinator.store import rows
from tests.coordinator.world import LEARNER, World

APP = FlowerApp(name="an/app", version="1.0.0", digest="a" * 64)
LABELS = ("phone/ward 7", "phone/ward 8", "tablet/", "", "phone/9", "tablet/x", "hospital / 3", "phone/<b>")


def labelled(world: World) -> World:
    """The world's devices with these labels, in order of number."""
    assert isinstance(world.store, MemoryStore)
    for row, label in zip(world.rows, LABELS, strict=True):
        with world.store.transaction() as tx:
            tx._update(DeviceRow, {"device": row.device}, label=label)
            tx._count_devices([(row.label, {"devices": -1}), (label, {"devices": 1})])
    return world


def listed(world: World, **wanted: object) -> set[int]:
    found = world.coordinator.insight.fleet.devices(wanted=DeviceFilter(**wanted))  # type: ignore[arg-type]
    assert [view.device for view in found] == sorted(view.device for view in found)
    return {world.index(view.device) for view in found}


def shown(world: World, number: int) -> DeviceView:
    return world.coordinator.insight.fleet.device(world.rows[number].device).device


def test_a_class_is_what_the_label_says_before_the_first_slash() -> None:
    assert [class_of(label) for label in LABELS] == [
        "phone", "phone", "tablet", "no class", "phone", "tablet", "hospital", "phone",
    ]  # fmt: skip


def test_repro_labels_without_a_slash_make_no_class_for_each_device() -> None:
    assert {class_of(label) for label in ("ward 7", "blobs-0007", " / nameless", "")} == {"no class"}


def test_devices_are_filtered_by_what_they_do_and_are() -> None:
    world = labelled(World(8))
    world.create()
    assert listed(world) == set(range(8))
    world.clock.at += 100
    world.check_in(0, 1, 2, 3, 4)
    world.pass_time(20)
    assigned = set(world.cohort())
    assert len(assigned) == 4
    assert listed(world, state="assigned") == assigned
    assert listed(world, state="waiting") == set(range(5)) - assigned
    assert listed(world, state="away") == {5, 6, 7}
    assert listed(world, device_class="phone") == {0, 1, 4, 7}
    assert listed(world, device_class="no class") == {3}
    assert listed(world, seen_since=world.clock.at - 30) == set(range(5))
    assert listed(world, seen_since=world.clock.at + 1) == set()
    assert listed(world, q="WARD") == {0, 1}
    assert listed(world, q=world.rows[6].device[2:].upper()) == {6}
    assert listed(world, q="%") == set(), "a filter is a text and no pattern"
    assert listed(world, device_class="phone", state="away") == {7}
    assert listed(world, sees=lambda run: run == "marks") == assigned
    assert listed(world, sees=lambda run: False) == set()


def test_a_filtered_list_is_paged_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    world = labelled(World(8))
    world.create()
    world.check_in(0, 1, 2, 3, 4)
    world.pass_time(20)
    fleet = world.coordinator.insight.fleet
    states = ("assigned", "waiting", "away", "left", None)
    wanted = [DeviceFilter(device_class=of, state=state) for of in ("", "phone") for state in states]
    wholes = [fleet.devices(wanted=one) for one in wanted]
    assert [len(whole) for whole in wholes[-3:]] == [1, 0, 4]
    monkeypatch.setattr(fleet_views, "LOOKED_AT", 2)
    monkeypatch.setattr(fleet_views, "READ", 1)
    for one, whole in zip(wanted, wholes, strict=True):
        page = fleet.devices(1, "", one)
        pages = [page]
        while page.next:
            page = fleet.devices(1, page.next, one)
            pages.append(page)
        assert [view for page in pages for view in page] == whole
        assert max(map(len, pages)) <= 1
        if one.state == "assigned":
            theirs = replace(one, state=None, sees=lambda run: run == "marks")
            assert fleet.devices(wanted=theirs) == [view.changed(rounds_joined=0) for view in whole]
    nobody = fleet.devices(1, "", DeviceFilter(sees=lambda run: False))
    assert (nobody, nobody.next) == ([], ""), "no id of a device of another run"
    assert not fleet.devices(1, "", DeviceFilter(q="no such text"))
    assert fleet.devices(1, "", DeviceFilter(q="no such text")).next, "there is more to look at"


def test_how_often_a_device_took_part_is_counted_over_all_runs() -> None:
    world = World(4)
    world.create(finish={"rounds": 2})
    first = world.play_round(1)
    second = world.play_round(2)
    assert len(first) == len(second) == 3
    for number in range(4):
        assert shown(world, number).rounds_joined == (number in first) + (number in second)
    listed_views = world.coordinator.insight.fleet.devices()
    assert sum(view.rounds_joined for view in listed_views) == 6
    assert {view.refusals for view in listed_views} == {0}


def test_a_device_is_shown_with_its_rounds_newest_first() -> None:
    world = World(4)
    world.create(finish={"rounds": 2})
    world.check_in()
    cohort = world.cohort()
    late = cohort[3]
    world.clock.at += 1
    world.report(*cohort[:3])
    world.clock.at += 1
    with world.refuses("late"):
        world.report(late)
    world.clock.at += 1
    world.check_in()
    world.pass_time(11)
    world.report(late, round=2)
    others = [number for number in world.cohort() if number != late]
    world.clock.at += 1
    world.report(*others[:2], round=2)
    found = world.coordinator.insight.fleet.device(world.rows[late].device)
    assert [(one.run, one.round, one.result, one.version) for one in found.rounds] == [
        ("marks", 2, "counted", 2),
        ("marks", 1, "late", None),
    ]
    assert found.device.refusals == 1
    assert found.rounds[1].reason
    with world.refuses("unknown-device"):
        world.coordinator.insight.fleet.device("nobody")


@pytest.mark.parametrize("looked_at", [2, 6, 50])
def test_those_that_may_be_there_without_a_place_are_paged_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    """Nodes of Flower runs, and who fits no run and comes back."""
    world = World(60)
    world.create()
    other, fleet = CheckIn(examples=10, learners={"tests:other": "1"}), world.coordinator.insight.fleet
    for number in range(15, 30):
        world.coordinator.devices.check_in(world.rows[number], other)()
    world.clock.at += 90  # places expire
    for number in range(25, 40):
        world.coordinator.devices.check_in(world.rows[number], other)()
    with world.store.transaction() as tx:
        for row in world.rows[40:]:
            tx.put_flower_node(row.device, node_id(row.device), facts_of(FlowerPoll(apps=(APP,))), world.clock.at)
    world.check_in(*range(15))
    monkeypatch.setattr(fleet_views, "LOOKED_AT", looked_at)
    monkeypatch.setattr(fleet_views, "READ", looked_at)
    found: dict[str, set[int]] = {}
    for state in ("waiting", "unfit"):
        for limit in (1, 3, 5):
            pages, after = list[DeviceView](), ""
            while True:
                page = fleet.devices(limit, after, DeviceFilter(state=state))  # type: ignore[arg-type]
                pages += page
                if not (after := page.next):
                    break
            ids = [view.device for view in pages]
            assert ids == sorted({*ids}), "none is there twice"
            assert found.setdefault(state, {*map(world.index, ids)}) == {*map(world.index, ids)}
    assert found["unfit"] >= {*range(25, 40)}
    assert found["waiting"] | found["unfit"] >= {*range(40, 60)}
    assert len(found["waiting"] & {*range(15)}) == 11


def test_who_sees_some_runs_sees_devices_and_their_rounds_of_those_alone() -> None:
    world = World(4)
    world.create(finish={"rounds": 1})
    counted = world.play_round(1)
    fleet = world.coordinator.insight.fleet

    def seen(number: int, run: str) -> DeviceDetail:
        return fleet.device(world.rows[number].device, lambda one: one == run)

    assert [one.run for one in seen(counted[0], "marks").rounds] == ["marks"]
    assert seen(counted[0], "marks").device.rounds_joined == 1
    with world.refuses("unknown-device"):
        seen(counted[0], "another")
    (missing,) = set(range(4)) - set(counted)
    with world.refuses("unknown-device"):
        seen(missing, "marks")


@pytest.mark.parametrize("wanted", [{"state": "waiting"}, {"state": "unfit"}, {"state": "left"}, {"seen_since": 1e12}])
def test_repro_no_page_ends_with_a_device_of_another_run_for_who_sees_some_runs(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    """The next page began after a device that waits, or works for another run."""
    world = World(16)
    for name in ("marks", "others"):
        world.create(name=name)
    world.check_in()
    mine = {claim.device for claim in world.store.claims("marks")}
    assert (len(mine), len(world.store.claims())) == (4, 8)
    monkeypatch.setattr(fleet_views, "READ", 1)
    monkeypatch.setattr(fleet_views, "LOOKED_AT", 2)
    fleet, after, ends = world.coordinator.insight.fleet, "", set[str]()
    while not ends or after:
        page = fleet.devices(1, after, DeviceFilter(**wanted, sees=lambda run: run == "marks"))
        assert not page
        after = page.next
        ends.add(after)
    assert ends <= mine | {""}


def test_a_devices_certificate_says_how_it_would_be_refused() -> None:
    world = World(3)
    identities, fleet = world.coordinator.identities, world.coordinator.insight.fleet

    def certificate(number: int) -> CertificateView:
        found = fleet.device(world.rows[number].device).certificate
        assert found is not None
        return found

    good = certificate(0)
    assert good.not_after - good.not_before > 86_400
    assert (good.refused, good.reason) == ("", "")
    identities.take_list(world.authority.list(world.clock.at, world.keys[1]))
    assert certificate(1).refused == "revoked-key"
    assert certificate(1).reason == "The authority has revoked this key."
    identities.leave(world.rows[2])
    assert fleet.device(world.rows[2].device).certificate is None
    world.clock.at = good.not_after
    assert certificate(0).refused == "expired-certificate"


def test_repro_how_often_a_device_took_part_in_other_runs_is_not_said_to_who_sees_some() -> None:
    world = World(4)
    world.create(finish={"rounds": 1})
    counted = world.play_round(1)
    world.create(name="mine")
    world.check_in()
    fleet = world.coordinator.insight.fleet

    def mine(run: str) -> bool:
        return run == "mine"

    everybody = fleet.devices()
    assert sum(view.rounds_joined for view in everybody) == len(counted)
    seen = fleet.devices(wanted=DeviceFilter(sees=mine))
    assert len(seen) == 4
    assert {(view.run, view.rounds_joined, view.refusals) for view in seen} == {("mine", 0, 0)}
    for view in seen:
        found = fleet.device(view.device, mine)
        assert (found.device, found.rounds) == (view, [])
    assert fleet.device(seen[0].device, lambda run: run == "marks").device.state == "away", "nothing of ours"


def test_classes_say_who_is_never_heard() -> None:
    world = labelled(World(8))
    world.create(cohort={"select": 8, "goal": 4, "quorum": 0.5, "select_s": 10, "collect_s": 60}, finish={"rounds": 1})
    world.check_in()
    world.report(0, 1, 2, 6)
    found = {view.device_class: view for view in world.coordinator.insight.fleet.fleet().by_class}
    assert {name: (view.devices, view.rounds_joined, view.never_heard) for name, view in found.items()} == {
        "phone": (4, 2, 2),
        "tablet": (2, 1, 1),
        "hospital": (1, 1, 0),
        "no class": (1, 0, 1),
    }
    assert next(iter(found)) == "phone", "the largest class comes first"


def test_repro_a_label_that_says_the_name_of_no_class_says_none() -> None:
    """There were two classes of that name, and of the larger one nobody was told who takes part in a run."""
    world = World(8)
    world.create()
    with world.store.transaction() as tx:
        tx.insert_device(rows.device("own", label="no class/of mine"))
    insight = world.coordinator.insight
    assert [(one.device_class, one.devices) for one in insight.fleet.fleet().by_class] == [("no class", 9)]
    world.play_round(1)
    (found,) = insight.participation.of_run("marks", "", 100, fleet=True).by_class
    assert (found.device_class, found.devices, found.never_counted) == ("no class", 9, 6)


def test_many_classes_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_views, "_CLASSES", 2)
    found = labelled(World(8)).coordinator.insight.fleet.fleet().by_class
    assert [(view.device_class, view.devices, view.never_heard) for view in found] == [
        ("phone", 4, 4), ("tablet", 2, 2), ("other classes", 2, 2),
    ]  # fmt: skip


def test_states_and_counts_agree_and_who_has_left_is_in_no_class() -> None:
    world = World(8)
    world.create()
    world.check_in(0, 1, 2, 3, 4)
    world.pass_time(11)
    world.coordinator.identities.leave(world.rows[7])
    found = world.coordinator.insight.fleet.fleet()
    assert found.by_state == {"waiting": 1, "unfit": 0, "assigned": 4, "away": 2, "left": 1}
    assert world.coordinator.insight.fleet.counts().model_dump() == {"waiting": 1, "unfit": 0, "assigned": 4, "away": 2}
    assert sum(view.devices for view in found.by_class) == 7


def test_the_whole_fleet_is_read_again_after_ten_seconds() -> None:
    world = World(8)
    fleet = world.coordinator.insight.fleet
    assert fleet.fleet().by_state["waiting"] == 0
    world.check_in(0)
    assert fleet.fleet().by_state["waiting"] == 0
    world.clock.at += 10
    assert fleet.fleet().by_state["waiting"] == 1


def test_devices_by_hour_survive_a_restart_and_are_the_same_on_every_replica() -> None:
    world = World(8)
    hour = 3600.0
    world.clock.at = 1_000_000 * hour
    replica = world.replica()
    world.check_in(0, 1, 2)
    world.coordinator.insight.fleet.note_hours()
    replica.devices.check_in(world.rows[3], world.message())()
    replica.devices.check_in(world.rows[0], world.message())()
    replica.insight.fleet.note_hours()
    world.coordinator.insight.fleet.note_hours()
    world.clock.at += hour
    world.check_in(0, 5)
    restarted = world.boot()
    restarted.insight.fleet.note_hours()
    world.clock.at += 2 * hour
    for found in (restarted.insight.fleet.fleet(), replica.insight.fleet.fleet()):
        assert len(found.availability) == 24
        assert [one.devices for one in found.availability[-5:]] == [0, 4, 2, 0, 0]
        assert [one.from_at for one in found.availability[-2:]] == [world.clock.at - hour, world.clock.at]


def test_a_device_is_shown_with_the_hours_in_which_it_was_seen() -> None:
    world = World(2)
    hour = 3600.0
    world.clock.at = 1_000_000 * hour + 5
    for _ in range(2):
        world.check_in(0)
        world.coordinator.insight.fleet.note_hours()
        world.clock.at += 2 * hour
    world.check_in(0)  # not noted yet

    def seen(number: int) -> list[int]:
        found = world.boot().insight.fleet.device(world.rows[number].device).availability
        assert [one.from_at for one in found[-2:]] == [world.clock.at - 5 - hour, world.clock.at - 5]
        assert len(found) == 24
        return [back for back, one in enumerate(reversed(found)) if one.seen]

    assert seen(0) == [0, 2, 4]
    assert seen(1) == []
    world.clock.at += 20 * hour
    assert seen(0) == [20, 22]


def test_a_check_in_is_no_row_of_an_hour() -> None:
    world = World(8)
    world.check_in()
    assert world.store.seen_by_hour(0) == {}
    world.coordinator.insight.fleet.note_hours()
    assert list(world.store.seen_by_hour(0).values()) == [8]
    world.clock.at += 49 * 3600
    world.check_in(0)
    world.coordinator.insight.fleet.note_hours()
    assert list(world.store.seen_by_hour(0).values()) == [1], "hours that are not shown any more are gone"


@pytest.mark.slow
def test_ten_thousand_devices_are_paged_and_counted(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'many.db'}")
    with store.transaction() as tx:
        tx.insert_run(rows.run("r1"))
        for number in range(10_000):
            tx.insert_device(rows.device(f"d{number:05}", label=f"class {number % 100}/{number}"))
        for ended in range(1, 11):
            tx.put_round(rows.round_(ended, status="committed", closed_at=float(ended)))
            tx.insert_contributions(rows.contribution(f"d{number:05}", round=ended) for number in range(256))
    world = World(0, store=store)
    fleet = world.coordinator.insight.fleet
    found, after = 0, ""
    while page := fleet.devices(1000, after):
        found, after = found + len(page), page[-1].device
    assert found == 10_000
    whole = fleet.fleet()
    assert len(whole.by_class) == 51
    assert sum(view.rounds_joined for view in whole.by_class) == 2560
    assert len(json.dumps(whole.model_dump(mode="json"))) < 20_000
    assert [view.device for view in fleet.devices(9, "", DeviceFilter(q="/9999"))] == ["d09999"]
    store.close()


def test_every_check_in_is_seen_and_who_fits_no_run_waits_with_the_reason() -> None:
    """A thousand devices that checked in 70 times a second were shown away, last seen eleven minutes ago."""
    world = World(8)
    world.create()
    fleet = world.coordinator.insight.fleet
    world.clock.at += 700
    other = CheckIn(examples=10, learners={"tests:other": "1"})
    for number in range(6):
        world.coordinator.devices.check_in(world.rows[number], other)()
    world.check_in(6)
    for coordinator in (world.coordinator, world.replica()):
        world.coordinator = coordinator
        assert listed(world, state="unfit") == set(range(6)), "also of a replica that they did not ask"
        assert coordinator.insight.fleet.counts().unfit == 6
    view = shown(world, 0)
    assert view.last_seen_at == world.clock.at
    assert view.unfit.startswith(f"run marks: the plan wants the learner {LEARNER}, which this device does not have")
    assert fleet.counts().model_dump() == {"waiting": 1, "unfit": 6, "assigned": 0, "away": 1}
    world.pass_time(6)
    stalled = world.coordinator.operators.run("marks").stalled
    assert f"Install {LEARNER} on them, or start them with --learner {LEARNER}" in stalled
    world.check_in(0)
    assert (shown(world, 0).state, shown(world, 0).unfit) == ("waiting", "")
    world.create(name="of-others", task={"learner": "tests:other"})
    assert shown(world, 1).state == "away", "a run that it fits has begun"
    world.coordinator.operators.stop("of-others")
    assert shown(world, 1).state == "unfit"
    world.coordinator.operators.pause("marks")
    world.coordinator.devices.check_in(world.rows[2], other)()
    assert shown(world, 2).state == "waiting"
    world.coordinator.operators.resume("marks")
    assert (shown(world, 2).state, fleet.counts().waiting) == ("unfit", 2), "it waits for the end of its hold"
    world.clock.at += 1000
    assert listed(world, state="unfit") == set(), "they have not come back"
    assert shown(world, 1).state == "away"


def test_what_a_device_says_of_itself_is_shown_as_it_says_it_now() -> None:
    world = World(2)
    world.create()
    said = CheckIn(examples=10, learners={LEARNER: "1"}, facts=DeviceFacts(sdk="0.3.1"))
    world.coordinator.devices.check_in(world.rows[0], said)()
    world.check_in(1)
    assert [shown(world, number).facts for number in (0, 1)] == [{"sdk": "0.3.1"}, {}]
    world.coordinator.devices.check_in(world.rows[0], said.changed(facts=DeviceFacts()))()
    assert shown(world, 0).facts == {}


@pytest.mark.parametrize(("says", "people_see"), [(1, 1), (2, 2), (3, 4), (32, 32), (33, 64), (1000, 1024)])
def test_nobody_is_shown_how_many_examples_a_device_has_but_their_power_of_two(says: int, people_see: int) -> None:
    """In lists, pages of a device, the audit and the log of its rounds; the coordinator itself keeps what it said."""
    world = World(0)
    certificate = world.authority.certificate(key_of("a device"), at=world.clock.at)
    row = world.coordinator.identities.register_device(certificate, examples=says)()
    fleet = world.coordinator.insight.fleet
    assert row.examples_cap == says
    assert [view.examples_cap for view in (*fleet.devices(), fleet.device(row.device).device)] == [people_see] * 2
    (audited,) = [row.detail for _, row in world.store.audit_of_all(0, 9) if row.action == "device.register done"]
    assert audited == f"device={row.device} rounded_cap={people_see}"


def test_the_log_of_a_plain_run_shows_sizes_rounded_up() -> None:
    world = World(4)
    world.create(finish={"rounds": 1})
    world.play_round(1)
    shown = {event.kind: event.body for event in world.coordinator.operators.events("marks")}
    assert {size for _, size in cast("list[tuple[str, int]]", shown["Drawn"]["cohort"])} == {16}
    assert shown["Reported"]["examples"] == 16
    stored = {row.kind: row.body for row in world.store.events("marks", 0)}
    assert stored["Reported"]["examples"] == 10


def test_a_device_that_asks_for_its_assignment_again_is_seen() -> None:
    world = World(4)
    world.create()
    world.check_in()
    (first, *_) = world.cohort()
    world.clock.at += 3
    world.check_in(first)
    assert shown(world, first).last_seen_at == world.clock.at


def test_a_page_reads_what_its_devices_do_and_not_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(40)
    world.create()
    for number in range(0, 40, 2):
        world.check_in(number)
    whole = world.coordinator.insight.fleet.devices()
    asked: list[int] = []
    plain = type(world.store).waiting

    def waiting(store: Any, now: float, among: Any = None) -> Any:
        asked.append(-1 if among is None else len(among))
        return plain(store, now, among)

    monkeypatch.setattr(type(world.store), "waiting", waiting)
    monkeypatch.setattr(type(world.store), "idle", lambda *_: pytest.fail("it read who has checked in lately"))
    pages = [world.coordinator.insight.fleet.devices(10, after=one.device) for one in whole[9:30:10]]
    assert [world.coordinator.insight.fleet.devices(10), *pages] == [whole[n : n + 10] for n in range(0, 40, 10)]
    assert asked == [11, 11, 10, 11]
    assert world.coordinator.insight.fleet.device(whole[0].device).device.state == whole[0].state
    assert asked[4:] == [1]
