"""What a device does in a secure round that went on, or ended, while it was away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client_sdk.credentials.certificate import certify
from client_sdk.device.actions import Failed, Reply, RequestRefused, Save, Send, Unreachable
from client_sdk.device.contribution import ClearContribution
from client_sdk.device.secure_round import NO_PLACE
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from client_sdk.protocol.secure import Octets, SecureRefusal
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Step
from client_sdk.tensors import Float32
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with
from tests.client_sdk.secagg.attempt import AUTHORITY_KEY, FOREVER


def steps(phone: SessionPhone) -> list[Step]:
    return [live.step for live in phone.storage.load_secure().live.values()]


def test_repro_a_device_that_signed_and_restarted_says_that_it_is_spent_not_that_its_update_is_gone() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: steps(phone) == [Step.SIGNED])
    phone.restart()

    def next_attempt(found: Octets, send: Send) -> Octets:
        if send.route is not Route.SECURE:
            return found
        return Octets(content=replace(AttemptHeader.parse(found.content), attempt=1).encoded)

    phone.change = next_attempt
    world.play(done=lambda _: bool(phone.storage.history()))
    (said,) = {send.message for send in phone.routes(Route.SECURE_REFUSAL)}
    assert isinstance(said, SecureRefusal)
    assert said.spent
    assert not phone.routes(Route.WITHDRAWN)


def test_repro_an_update_for_which_a_list_was_signed_is_not_kept_for_a_later_round() -> None:
    """The power is cut between the signature and the erasure, and the round goes on without the device."""
    probe_world, (probe,) = world_with(1)
    finish(probe_world, [probe])
    erasing = next(
        place
        for place, action in enumerate(probe.performed)
        if isinstance(action, Save) and action.record.update_digest is None and action.record.work is not None
    )
    world, (phone,) = world_with(1)
    phone.crashes = {erasing: "before"}

    def late(send: Send) -> Reply:
        if len(phone.performed) <= erasing or send.route is not Route.SECURE:
            return None
        record = phone.storage.load()
        assert record is not None
        assert record.update_digest is not None, "it was not erased yet"
        return RequestRefused(problem("late", "The round has a roster.").problem, world.at)

    phone.interfere = late
    world.play(done=lambda _: bool(phone.storage.history()))
    record = phone.storage.load()
    assert record is not None
    assert (phone.history, record.update_digest, record.work) == ([(1, "dropped")], None, None)
    assert isinstance(phone.storage, MemoryStorage)
    assert not phone.storage._updates


def test_repro_an_answer_that_comes_when_the_attempt_has_expired_leads_to_the_next_attempt() -> None:
    world, (phone,) = world_with(1, secure={"attempts": 2})

    def slow(found: Octets, send: Send) -> Octets:
        if (send.path.get("stage"), send.path.get("attempt")) == ("share", 0):
            (live,) = phone.storage.load_secure().live.values()
            world.at = AttemptHeader.parse(live.header).expires_at + 1
        return found

    phone.change = slow
    world.play(done=lambda _: (1, 0, "share") in phone.sent and not steps(phone))
    assert not phone.routes(Route.WITHDRAWN)
    record = phone.storage.load()
    assert record is not None
    assert record.work is not None
    assert (record.work.left, record.update_digest is not None) == (0, True)


@pytest.mark.parametrize("ends", ["signed", "withdrawn"])
def test_the_clear_values_are_overwritten_in_memory_when_a_list_is_signed_and_when_the_round_is_over(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Float32] = []
    values = ClearContribution.values

    def watched(self: ClearContribution, assignment: Assignment) -> Float32:
        given.append(values(self, assignment))
        return given[-1]

    monkeypatch.setattr(ClearContribution, "values", watched)
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    if ends == "withdrawn":
        phone.secure_task = {"max_norm": 3.0}
        finish(world, [phone])
        assert phone.history == [(1, "withdrawn")]
    else:
        world.play(done=lambda _: steps(phone) == [Step.MASKED])
        assert given[-1].any()
        world.play(done=lambda _: steps(phone) == [Step.SIGNED])
        assert not phone.resting
    assert given
    assert not any(one.any() for one in given)


@pytest.mark.parametrize(
    ("why", "result"), [("nonsense", "withdrawn"), ("invalid-update", "refused"), ("late", "dropped")]
)
def test_repro_a_device_that_withdraws_deletes_the_secrets_of_its_attempt_before_it_says_so(
    why: str, result: str
) -> None:
    """A coordinator may never answer that: one that sent bytes that are no shares, or refused what was sent to it."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    world.play(done=lambda _: steps(phone) == [Step.ADVERTISED if why == "late" else Step.SHARED])
    left: list[int] = []

    def lying(send: Send) -> Reply:
        if send.route is (Route.SECURE_ANSWER if why == "late" else Route.SECURE_MESSAGE) and why != "nonsense":
            return RequestRefused(problem(why, "It is refused.").problem, world.at)
        if send.route is not Route.WITHDRAWN:
            return None
        left.append(len(phone.storage.load_secure().live))
        return Unreachable("gone", world.at) if len(left) < 3 else None

    phone.interfere = lying
    if why == "nonsense":
        phone.change = lambda found, send: Octets(content=b"?") if send.route is Route.SECURE_ANSWER else found
    finish(world, [phone])
    assert left == [0, 0, 0]
    assert [found for _, found in phone.history] == [result]


