"""Updates that do not count, and their refusals: withdrawn, late, stale, not selected, and updates that do not fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Receipt
from coordinator.blobs import TooLarge
from coordinator.engine import events as ev
from coordinator.verify import verify
from tests.coordinator.world import World

# ---------------------------------------------------------------- withdrawal, late, stale, not selected


def test_a_device_that_withdraws_is_free_at_once_and_cannot_report(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    device = world.rows[number].device
    world.coordinator.devices.withdraw(device, "marks", 1, 0, "battery low")
    world.coordinator.devices.withdraw(device, "marks", 1, 0, "battery low")
    assert world.assignment(number) is None
    assert world.coordinator.devices.outcome(device, "marks", 1).result == "withdrawn"
    assert world.check_in(number) == [None], "it waits for the next round"
    with world.refuses("withdrawn"):
        world.report(number)
    assert world.refusals() == [(number, "withdrawn")]
    assert world.coordinator.operators.round("marks", 1).funnel.withdrawn == 1


def test_the_round_is_abandoned_as_soon_as_too_many_withdrew(world: World) -> None:
    world.check_in()
    for number in world.cohort()[:3]:
        world.coordinator.devices.withdraw(world.rows[number].device, "marks", 1, 0, "moved")
    assert world.coordinator.operators.round("marks", 1).reason == (
        "3 of 4 devices withdrew; 1 are left and the quorum is 2"
    )


def test_a_device_that_was_not_selected_is_refused_before_the_body_is_read(world: World) -> None:
    world.check_in()
    outsider = next(number for number in range(8) if number not in world.cohort())
    device = world.rows[outsider].device
    with world.refuses("not-selected", "was not selected for round 1"):
        world.coordinator.devices.update_limit(device, "marks", 1, 0)
    with world.refuses("not-selected"):
        world.coordinator.devices.started(device, "marks", 1, 0)()
    with world.refuses("not-selected"):
        world.coordinator.devices.withdraw(device, "marks", 1, 0, "")
    assert world.coordinator.devices.outcome(device, "marks", 1).result == "unknown"


@pytest.mark.parametrize(("number", "attempt"), [(2, 0), (1, 1), (10**6, 0)])
def test_a_round_that_is_not_open_is_stale_before_the_body_is_read(world: World, number: int, attempt: int) -> None:
    world.check_in()
    with world.refuses("stale"):
        world.coordinator.devices.update_limit(world.rows[world.cohort()[0]].device, "marks", number, attempt)


def test_a_late_update_is_refused_before_the_body_is_read_and_recorded_once(world: World) -> None:
    world.check_in()
    late = world.cohort()[3]
    world.report(*world.cohort()[:3])
    device = world.rows[late].device
    for _ in range(2):
        with world.refuses("late", "round 1 is over"):
            world.coordinator.devices.update_limit(device, "marks", 1, 0)
    assert world.refusals() == [(late, "late")]
    with world.refuses("not-selected"):
        world.coordinator.devices.update_limit("somebody else", "marks", 1, 0)
    outcome = world.coordinator.devices.outcome(device, "marks", 1)
    assert (outcome.result, outcome.reason) == ("refused", "round 1 is over")


def test_an_update_whose_round_closes_while_it_is_read_is_late_and_leaves_no_bytes(world: World) -> None:
    world.check_in()
    *counted, late = world.cohort()
    body, device = world.body(late), world.rows[late]
    with world.blobs.spool(world.coordinator.devices.update_limit(device.device, "marks", 1, 0)) as spool:
        spool.write(body)
        world.report(*counted)
        with world.refuses("late"):
            world.coordinator.devices.report(device, "marks", 1, 0, spool)()
    assert world.refusals() == [(late, "late")]
    assert not world.blobs.has(hashlib.sha256(body).hexdigest())
    world.require({1: counted})


@pytest.mark.usefixtures("updates_as_files")
def test_repro_equal_bytes_of_two_devices_are_not_deleted_under_the_one_that_counts() -> None:
    """With retention the late twin's refusal deleted the counted update's blob."""
    world = World(8)
    world.create(retention={"rounds": 3})
    world.check_in()
    first, *others, late = world.cohort()
    body = world.body(first)
    with world.blobs.spool() as spool:
        spool.write(body)
        receipt = world.send(first, body)
        world.report(*others)
        with world.refuses("late"):
            world.coordinator.devices.report(world.rows[late], "marks", 1, 0, spool)()
    assert world.coordinator.operators.run("marks").version == 1
    assert world.blobs.has(receipt.digest)


def test_repro_a_second_copy_that_waited_until_its_round_had_ended_is_not_recorded_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 4001064: the update counted, its sender had the receipt, and a refusal of the same bytes was stored."""
    world = World(8)
    world.create(retention={"rounds": 3})
    world.check_in()
    first, *others, _ = world.cohort()
    body, store = world.body(first), world.coordinator.devices.count

    def meanwhile(*given: Any, **more: Any) -> Callable[[], Receipt]:
        monkeypatch.undo()
        world.report(first, *others)
        return store(*given, **more)

    monkeypatch.setattr(world.coordinator.devices, "count", meanwhile)
    with world.blobs.spool() as spool:
        spool.write(body)
        receipt = world.coordinator.devices.report(world.rows[first], "marks", 1, 0, spool)()
    assert receipt.digest == hashlib.sha256(body).hexdigest()
    assert world.coordinator.operators.run("marks").version == 1
    assert world.refusals() == []
    assert list(verify(world.store, world.blobs)) == []


