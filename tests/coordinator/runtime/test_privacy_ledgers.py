"""Privacy ledgers: each list of a round is debited once, before anything is made of its sum; who has spent rests."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.privacy.accounting import epsilon_of, rho_of
from client_sdk.protocol.insight import CheckPlan
from client_sdk.protocol.privacy import AllowSpending, CreateLedger
from coordinator.access import Grant, Operator
from coordinator.blobs import MemoryBlobs
from coordinator.requests.privacy import run_privacy
from coordinator.store.memory import MemoryStore
from coordinator.store.port import LedgerRow, SpendingRow, StoreError
from coordinator.store.rows import AllowanceRow
from coordinator.verify import verify
from tests.coordinator.runtime.test_private_rounds import PRIVATE, create, logged, violations
from tests.coordinator.world import World

ALL: dict[str, Any] = {"select": 8, "goal": 8, "quorum": 1.0, "most_rounds": 2}
ONE = rho_of(1.0, 1)
"""What a round costs here."""


@pytest.fixture
def world() -> World:
    return World()


def ledger(world: World, rounds: float, name: str = "phones", delta: float = 1e-6) -> None:
    """A ledger whose budget is that of so many rounds."""
    row = LedgerRow(
        ledger=name, epsilon=epsilon_of(rho_of(1.0, 1) * rounds, delta), delta=delta, created_at=1.0, created_by="k"
    )
    with world.store.transaction() as tx:
        tx.insert_privacy_ledger(row)


def spent(world: World, name: str = "run:marks") -> dict[int, float]:
    """Device -> rounds that it has paid for."""
    return {world.index(device): rho / ONE for device, rho in world.store.privacy_totals(name).items()}


def play(world: World, run: str, round: int = 1) -> list[int]:
    """All check in, and all of this run's cohort report."""
    world.check_in()
    mine = [number for number in world.cohort() if world.assignment(number).run == run]  # type: ignore[union-attr]
    for number in mine:
        world.send(number, world.body(number, round, run=run), round, run=run)
    return mine


