"""What devices ask, out of turn, twice, too late, or without any business there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from client_sdk.credentials.certificate import certify
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.header import AttemptHeader, agreed_digest, moves_of
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.survivors import Proof, RevealedShares
from coordinator.blobs import Missing
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.secure import arrived
from coordinator.secure.attempt import Attempts
from coordinator.secure.blob_formats import body_of, message_bytes, sum_bytes, sum_of
from coordinator.secure.performing import drop
from coordinator.secure.requests import OVER, ArrivedMessage, SecureRequests
from tests.client_sdk.secagg.attempt import AUTHORITY_KEY
from tests.coordinator.secure.world import STAGES, World


def kind_of(world: World, *given: Any) -> str:
    """With what an answer is refused."""
    with pytest.raises(ProblemError) as caught:
        world.requests.answer(*given)
    return caught.value.kind


def test_the_header_says_what_the_plan_says() -> None:
    world = World(5, secure={"q": 12, "weight_cap": 900, "expires_s": 3600.5})
    world.play(lambda w: bool(w.happened(ev.Announced)))
    body = world.requests.header(world.phones[0].name, 1)
    assert body is not None
    header = AttemptHeader.parse(body)
    assert (header.run, header.round, header.attempt) == ("run-1", 1, 0)
    assert header.model.hex() == world.start
    plan = world.plan
    assert plan.terms is not None
    assert header.plan == agreed_digest(plan.digest, plan.task, plan.weighting, moves=moves_of(plan.terms))
    assert (header.dimension, header.codec, header.codec_version) == (5, "float32", 1)
    assert (header.q, header.max_norm, header.max_abs, header.weight_cap) == (12, 4.0, 1.0, 900)
    assert (header.rule.profile, header.minimum_cohort) == ("strict", 3)
    assert (header.revocations, header.revocations_digest) == (2, world.authority.revocations.digest)
    assert header.expires_at == 1000 + 3601


def test_repro_a_replica_that_has_not_read_the_cohort_takes_its_messages() -> None:
    """It answered that the round has no cohort, and the device left the round: the explorer saw rounds die of it."""
    world = World(4)
    before = world.state
    world.play(lambda w: bool(w.happened(ev.Announced)))
    run: Any = SimpleNamespace(known=before, state=world.state)
    requests = SecureRequests(run, world.blobs, world._authority, Attempts(world.blobs, world.log.short_messages))
    name = world.phones[0].name
    here, there = (found.limit(name, 1, 0, "advertise") for found in (requests, world.requests))
    assert here == there


def test_a_header_is_for_the_cohort_of_the_round() -> None:
    world = World(4)
    name = world.phones[0].name
    with pytest.raises(ProblemError) as caught:
        world.requests.header(name, 1)
    assert caught.value.kind == "conflict", "no cohort has been drawn"
    world.play(lambda w: w.state.phase == "collecting")
    assert world.requests.header(name, 1) is None
    world.play(lambda w: bool(w.happened(ev.Announced)))
    assert world.requests.header(name, 1) is not None
    for device, round_, kind in (("stranger", 1, "not-selected"), (name, 2, "stale"), (name, 0, "late")):
        with pytest.raises(ProblemError) as caught:
            world.requests.header(device, round_)
        assert caught.value.kind == kind
    world.play()
    with pytest.raises(ProblemError) as caught:
        world.requests.header(name, 1)
    assert caught.value.kind == "late"


def test_answers_come_when_their_phase_does() -> None:
    """Asked by one device at every moment, and for every message."""
    world = World(4)
    name = world.phones[0].name
    seen: dict[str, set[str]] = {}

    def ask(w: World) -> bool:
        if w.state.phase == "selecting":
            return False
        for stage in STAGES:
            try:
                found = w.requests.answer(name, 1, 0, stage)
            except ProblemError as error:
                seen.setdefault(w.state.phase, set()).add(f"{stage}: {error.kind}")
            else:
                if found is not None:
                    seen.setdefault(w.state.phase, set()).add(stage)
        return False

    world.play(ask)
    ask(world)
    late = {f"{stage}: late" for stage in STAGES[:4]}
    assert seen == {
        "sharing": {"advertise"},
        "masking": {"advertise", "share"},
        "agreeing": {"advertise", "share: late", "mask"},
        "unmasking": {"advertise", "share: late", "mask", "survivors"},
        "committing": {"advertise", "share: late"},
        "idle": {*late, "unmask"},
    }
    assert world.requests.answer(name, 1, 0, "unmask") == OVER


def test_strangers_and_older_attempts_get_no_answer() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play(lambda w: w.state.current.attempt == 1 and w.state.phase == "masking")
    name = world.phones[5].name
    assert world.requests.answer(name, 1, 1, "share") is not None
    assert kind_of(world, name, 1, 0, "share") == "stale"
    assert kind_of(world, "stranger", 1, 1, "share") == "not-selected"
    assert kind_of(world, world.phones[0].name, 1, 1, "advertise") == "withdrawn"
    assert kind_of(world, name, 2, 0, "advertise") == "stale"


def test_a_device_that_is_not_in_the_roster_is_refused() -> None:
    world = World(6, cohort={"goal": 5})
    world.play(lambda w: w.state.phase == "masking")
    late = world.phones[5]
    for stage in STAGES:
        assert kind_of(world, late.name, 1, 0, stage) == "late"
    assert world.requests.header(late.name, 1) is None, "it may join the next attempt"


@pytest.mark.parametrize("stage", STAGES)
def test_no_body_is_read_of_a_message_that_is_refused_whatever_its_body(stage: Stage) -> None:
    """Asked at every moment: of a message before its turn, in its turn, and after it has come: then only the bytes of a
    small one tell whether it is the same one again."""
    world = World(4)
    phone, seen = world.phones[1], list[str]()

    def ask(w: World) -> bool:
        if phone.head is None:
            return False
        message = phone.member.outgoing
        mine = message is not None and message.stage == stage and not phone.answered
        try:
            w.requests.limit(phone.name, 1, 0, stage)
        except ProblemError as error:
            found = error.kind
        else:
            found = "read"
        if mine:
            assert found == "read", "its turn"
        if not seen or seen[-1] != found:
            seen.append(found)
        return False

    world.play(ask)
    before = [] if stage == "advertise" else ["stale"]
    after = (
        ["duplicate", "late"] if stage == "mask" else ["late"]
    )  # of others the bytes tell whether it is the same one again
    assert seen == [*before, "read", *after]


def test_of_a_device_whose_vector_has_come_no_other_one_is_read_and_the_same_is_known() -> None:
    world = World(4)
    phone, other, said = world.phones[1], world.phones[2], dict[str, Transmit]()

    def keep(message: Transmit, w: World) -> Transmit:
        if message.stage == "mask":
            said[message.body.hex()] = message
        return message

    phone.bend = other.bend = keep
    world.play(lambda w: w.state.phase == "masking")
    assert phone.member.outgoing is None or not world.requests.has_come(phone.name, 1, 0, b"", bytes(64), "00" * 32)
    world.play(lambda w: w.state.phase == "agreeing")
    mine, its = sorted(said.values(), key=lambda message: MaskedInput.parse(message.body).place)
    digest = hashlib.sha256(mine.blob).hexdigest()
    ask = world.requests.has_come
    assert ask(phone.name, 1, 0, mine.body, mine.signature, digest)
    assert not ask(phone.name, 1, 0, mine.body, mine.signature, hashlib.sha256(its.blob).hexdigest()), "other bytes"
    assert not ask(phone.name, 1, 0, its.body, mine.signature, hashlib.sha256(its.blob).hexdigest()), "not signed"
    assert not ask(phone.name, 1, 0, mine.body, bytes(64), digest), "another signature"
    assert not ask(other.name, 1, 0, mine.body, mine.signature, digest), "another device"
    with pytest.raises(ProblemError) as caught:
        world.requests.limit(phone.name, 1, 0, "mask")
    assert caught.value.kind == "duplicate"
    with pytest.raises(ProblemError) as caught:
        ask(phone.name, 1, 1, mine.body, mine.signature, digest)
    assert caught.value.kind == "stale", "another attempt"
    world.play()
    with pytest.raises(ProblemError) as caught:
        ask(phone.name, 1, 0, mine.body, mine.signature, digest)
    assert caught.value.kind == "late", "the round is over"


@pytest.mark.parametrize("change", [-1, 1])
def test_a_vector_of_another_length_is_refused(change: int) -> None:
    world = World(5)
    phone = world.phones[1]

    def bend(message: Transmit, w: World) -> Transmit:
        if message.stage != "mask":
            return message
        return replace(message, blob=message.blob[:-1] if change < 0 else message.blob + bytes(1))

    phone.bend = bend
    world.play()
    assert any(refusal.startswith("invalid-update") for refusal in phone.refusals), phone.refusals
    assert phone.name not in world.survivors()
    assert len(world.survivors()) == 4


def test_a_delivery_is_for_its_receiver() -> None:
    world = World(5)
    world.play(lambda w: w.state.phase == "masking")
    bodies = [world.requests.answer(phone.name, 1, 0, "share") for phone in world.phones]
    assert len(set(bodies)) == 5
    assert bodies == [world.requests.answer(phone.name, 1, 0, "share") for phone in world.phones]


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_again_is_taken_again(stage: Stage) -> None:
    world = World(4)
    phone = world.phones[1]
    count = []

    def twice(message: Any, w: World) -> Any:
        phone.bend = None
        w.hear(phone, message)
        before, blobs, passed = w.state, set(w.blobs.digests()), w.points.passed
        w.hear(phone, message)
        assert w.points.passed - passed == 0, "nothing is written again"
        assert w.state is before
        assert set(w.blobs.digests()) == blobs
        count.append(message.stage)
        return message

    phone.bend = lambda message, w: twice(message, w) if message.stage == stage else message
    world.play()
    assert count == [stage]
    assert len(world.survivors()) == 4


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_message_before_its_time_is_refused_and_not_kept(stage: Stage) -> None:
    world = World(4)
    world.play(lambda w: bool(w.happened(ev.Announced)))
    before, blobs = world.state, set(world.blobs.digests())
    early = ArrivedMessage(
        device=world.phones[0].name, round=1, attempt=0, stage=stage, body=b"anything", signature=bytes(64)
    )
    with world.blobs.spool() as spool:
        spool.write(b"anything")
        early = replace(early, vector=spool if stage == "mask" else None)
        with pytest.raises(ProblemError) as caught:
            world.requests.receive(early)()
    assert caught.value.kind == "stale"
    assert world.state is before
    assert set(world.blobs.digests()) == blobs


def test_a_masked_input_comes_with_its_vector() -> None:
    world = World(4)
    with pytest.raises(ProblemError, match="vector"):
        world.requests.receive(
            ArrivedMessage(device="device-0000", round=1, attempt=0, stage="mask", body=b"", signature=bytes(64))
        )()


def test_a_vector_that_comes_too_late_leaves_no_bytes() -> None:
    world = World(5)
    slow = world.phones[4]
    held: list[Any] = []

    def hold(message: Any, w: World) -> Any:
        held.append(message)
        raise ConnectionError

    slow.bend = lambda message, w: hold(message, w) if message.stage == "mask" else message
    world.play(lambda w: _turn_until_held(w) and w.state.phase == "agreeing")
    slow.bend = None
    blobs = set(world.blobs.digests())
    with pytest.raises(ProblemError) as caught:
        world.hear(slow, held[0])
    assert caught.value.kind == "late"
    assert set(world.blobs.digests()) == blobs
    assert not world.every(fx.RecordRefusal)


def _turn_until_held(world: World) -> bool:
    """The slow device's request fails on the way: it stops trying."""
    slow = world.phones[4]
    if world.state.phase == "masking":
        slow.stops = None
        if slow.member.outgoing is not None and slow.member.outgoing.stage == "mask":
            try:
                assert slow.bend is not None
                slow.bend(slow.member.outgoing, world)
            except ConnectionError:
                slow.gone = True
    return True