def test_repro_a_device_that_is_too_late_deletes_its_secrets_before_it_asks_what_became_of_the_round() -> None:
    """A coordinator may never answer that: the secrets outlived the attempt."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    world.play(done=lambda _: steps(phone) == [Step.SHARED])
    left: list[int] = []

    def silent(send: Send) -> Reply:
        if send.route is Route.SECURE_MESSAGE:
            return RequestRefused(problem("late", "The round went on without it.").problem, world.at)
        if send.route is not Route.OUTCOME:
            return None
        left.append(len(phone.storage.load_secure().live))
        return Unreachable("gone", world.at) if len(left) < 3 else None

    phone.interfere = silent
    finish(world, [phone])
    assert left[:3] == [0, 0, 0]
    assert phone.history == [(1, "dropped")]


def test_repro_a_device_late_for_the_last_exchange_does_not_say_that_it_waits_for_the_first_one() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: steps(phone) == [Step.SIGNED])
    phone.interfere = lambda send: (
        RequestRefused(problem("late", "The round went on without it.").problem, world.at)
        if send.path.get("stage") == "unmask"
        else None
    )
    finish(world, [phone])
    before, *_, after = [send.note for send in phone.routes(Route.SECURE)]
    assert before == "Waiting for an exchange of keys to begin."
    assert after == "Is out of this exchange of keys; waiting for a fresh one, or for the end of the round."


def test_an_attempt_that_goes_on_asks_for_no_list() -> None:
    """It keeps to its own: a coordinator that shows that one no more cannot make the device leave."""
    world, (phone,) = world_with(1)
    world.play(done=lambda _: steps(phone) == [Step.SHARED])
    phone.restart()
    phone.listed = lambda asked: Failed("there is none", world.at)
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]


@pytest.mark.parametrize("knows_the_time", [True, False])
def test_repro_a_device_that_starts_again_deletes_the_secrets_of_an_expired_attempt_before_anything_is_asked(
    knows_the_time: bool,
) -> None:
    """They stayed until the next secure attempt began: for ever, where the coordinator was gone."""
    world, (phone,) = world_with(1)
    world.play(done=lambda _: steps(phone) == [Step.MASKED])
    (live,) = phone.storage.load_secure().live.values()
    phone.interfere = lambda send: Unreachable("there is no network", world.at)
    phone.restart()
    done = len(phone.performed)
    world.at = AttemptHeader.parse(live.header).expires_at
    phone.start(world.at if knows_the_time else 0.0)
    phone.turn(world)
    assert steps(phone) == [Step.MASKED], "until then it may go on"
    assert phone.storage.load_secure().advertisements
    world.at += 1
    phone.restart()
    phone.start(world.at if knows_the_time else 0.0)
    phone.turn(world)
    assert not phone.storage.load_secure().live
    asked = [type(action) for action in phone.performed[done:]]
    assert Send in asked


def test_repro_an_update_that_was_damaged_and_is_trained_again_joins_no_attempt_that_was_left() -> None:
    world, (phone,) = world_with(1, secure={"attempts": 2})
    world.play(done=lambda _: (1, 0, "advertise") in phone.sent)
    phone.change = lambda found, send: Octets(content=b"?") if send.path.get("stage") == "advertise" else found
    record = phone.storage.load()
    assert record is not None
    assert record.work is not None
    left = record.changed(update_digest=None, work=record.work.changed(left=0))  # as the storage loads it
    phone.restart()
    phone.storage.save(left)
    world.play(done=lambda _: phone.trainings == 2)
    phone.turn(world)
    record = phone.storage.load()
    assert record is not None
    assert record.work is not None
    assert (record.work.left, record.update_digest is not None) == (0, True)


def test_repro_a_certificate_that_is_renewed_in_an_attempt_changes_no_byte_of_it() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: steps(phone) == [Step.ADVERTISED] and (1, 0, "advertise") in phone.sent)
    record, public = phone.storage.load(), phone.member.device.signer.public_hex
    assert record is not None
    longer = certify(
        AUTHORITY_KEY,
        id=phone.name,
        holder="device",
        public_key=bytes.fromhex(public),
        not_before=1,
        not_after=FOREVER,
    )
    assert longer.encoded.hex() != record.certificate
    phone.storage.save(record.changed(certificate=longer.encoded.hex()))
    phone.restart()
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert len(phone.sent[1, 0, "advertise"]) == 1


@pytest.mark.parametrize("why", sorted(NO_PLACE))
@pytest.mark.parametrize("step", list(Step))
def test_however_a_coordinator_says_that_a_round_is_over_no_secret_of_it_is_left(why: str, step: Step) -> None:
    """Every refusal that ends it, where the device stands at any step; its outcome is never told."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    world.play(done=lambda _: steps(phone) == [step])
    asked: list[int] = []

    def over(send: Send) -> Reply:
        if send.route in (Route.SECURE, Route.SECURE_MESSAGE, Route.SECURE_ANSWER):
            return RequestRefused(problem(why, "It is over.").problem, world.at)
        asked.append(len(phone.storage.load_secure().live))
        return Unreachable("gone", world.at)

    phone.interfere = over
    for _ in range(40):
        phone.turn(world)
        world.at = max(world.at + 1, phone.not_before)
    assert asked, "it asks what became of its part"
    assert not any(asked)
    assert not phone.storage.load_secure().live