def test_a_second_copy_in_the_transaction_that_ends_the_round_is_not_recorded_as_late(world: World) -> None:
    world.check_in()
    first, *others, late = world.cohort()
    log = world.coordinator.core.log("marks")
    mine = {number: world.rows[number].device for number in (first, late)}
    kept: dict[str, str] = {}

    def again(number: int, digest: str) -> Callable[..., ev.Reported]:
        def make(tx: Any, state: Any, at: float) -> ev.Reported:
            return ev.Reported(
                at=at, round=1, attempt=0, device=mine[number], digest=digest, bytes=1, examples=1, steps=1,
                steps_planned=1, complete=True,
            )  # fmt: skip

        return make

    def with_the_commit(make: Any, *, fence: int | None = None) -> Any:
        event_kinds.append("commit")
        log.submit = submit  # type: ignore[method-assign]
        proposals = [make, again(first, kept["digest"]), again(late, "9" * 64)]
        entered = [log.enter(proposal) for proposal in proposals]
        return entered[0]()

    event_kinds: list[str] = []
    submit = log.submit
    kept["digest"] = world.report(first)[0].digest
    world.report(*others[:-1])
    body = world.body(others[-1])
    with world.blobs.spool() as spool:
        spool.write(body)
        settle, world.settle = world.settle, lambda: None  # type: ignore[method-assign]
        world.coordinator.devices.report(world.rows[others[-1]], "marks", 1, 0, spool)()
    log.submit = with_the_commit  # type: ignore[method-assign, assignment]
    settle()
    assert event_kinds == ["commit"]
    assert world.refusals() == [(late, "late")]


def test_an_unknown_run_is_refused(world: World) -> None:
    for ask in (
        lambda: world.coordinator.operators.run("nothing"),
        lambda: world.coordinator.operators.pause("nothing"),
        lambda: world.coordinator.operators.rounds("nothing"),
        lambda: world.coordinator.operators.checkpoints("nothing"),
        lambda: world.coordinator.operators.metrics("nothing"),
        lambda: world.coordinator.operators.events("nothing"),
        lambda: world.coordinator.devices.update_limit(world.rows[0].device, "nothing", 1, 0),
        lambda: world.coordinator.devices.started(world.rows[0].device, "nothing", 1, 0)(),
        lambda: world.coordinator.devices.outcome(world.rows[0].device, "nothing", 1),
    ):
        with world.refuses("unknown-run", "there is no run 'nothing'"):
            ask()