def test_who_is_revoked_after_the_roster_stays_in_the_attempt_also_at_a_coordinator_that_restarts() -> None:
    """Replicas that know different lists would otherwise answer one request differently."""
    world = World(5, rounds_=1)
    gone = world.phones[3]
    world.play(lambda w: w.state.phase == "masking")
    world.authority.revoked.add(gone.name)
    world.reboot()
    world.play()
    assert world.state.version == 1
    assert [refusal for phone in world.phones for refusal in phone.refusals] == []
    assert gone.name in world.survivors()
    world.assert_clean()


# ------------------------------------------------------------ what happens in between, and other replicas


def before_the_event(world: World, happens: Callable[[], object]) -> None:
    """Has something happen between what was looked at and its next event."""
    honest = world.log.submit

    def submit(make: Any, short: Any = None) -> Any:
        world.log.submit = honest  # type: ignore[method-assign]
        happens()
        return honest(make, short)

    world.log.submit = submit  # type: ignore[method-assign]


def digest_of(message: Any) -> str:
    """The digest under which a share message is stored."""
    return hashlib.sha256(message.body + message.signature).hexdigest()


def stop(world: World) -> None:
    world.log.submit(lambda state, at: ev.Stopped(at=at))


def sum_is_asked_for(world: World) -> bool:
    return bool(world.log.todo) and isinstance(world.log.todo[0], fx.Open)


