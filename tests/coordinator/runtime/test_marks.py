"""A device that has signed on a model is drawn for that model by no run, and one that has declined it by that run no
more."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import SignedModel
from client_sdk.tensors import canonical_digest, to_bytes
from coordinator.commands.tables import print_run
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.store import MemoryStore, Store, open_store
from coordinator.store.port import MarkRow
from coordinator.verify import verify
from tests.client_sdk.bounds import any_work
from tests.coordinator import secure_runs
from tests.coordinator.secure_runs import check_in, happens, says, secure_run, state, to_the_list
from tests.coordinator.world import World


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    store: Store = MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path / 'q.db'}")
    return World(4, store=store)


def spent_on_first_model(world: World) -> tuple[str, ...]:
    """All four devices have signed on the first checkpoint of a run, which was stopped then."""
    secure_run(world)
    check_in(world)
    cohort = to_the_list(world)
    says(world, ev.Signed, *cohort)
    world.coordinator.operators.stop("secret")
    return cohort


def last_drawn(world: World, run: str) -> dict[str, Any]:
    found = [row.body for row in world.store.events(run, 0) if row.kind == "Drawn"]
    return found[-1]


def in_another_file(body: bytes) -> bytes:
    """A file of the tensors of ``body`` in the other order, behind a padded header."""
    (length,) = struct.unpack("<Q", body[:8])
    header, data = json.loads(body[8 : 8 + length]), body[8 + length :]
    again, parts = {}, b""
    for name in reversed(header):
        start, end = header[name]["data_offsets"]
        again[name] = {**header[name], "data_offsets": [len(parts), len(parts) + end - start]}
        parts += data[start:end]
    text = json.dumps(again).encode()
    text += b" " * (-len(text) % 8 + 64)
    return struct.pack("<Q", len(text)) + text + parts


def test_repro_devices_that_signed_in_one_run_were_drawn_by_the_next_on_the_same_model(world: World) -> None:
    cohort = spent_on_first_model(world)
    marks = world.store.marks(canonical_digest(to_bytes(world.model())))
    assert [(row.device, row.run, row.round) for row in marks] == [(device, "secret", 1) for device in sorted(cohort)]
    second = secure_run(world, name="second")
    check_in(world)
    world.pass_time(61)
    drawn = last_drawn(world, second)
    assert (drawn["waiting"], drawn["unspendable"], drawn["cohort"]) == (0, 4, [])
    assert "4 have signed on this checkpoint" in state(world, second).exhausted


def test_another_file_of_the_same_tensors_is_the_same_model(world: World) -> None:
    spent_on_first_model(world)
    body = in_another_file(to_bytes(world.model()))
    assert body != to_bytes(world.model())
    second = secure_run(world, body=body, name="second")
    check_in(world)
    world.pass_time(61)
    assert last_drawn(world, second)["unspendable"] == 4


def test_another_model_has_all_devices_and_so_has_a_plain_run(world: World) -> None:
    spent_on_first_model(world)
    other = {**world.model(), "steps": np.array(8, np.int64)}
    second = secure_run(world, other, name="second")
    check_in(world)
    assert len(state(world, second).current.members) == 4
    world.coordinator.operators.stop(second)
    world.create()
    check_in(world)
    assert len(world.coordinator.core.state("marks").current.members) == 4
    assert world.coordinator.core.state("marks").tensors == ""


def test_a_commit_to_a_model_on_which_devices_have_signed_leaves_them_out(world: World) -> None:
    """A run comes to the model of another one, here as both were advanced from the same checkpoint."""
    secure_run(world)
    secure_runs.exhausted(world)
    world.coordinator.operators.advance("secret", "olga")
    check_in(world)
    moved = state(world).tensors
    assert moved == canonical_digest(world.blobs.open(state(world).checkpoint))
    assert moved != canonical_digest(to_bytes(world.model()))
    says(world, ev.Signed, *to_the_list(world))
    world.coordinator.operators.stop("secret")

    second = secure_run(world, name="second")
    check_in(world)
    world.pass_time(61)
    world.coordinator.operators.advance(second, "olga")
    check_in(world)
    world.pass_time(61)
    found = state(world, second)
    assert (found.version, found.tensors, found.spent) == (1, moved, ())
    drawn = last_drawn(world, second)
    assert (drawn["waiting"], drawn["unspendable"]) == (0, 4)
    assert "at version 1: of the devices that wait 4 have signed" in found.exhausted


def test_who_declined_is_left_out_and_counted_apart_until_another_run_asks(world: World) -> None:
    secure_run(world)
    check_in(world)
    happens(world, ev.Announced, header="00" * 32, expires_at=int(world.clock.now()) + 3000)
    devices = sorted(state(world).current.members)
    for device in devices[:2]:
        happens(world, ev.Declined, device=device, reason="it advertised 8 times here")
    check_in(world)
    world.pass_time(61)
    drawn = last_drawn(world, "secret")
    assert (drawn["waiting"], drawn["unspendable"], drawn["declined"]) == (2, 2, 2)
    row = world.coordinator.operators.rounds("secret")[1]
    assert "2 have declined this checkpoint" in row.reason
    assert "2 devices were ineligible: it has declined this checkpoint: it advertised 8 times here" in row.reason
    world.coordinator.operators.stop("secret")
    second = secure_run(world, name="second")
    check_in(world)
    assert len(state(world, second).current.members) == 4, "it may have another plan"


def test_repro_a_pool_of_devices_that_have_signed_looked_full_and_nothing_said_why(world: World) -> None:
    spent_on_first_model(world)
    second = secure_run(world, name="second")
    check_in(world)
    drawn = [task for task in world.coordinator.core.tasks() if isinstance(task[1], fx.Draw)]
    assert drawn == [], "a draw would find nobody"
    world.pass_time(6)
    assert world.coordinator.operators.run(second).stalled == (
        "0 eligible devices wait; a round needs at least 3. Others wait and are left out: 4 have signed on this "
        "checkpoint; the ways out: more devices, 'quorate run advance second', once it is exhausted, and where "
        "devices' owners allow near models (--near-repeats 1)"
    )
    world.pass_time(61)
    check_in(world)
    world.pass_time(6)
    line = world.coordinator.operators.run(second).stalled
    assert line.endswith(
        "the ways out: more devices, 'quorate run advance second', where devices' owners allow near models "
        "(--near-repeats 1)"
    )


def test_the_view_of_a_new_run_says_how_many_are_spent_on_its_first_model(world: World) -> None:
    spent_on_first_model(world)
    secure_run(world, name="second")
    view = world.coordinator.operators.run("second")
    assert (view.devices_spent, view.devices_registered) == (4, 4)
    world.create()
    plain = world.coordinator.operators.run("marks")
    assert (plain.devices_spent, plain.devices_registered) == (0, 0)


def test_marks_survive_a_restart_and_the_state_is_folded_to_the_same_tensors(world: World) -> None:
    spent_on_first_model(world)
    before = state(world)
    assert before.tensors == canonical_digest(to_bytes(world.model()))
    world.boot()
    assert state(world) == before


def test_verify_names_a_mark_that_was_removed_or_made_up(world: World) -> None:
    cohort = spent_on_first_model(world)
    assert [found.what for found in verify(world.store, world.blobs)] == []
    with world.store.transaction("secret") as tx:
        tx.insert_marks([MarkRow(tensors="0" * 64, device=cohort[0], run="secret", round=1)])
    found = [violation.what for violation in verify(world.store, world.blobs)]
    place = f"secure_marks, tensors {'0' * 64}, device {cohort[0]}"
    assert f"{place}: the row is stored, and the log does not give it" in found


def test_devices_are_told_of_the_signature_under_the_newest_model_and_asked_again(world: World) -> None:
    secure_run(world)
    secure_runs.exhausted(world)
    world.coordinator.operators.advance("secret", "olga")
    check_in(world)
    number = state(world).round_number
    for device in sorted(state(world).current.members):
        late = state(world).round_number > number
        happens(world, ev.Declined, device=device, round=number, reason="it is too far", late=late)
    assert len(state(world).declined) == 4
    world.coordinator.operators.vouch("secret", 1, "5e" * 64)
    assert (state(world).declined, state(world).vouched) == ({}, (1, "5e" * 64))
    before = state(world)
    world.boot()
    assert state(world) == before
    check_in(world)
    answers = world.check_in(secure=any_work(smallest_cohort=3))
    given = [answer.secure.signed for answer in answers if isinstance(answer, Assignment) and answer.secure is not None]
    row = world.store.checkpoint("secret", 1)
    assert row is not None
    assert given == [SignedModel(digest=row.digest, bytes=row.bytes, version=1, signature="5e" * 64)] * 4
    assert [found.what for found in verify(world.store, world.blobs)] == []


@pytest.mark.parametrize("policy", [{"secure_only": True}, {"plain": ()}])
def test_devices_that_tell_no_size_are_drawn_where_the_plan_does_not_ask_for_it(
    world: World, policy: dict[str, Any]
) -> None:
    secure_run(world)
    world.check_in(examples=0, secure=any_work(smallest_cohort=3), **policy)
    assert len(state(world).current.members) == 4
    world.coordinator.operators.stop("secret")
    sizes = {"select": 4, "goal": 4, "quorum": 0.6, "min_examples": 5}
    asking = secure_run(world, name="asking", cohort=sizes)
    (answer, *_) = world.check_in(examples=0, secure=any_work(smallest_cohort=3), **policy)
    assert "the plan selects devices by their size, and this one tells none" in answer.reason
    assert state(world, asking).phase == "selecting"


def test_an_owner_lifts_a_bar_and_verify_finds_it_in_the_log(world: World) -> None:
    secure_run(world)
    check_in(world)
    cohort = to_the_list(world)
    says(world, ev.Signed, *cohort)
    says(world, ev.Revealed, *cohort[:3])
    happens(world, ev.OpeningFailed, lost=(cohort[3],), reason="its shares give another secret")
    view = world.coordinator.operators.run("secret")
    assert view.barred == {cohort[3]: 12}
    assert world.coordinator.operators.unbar("secret", cohort[3], "key-1 (olga)").barred == {}
    (row,) = (row for row in world.store.audit("secret") if row.action == "unbar")
    assert row.by == "key-1 (olga)"
    assert list(verify(world.store, world.blobs)) == []
    with pytest.raises(ProblemError, match=f"device {cohort[3]} is not barred from run secret"):
        world.coordinator.operators.unbar("secret", cohort[3], "olga")
    with pytest.raises(ProblemError, match="there is no run 'nowhere'"):
        world.coordinator.operators.unbar("nowhere", cohort[3], "olga")


def test_the_command_says_the_ways_out(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    spent_on_first_model(world)
    secure_run(world, name="second")
    print_run(world.coordinator.operators.run("second"))
    assert (
        "spent       4 of 4 registered devices have signed on this checkpoint, and contribute to it no more"
    ) in capsys.readouterr().out