@pytest.mark.parametrize("number", [0, 2, 99, 2**31, 2**63, 10**30])
def test_a_round_that_never_was_is_unknown(world: World, number: int) -> None:
    with world.refuses("unknown-round", "the run is at round 1|it is at round 1"):
        world.coordinator.operators.round("marks", number)
    with world.refuses("unknown-round"):
        world.coordinator.devices.outcome(world.rows[0].device, "marks", number)


# ---------------------------------------------------------------- bad updates


def _changed(**tensors: Any) -> dict[str, Any]:
    return {name: np.asarray(value, np.float32) for name, value in tensors.items()}


BAD_DELTAS: list[tuple[str, dict[str, Any], str]] = [
    ("a wrong name", _changed(mark=np.zeros(8)), "mark"),
    ("one name too many", _changed(marks=np.zeros(8), more=np.zeros(1)), "more"),
    ("a wrong shape", _changed(marks=np.zeros(7)), r"\[7\]|\(7,\)"),
    ("as many values in another shape", _changed(marks=np.zeros((2, 4))), r"\[2, 4\]|\(2, 4\)"),
]


@pytest.mark.parametrize(("delta", "words"), [case[1:] for case in BAD_DELTAS], ids=[case[0] for case in BAD_DELTAS])
def test_an_update_that_does_not_fit_the_model(world: World, delta: dict[str, Any], words: str) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, world.body(number, delta=delta), words)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000.0, 3e38])
def test_values_that_cannot_be_summed(world: World, value: float) -> None:
    """The SDK would not encode them: so the bytes are changed after."""
    world.check_in()
    number = world.cohort()[0]
    body = bytearray(world.body(number))
    body[-4:] = np.float32(value).tobytes()
    _refused(world, number, bytes(body), "NaN|infinity|finite|out of range|above")


def test_a_wrong_dtype(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    _refused(world, number, body.replace(b'"F32"', b'"I32"'), "I32")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body + b"\0",
        lambda body: body[:4],
        lambda body: b"",
        lambda body: b"\xff" * 64,
    ],
)
def test_bytes_cut_short_or_one_too_long(world: World, change: Callable[[bytes], bytes]) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, change(world.body(number)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run": "other"}, "made for run other"),
        ({"round": 2}, "round 2"),
        ({"attempt": 3}, "attempt 3"),
        ({"codec": "float16@1"}, "encoded with float16@1; the task asks for float32@1"),
    ],
)
def test_a_report_for_something_else(world: World, more: dict[str, Any], words: str) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, world.body(number, **more), words)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (None, "quorate.report"),
        ("{", "report"),
        ({"examples": -1}, "examples"),
        ({"examples": 2**40}, "examples"),
        ({"metrics": {"loss": "x"}}, "loss"),
    ],
)
def test_an_update_without_a_report_or_with_a_broken_one(
    world: World, report: dict[str, Any] | str | None, words: str
) -> None:
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    genuine = json.loads(header.pop("__metadata__")["quorate.report"])
    if report is not None:
        text = json.dumps({**genuine, **report}) if isinstance(report, dict) else report
        header["__metadata__"] = {"quorate.report": text}
    whole = json.dumps(header, separators=(",", ":")).encode()
    whole += b" " * (-len(whole) % 8)
    _refused(world, number, len(whole).to_bytes(8, "little") + whole + body[8 + size :], words)


def test_an_update_of_no_examples_is_refused(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, world.body(number, examples=0), "at least one training example")


def test_a_body_longer_than_the_limit_stops_while_it_arrives(world: World) -> None:

    world.check_in()
    number = world.cohort()[0]
    limit = world.coordinator.devices.update_limit(world.rows[number].device, "marks", 1, 0)
    with world.blobs.spool(limit) as spool:
        spool.write(b"\0" * limit)
        with pytest.raises(TooLarge):
            spool.write(b"\0")


def _refused(world: World, number: int, body: bytes, words: str = ".") -> None:
    """The body is refused as invalid and leaves no bytes behind. It is recorded, and the device has left the round."""
    blobs = set(world.blobs.digests())
    with world.refuses("invalid-update", words):
        world.send(number, body)
    assert set(world.blobs.digests()) == blobs
    assert world.refusals() == [(number, "invalid-update")]
    assert world.assignment(number) is None