@pytest.mark.parametrize("most", [0, arrived.SHORT_BYTES])
def test_a_message_that_is_too_late_by_a_moment_is_not_kept(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A long one was a blob by then; a short one is stored with its event or not at all."""
    monkeypatch.setattr(arrived, "SHORT_BYTES", most)
    world = World(4)
    phone = world.phones[3]

    def slow(message: Any, w: World) -> Any:
        if message.stage == "share":
            before_the_event(w, lambda: stop(w))
        return message

    phone.bend = slow
    world.play()
    assert phone.refusals[0].startswith("late")
    sent = digest_of(next(message for message in phone.member.log if message.stage == "share"))
    assert (sent in world.ever) is (most == 0)
    world.assert_clean()


@pytest.mark.parametrize("most", [0, arrived.SHORT_BYTES])
def test_short_messages_are_rows_and_long_ones_blobs(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(arrived, "SHORT_BYTES", most)
    world = World(4)
    world.play(lambda w: w.state.phase == "unmasking")
    secure = world.state.secure
    assert secure is not None
    sent = {*secure.advertised.values(), *secure.shared.values(), *secure.signed.values()}
    assert len(sent) > 8
    assert set(world.short) == (sent if most else set())
    assert {digest for digest in sent if world.blobs.has(digest)} == (set() if most else sent)
    assert all(world.blobs.has(digest) for digest in secure.masked.values()), "vectors are files, however short"
    world.play()
    assert len(world.survivors()) == 4
    world.assert_clean()


def test_bytes_that_went_meanwhile_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrived, "SHORT_BYTES", 0)
    world = World(4)
    phone = world.phones[3]

    def gone(message: Any, w: World) -> Any:
        if message.stage == "share" and not phone.refusals:
            phone.refusals.append("")
            before_the_event(w, lambda: w.blobs.delete(digest_of(message)))
            with pytest.raises(ProblemError) as caught:
                w.hear(phone, message)
            assert caught.value.kind == "busy"
        return message

    phone.bend = gone
    world.play()
    assert len(world.survivors()) == 4


def test_a_sum_that_comes_too_late_is_not_kept() -> None:
    world = World(4)
    world.play(sum_is_asked_for)
    action = world.log.todo[0]
    before_the_event(world, lambda: stop(world))
    world.perform(action)
    assert world.state.over
    world.play()
    world.assert_clean()


def test_a_certificate_that_expires_before_the_attempt_is_refused_on_arrival() -> None:
    """Clocks differ: in the middle of the attempt some devices would take it, and others not."""
    world = World(5, secure={"expires_s": 3600})
    phone = world.phones[4]
    key = phone.member.device.signer
    short = certify(
        AUTHORITY_KEY,
        id=phone.name,
        holder="device",
        public_key=bytes.fromhex(key.public_hex),
        not_before=0,
        not_after=1000 + 3599,
    )
    phone.member.device = replace(phone.member.device, certificate=short.encoded)
    world.play()
    assert "expired" in phone.refusals[0]
    assert not [event for event in world.happened(ev.Advertised) if event.device == phone.name]
    assert world.survivors() == [one.name for one in world.phones[:4]]


def test_actions_that_are_over_do_nothing() -> None:
    world = World(5)
    done: list[fx.Action] = []
    honest = world.perform

    def noted(action: fx.Action) -> None:
        done.append(action)
        honest(action)

    world.perform = noted  # type: ignore[method-assign]
    world.play()
    assert {type(action) for action in done} >= {fx.Announce, fx.Gather, fx.Open, fx.CommitSum, fx.Discard}
    before, passed, effects = world.state, set(world.ever), len(world.effects)
    for action in [*done, fx.Advance(round=1, parent=world.start)]:
        honest(action)
    assert world.state is before
    assert set(world.ever) == passed
    assert not any(isinstance(effect, fx.Refused) for effect in world.effects[effects:])


def test_actions_of_an_older_attempt_read_and_submit_nothing() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play(lambda w: len(w.happened(ev.Announced)) == 2)
    assert world.state.current.attempt == 1
    submitted: list[ev.Event] = []
    honest = world.log.submit

    def noted(make: Any) -> Any:
        event = make(world.state, world.at)
        submitted.extend([] if event is None else [event])
        return honest(make)

    world.log.submit = noted  # type: ignore[method-assign]
    for action in (fx.Announce(round=1, attempt=0), fx.Open(round=1, attempt=0)):
        world.perform(action)
    assert submitted == []


def test_bytes_that_the_round_names_are_not_dropped_with_a_refused_message() -> None:
    """The same bytes may have been accepted from another request meanwhile."""
    world = World(4)
    world.play(lambda w: w.state.phase == "agreeing")
    secure = world.state.secure
    assert secure is not None
    named, stranger = next(iter(secure.masked.values())), world.blobs.put(b"refused")
    drop(world.log, world.blobs, named)
    drop(world.log, world.blobs, stranger)
    assert (world.blobs.has(named), world.blobs.has(stranger)) == (True, False)


def test_an_action_may_be_performed_twice() -> None:
    world = World(4)
    honest = world.perform

    def twice(action: fx.Action) -> None:
        honest(action)
        world.at += 2.0
        honest(action)

    world.perform = twice  # type: ignore[method-assign]
    world.play()
    assert world.state.version == 1
    assert not [effect for effect in world.effects if isinstance(effect, fx.Refused)]
    world.assert_clean()


def test_a_roster_of_others_is_not_made() -> None:
    """Somebody was left out after the action was handed out; the next one names the others."""
    world = World(5)
    world.play(lambda w: any(isinstance(action, fx.Gather) for action in w.log.todo))
    world.log.submit(
        lambda state, at: ev.Faulted(at=at, round=1, attempt=0, device=world.phones[2].name, reason="a test")
    )
    first, second = [action for action in world.log.todo if isinstance(action, fx.Gather)]
    kept = set(world.ever)
    world.perform(first)
    assert set(world.ever) == kept
    world.perform(second)
    assert world.state.secure is not None
    assert len(world.state.secure.group_of) == 4


@pytest.mark.parametrize("revoked", ["", "device-0004"])
@pytest.mark.parametrize("stops", [(), ("share", "share", "share"), ("mask", "mask", "mask")])
def test_replicas_answer_alike(stops: tuple[Stage, ...], revoked: str) -> None:
    """A second coordinator, which has made nothing itself, says the same in every attempt and round, also where a
    device is revoked while the first roster is in use."""
    world = World(7, rounds_=2)
    for phone, stage in zip(world.phones, stops, strict=False):
        phone.stops = stage
    attempts = Attempts(world.blobs, world.log.short_messages)
    other = SecureRequests(world.log, world.blobs, world._authority, attempts)
    found = set()

    def compare(w: World) -> bool:
        state = w.state
        if state.phase == "sharing" and state.round_number == 1 and state.secure and state.secure.roster and revoked:
            w.authority.revoked.add(revoked)
        attempt = 0 if state.round is None else state.round.attempt
        for phone in w.phones:
            for stage in STAGES:
                answers = []
                for requests in (w.requests, other):
                    try:
                        answers.append(requests.answer(phone.name, state.round_number, attempt, stage))
                    except ProblemError as error:
                        answers.append(f"{error.kind}: {error}".encode())
                assert answers[0] == answers[1]
                found.add((state.round_number, attempt, stage, answers[0]))
        return bool(revoked) and state.round_number > 2  # too few are left where three have vanished too

    world.play(compare)
    assert world.state.version == 2 or revoked
    assert len(found) > 40


def test_a_proof_grows_with_late_signatures() -> None:
    world = World(7)
    late = world.phones[6]
    late.bend = lambda message, w: wait_for_it(message, w)

    def wait_for_it(message: Any, w: World) -> Any:
        if message.stage == "survivors":
            first = w.requests.answer(late.name, 1, 0, "survivors")
            assert first is not None, "five of seven are enough, and have signed"
            late.bend = None
            w.hear(late, message)
            second = w.requests.answer(late.name, 1, 0, "survivors")
            assert second is not None
            assert len(Proof.parse(second, 7).signatures) == len(Proof.parse(first, 7).signatures) + 1 == 7
        return message

    world.play()
    assert world.state.version == 1
    assert late.bend is None


@pytest.mark.parametrize("phase", ["unmasking", "committing"])
def test_a_masked_vector_or_a_sum_that_is_gone_stalls_the_round_until_it_is_back(phase: str) -> None:
    """Its devices have signed, and would be spent for nothing."""
    world = World(4, rounds_=2)
    world.play(sum_is_asked_for if phase == "unmasking" else lambda w: w.state.phase == "committing")
    secure = world.state.secure
    assert secure is not None
    digest = secure.masked[world.phones[2].name] if phase == "unmasking" else secure.sums[0]
    right = world.blobs.open(digest).read()
    world.blobs.delete(digest)
    with pytest.raises(Missing, match=digest):
        world.play(lambda w: w.state.round_number == 2)
    assert (world.state.round_number, world.state.phase) == (1, phase)
    assert world.blobs.put(right) == digest
    for action in rounds.pending(world.state):
        world.perform(action)
    world.play(lambda w: w.state.round_number == 2)
    assert world.state.version == 1


def test_what_is_kept_belongs_to_one_attempt() -> None:
    """The same bytes in two attempts, or the same sum in two runs, are different blobs."""
    packed = bytes(16)
    assert sum_bytes(packed, bytes(32)) != sum_bytes(packed, bytes(31) + b"1")
    assert sum_of(sum_bytes(packed, bytes(32))) == packed
    assert body_of(message_bytes(b"body", bytes(64))) == b"body"
    with pytest.raises(BadMessage):
        sum_of(bytes(31))


def test_digests_of_shares_are_those_of_the_round_and_are_freed_with_it() -> None:
    """Also at a replica that performs nothing, and so is not told that the first round has ended."""
    world = World(4, rounds_=2)
    attempts, found = Attempts(world.blobs, world.log.short_messages), {}

    def compare(w: World) -> bool:
        secure = w.state.secure
        if w.state.phase == "unmasking" and secure is not None and w.state.round_number not in found:
            group = attempts.groups(secure)[0]
            dealt = found[w.state.round_number] = attempts.dealt(secure, group)
            assert attempts.dealt(secure, group) is dealt, "it is read once"
            survivors = attempts.groups(secure)[0].survivors(secure)
            for phone in w.phones:
                live = next(iter(phone.member.memory.live.values()))
                if live.revealed:
                    assert dealt.wrong(RevealedShares.parse(live.revealed, survivors, 4)) == []
            if w.state.round_number == 2:
                attempts.forget()
                assert attempts.dealt(secure, attempts.groups(secure)[0]) is not dealt
        return False

    world.play(compare)
    assert list(found) == [1, 2]