def test_each_committed_round_costs_those_that_counted_and_nobody_else(world: World) -> None:
    create(world, cohort={"most_rounds": 5})
    first = world.play_round(1)
    assert spent(world) == dict.fromkeys(first, 1.0)
    (debit,) = world.store.privacy_debits("marks")
    assert (debit.round, debit.rho, debit.devices, debit.most) == (1, ONE, 3, ONE)
    for number in (2, 3, 4):
        world.play_round(number)
    assert sum(spent(world).values()) == 12.0
    figure = world.store.privacy_figure("run:marks")
    assert figure.rho == max(spent(world).values()) * ONE == world.store.privacy_debits("marks")[-1].most
    assert violations(world) == []


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("kind", ["Seeded", "Committed"])
def test_a_commit_that_dies_at_any_step_costs_once(kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    world = World(store=store)
    create(world)
    world.check_in()
    cohort = world.cohort()[:3]
    with store.transaction() as tx:
        append = type(tx).append

    def failing(tx: Any, run: str, events: Any) -> Any:
        names = {name for _, name, _ in events}
        if kind in names and how == "before":
            raise StoreError("the disk reported an error")
        found = append(tx, run, events)
        if kind in names and how == "after":
            raise RuntimeError("killed")
        return found

    monkeypatch.setattr(type(tx), "append", failing)
    with suppress(StoreError, RuntimeError):
        world.report(*cohort)
    monkeypatch.undo()
    durable = {row.kind for row in store.events("marks", 0)}
    assert bool(store.privacy_debits("marks")) == ("Seeded" in durable)
    assert "Committed" not in durable
    world.boot()
    world.settle()
    assert spent(world) == dict.fromkeys(cohort, 1.0)
    assert violations(world) == []


def test_two_replicas_that_commit_one_round_debit_it_once() -> None:
    store, blobs = MemoryStore(), MemoryBlobs()
    world = World(store=store, blobs=blobs)
    create(world)
    other = world.replica()
    counted = world.play_round(1)
    other.tick()
    while (task := other.core.take_task()) is not None:
        other.perform(task)
    assert spent(world) == dict.fromkeys(counted, 1.0)


@pytest.mark.usefixtures("updates_as_files")
def test_an_update_that_is_lost_before_the_seed_costs_nobody(world: World) -> None:
    create(world)
    world.check_in()
    first, second, third = world.cohort()[:3]
    world.report(first, second)
    (digest,) = [row.body["digest"] for row in world.store.events("marks", 0) if row.kind == "Reported"][:1]
    world.coordinator = world.boot()
    world.blobs.delete(str(digest))
    world.report(third)
    assert logged(world, "UpdateLost")
    assert not logged(world, "Seeded")
    assert spent(world) == {}


def test_two_runs_of_one_ledger_share_its_budget(world: World) -> None:
    """The third round of a device that has counted in one round of each run is not opened, whatever its own run's
    plan would allow."""
    ledger(world, 2)
    sections = {"cohort": {**ALL, "most_rounds": 5}, "privacy": {"ledger": "phones"}}
    create(world, **sections)
    assert len(play(world, "marks")) == 8
    world.coordinator.operators.stop("marks")
    world.settle()
    create(world, **sections)
    assert len(play(world, "marks-2")) == 8
    assert spent(world, "phones") == dict.fromkeys(range(8), 2.0)
    view = world.coordinator.operators.run("marks-2").privacy
    assert view is not None
    assert (view.rho, view.rounds_left, view.ledger_spent) == (ONE, 0, epsilon_of(2 * ONE, 1e-6))
    world.check_in()
    world.pass_time(11)
    assert world.cohort() == []
    stalled = world.coordinator.operators.run("marks-2").stalled
    assert "it has no room for another round in the ledger phones" in stalled
    assert violations(world) == []


def test_a_device_that_has_lost_something_by_one_ledger_takes_part_by_another_on_an_owners_word_alone(
    world: World,
) -> None:
    create(world, cohort=ALL)
    play(world, "marks")
    world.coordinator.operators.stop("marks")
    world.settle()
    plan = CheckPlan(plan=world.plan(**{**PRIVATE, "cohort": ALL}))
    warnings = world.coordinator.insight.plans.check(plan, permitted=lambda run: True).warnings
    assert any("8 devices have lost some privacy by other ledgers and take no part" in text for text in warnings)
    create(world, cohort=ALL)
    world.check_in()
    world.pass_time(11)
    assert world.cohort() == []
    stalled = world.coordinator.operators.run("marks-2").stalled
    assert "it has lost some privacy by another ledger than run:marks-2, by which this run counts" in stalled
    assert stalled.count("run:marks") == stalled.count("run:marks-2"), "who may see this run may not see that one"
    with world.store.transaction() as tx:
        tx.insert_privacy_allowance(
            AllowanceRow(ledger="run:marks-2", other="run:marks", because="a test", at=1.0, by="k")
        )
    world.check_in()
    world.pass_time(11)
    assert len(world.cohort()) == 8


def test_an_allowance_shows_at_once_however_long_a_ledger_takes_to_add_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers, clock = world.coordinator.ledgers, world.coordinator.core.clock
    for name in ("phones", "tablets"):
        ledgers.create(CreateLedger(ledger=name, epsilon=1.0, delta=1e-6), "olga")
    elapsed = iter(range(1000))
    monkeypatch.setattr(type(clock), "elapsed", lambda clock: float(next(elapsed)))
    assert ledgers.show("phones").allowed == []
    allowed = ledgers.allow("phones", AllowSpending(spent_in="tablets", because="a test"), "olga").allowed
    assert [one.other for one in allowed] == ["tablets"]


def test_a_round_whose_device_has_spent_the_rest_elsewhere_meanwhile_gives_no_model(world: World) -> None:
    """A device may be drawn while another run's round that it counts in is not debited yet."""
    ledger(world, 1)
    create(world, cohort=ALL, privacy={"ledger": "phones"})
    world.check_in()
    cohort = world.cohort()
    rival = SpendingRow(ledger="phones", run="marks", device=world.rows[cohort[0]].device, rho=ONE, times=1)
    with world.store.transaction() as tx:
        tx.put_rows("marks", {SpendingRow: {("phones", "marks", rival.device): rival}})
    world.report(*cohort)
    assert world.store.checkpoints("marks")[1:] == []
    row = world.store.round("marks", 1)
    assert row is not None
    assert row.status == "abandoned"
    assert "it has no room for another round in the ledger phones" in row.reason
    assert not logged(world, "Seeded")
    assert spent(world, "phones") == {cohort[0]: 1.0}


def test_figures_say_what_is_spent_what_is_left_and_where_it_leads(world: World) -> None:
    ledger(world, 4)
    create(world, cohort={**ALL, "most_rounds": 5}, privacy={"ledger": "phones"}, finish={"rounds": 9})
    ledgers = world.coordinator.ledgers
    before = ledgers.of_run("marks")
    assert (before.rounds, before.expected, before.no_room_from, before.ledger.spent) == ([], [], None, 0.0)
    for number in (1, 2):
        play(world, "marks", number)
    found = ledgers.of_run("marks")
    assert [(one.round, one.devices, one.most) for one in found.rounds] == [(1, 8, ONE), (2, 8, 2 * ONE)]
    assert found.rounds[1].epsilon == found.ledger.spent == epsilon_of(2 * ONE, 1e-6)
    assert (found.ledger.devices, found.ledger.near, found.ledger.tenths[4]) == (8, 0, 8)
    assert [one.round for one in found.expected] == [3, 4, 5, 6, 7, 8, 9]
    assert found.expected[1].epsilon == epsilon_of(4 * ONE, 1e-6)
    assert found.expected[-1].epsilon == found.epsilon_planned, "no device counts in more than five rounds"
    assert found.no_room_from == 5
    assert [(one.run, one.rounds, one.rho) for one in found.ledger.runs] == [("marks", 2, 2 * ONE)]
    view = world.coordinator.operators.run("marks").privacy
    assert view is not None
    assert (view.ledger, view.rounds_left, view.ledger_spent) == ("phones", 2, found.ledger.spent)


def test_who_does_not_see_everything_sees_the_runs_in_scope_alone(world: World) -> None:
    ledger(world, 4)
    sections = {"cohort": {**ALL, "most_rounds": 5}, "privacy": {"ledger": "phones"}}
    create(world, **sections)
    play(world, "marks")
    world.coordinator.operators.stop("marks")
    world.settle()
    create(world, **sections)
    play(world, "marks-2")
    with world.refuses("unknown-ledger", "there is no privacy ledger run:marks"):
        world.coordinator.ledgers.show("run:marks")
    found = run_privacy(world.coordinator, Operator("k", (Grant.parse("viewer marks-2"),)), run="marks-2")
    assert [one.run for one in found.ledger.runs] == ["marks-2"]
    assert found.ledger.spent == epsilon_of(2 * ONE, 1e-6), "the figure is that of all runs"
    whole = run_privacy(world.coordinator, Operator("k", (Grant.parse("viewer"),)), run="marks-2")
    assert [one.run for one in whole.ledger.runs] == ["marks", "marks-2"]


def test_a_round_keeps_other_runs_from_debiting_before_it_looks_for_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a database with several writers two runs would else both find room for the last round of a device."""
    create(world)
    world.check_in()
    cohort, done = world.cohort(), list[str]()
    with world.store.transaction() as tx:
        kind: Any = type(tx)
    for name in ("hold_privacy_ledgers", "privacy_spending", "debit_privacy"):
        method = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, name=name, method=method: (done.append(name), method(*given))[1])
    world.report(*cohort[:3])
    assert done[:3] == ["hold_privacy_ledgers", "privacy_spending", "debit_privacy"]


def test_a_plan_that_its_ledger_does_not_fit_is_refused_before_there_is_a_run(world: World) -> None:
    with world.refuses("invalid-plan", "there is no privacy ledger phones: 'quorate privacy ledger create phones"):
        create(world, privacy={"ledger": "phones"})
    ledger(world, 2)
    with world.refuses("invalid-plan", "no privacy ledger fones; did you mean phones"):
        create(world, privacy={"ledger": "fones"})
    with world.refuses("invalid-plan", "the ledger phones counts at delta 1e-06, and the plan at 1e-05"):
        create(world, privacy={"ledger": "phones", "delta": 1e-5})
    with world.refuses("invalid-plan", "one round costs epsilon 37.4, and the ledger phones allows 7.77"):
        create(world, privacy={"ledger": "phones", "noise": 0.2})
    create(world, privacy={"ledger": "phones"})
    with world.refuses("invalid-plan", "a ledger is of one population"):
        create(world, privacy={"ledger": "phones"}, cohort={"devices": [row.device for row in world.rows[:4]]})


def test_a_folder_that_was_set_back_debits_the_list_that_ends_its_round(world: World) -> None:
    """What the lost rows told is known to nobody here: the restored ledger holds what the restored log tells."""
    create(world)
    world.check_in()
    cohort = world.cohort()
    store, blobs = _copied(world)
    world.report(*cohort[:3])
    assert spent(world) == dict.fromkeys(cohort[:3], 1.0)
    world.store, world.blobs = store, blobs
    world.boot()
    world.report(*cohort[1:4])
    assert spent(world) == dict.fromkeys(cohort[1:4], 1.0)
    assert violations(world) == []


def _copied(world: World) -> tuple[MemoryStore, MemoryBlobs]:
    assert isinstance(world.store, MemoryStore)
    assert isinstance(world.blobs, MemoryBlobs)
    store = MemoryStore()
    for row, table in world.store._committed.tables.items():
        for key, one in table.all.rows.items():
            store._committed.tables[row].put(key, one)
        store._committed.tables[row].last = table.last
    blobs = MemoryBlobs()
    for digest in world.blobs.digests():
        with world.blobs.open(digest) as file, blobs.spool() as spool:
            spool.write(file.read())
            spool.commit(digest)
    return store, blobs


def test_verify_names_a_ledger_that_holds_less_than_was_told(world: World) -> None:
    create(world)
    counted = world.play_round(1)
    device = world.rows[counted[0]].device
    (debit,) = world.store.privacy_debits("marks")
    (row,) = world.store.privacy_spending([device])
    table = world.store._committed.tables  # type: ignore[attr-defined]
    key = ("run:marks", "marks", device)

    table[SpendingRow].put(key, replace(row, rho=row.rho / 2))
    found = [str(one) for one in verify(world.store, world.blobs) if one.invariant == "ledger"]
    assert any(f"{device} has counted in 1 rounds, which is zCDP 0.5, and the ledger has 0.25" in one for one in found)
    table[SpendingRow].put(key, row)
    assert violations(world) == []

    table[type(debit)].drop(("run:marks", "marks", 1, debit.counted))
    found = [str(one) for one in verify(world.store, world.blobs) if one.invariant == "ledger"]
    assert any("its sum is in the model, and not in the privacy ledger run:marks" in one for one in found)
    assert any("what its devices have lost is not the sum of its rounds" in one for one in found)
