"""The device's half: honest rounds, crashes after any action, and a coordinator that cheats."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.secagg.consent import SecurePolicy
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.errors import BadMessage, Refusal, SecaggError, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader, GraphRule
from client_sdk.secagg.roster import Advertisement, Roster, RosterEntry, sign_advertisement
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, Survivors
from tests.client_sdk.secagg.attempt import Authority, changed, digest, entropy, header
from tests.client_sdk.secagg.fleet import (
    POLICY,
    Coordinator,
    Member,
    expected,
    finished,
    fleet,
    plain_sum,
    tensors_of,
    until_masked,
    until_signed,
)
from tests.client_sdk.secagg.test_messages import GOLDEN

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)


def opened(n: int = 6, **changes: Any) -> Coordinator:
    head = header(**{"dimension": 5, "expires_at": 1000, **changes})
    members, authority = fleet(n)
    return Coordinator(head, authority, members)


def stages(member: Member) -> list[str]:
    return [message.stage for message in member.log]


@pytest.mark.parametrize(
    ("n", "silent", "changes"),
    [
        pytest.param(3, (), {}, id="three"),
        pytest.param(6, (5,), {}, id="one gone"),
        pytest.param(20, (2, 3, 19), {"rule": RING, "minimum_cohort": 17}, id="a ring"),
        pytest.param(6, (0,), {"q": 22}, id="more bits"),
    ],
)
def test_an_honest_round(n: int, silent: tuple[int, ...], changes: dict[str, Any]) -> None:
    coordinator = opened(n, **changes)
    survivors = until_signed(coordinator, silent)
    total = finished(coordinator, survivors)
    assert np.array_equal(total, plain_sum(coordinator, survivors))
    assert total[-1] == n - len(silent)
    for place in survivors.places:
        assert stages(coordinator.members[place]) == ["advertise", "share", "mask", "survivors", "unmask"]


def test_no_secret_is_kept_longer_than_a_step_needs_it() -> None:
    """Own secrets, by which a pair can be opened, go when a list is signed; of a peer's two shares one goes then, the
    other when the round is over."""
    coordinator = opened()
    roster = coordinator.open()
    member = coordinator.members[0]
    drawn = member.live(coordinator.header).secrets
    assert drawn is not None
    own = [drawn.self_mask, drawn.mask_key.private, drawn.share_key.private, drawn.dealing]
    for place in range(6):
        coordinator.members[place].tell(roster)
        coordinator.hear_share(place)
    assert all(secret in member.disk for secret in own)
    for place in range(6):
        coordinator.members[place].tell(coordinator.delivery(place))
        if place < 5:
            coordinator.hear_mask(place)
    held = member.live(coordinator.header).held
    assert all(secret in member.disk for secret in own)
    assert all(share in member.disk for pair in held.values() for share in (pair.self_mask, pair.mask_key))
    survivors = coordinator.survivors()
    for place in survivors.places:
        coordinator.members[place].tell(survivors.encoded)
        coordinator.hear_survivors(place)
    assert not any(secret in member.disk for secret in own)
    for dealer, pair in held.items():
        assert (pair.self_mask in member.disk, pair.mask_key in member.disk) == (dealer < 5, dealer == 5)
    finished(coordinator, survivors)
    assert not any(share in member.disk for pair in held.values() for share in (pair.self_mask, pair.mask_key))
    assert member.memory.live == {}
    assert len(member.disk) < 300
    assert list(member.memory.spent) == [tensors_of(coordinator.header.model)]


def golden_fleet() -> list[Member]:
    """The devices of the golden session (``test_messages``), each with the same entropy."""
    authority, members = Authority(), []
    values = np.linspace(-0.9, 0.9, 20).reshape(4, 5)
    for number in range(4):
        name, key = f"device-{number:04d}", DeviceKey.create(entropy((0, number, "identity")))
        device = SecureDevice(
            device=name,
            certificate=authority.certify(name, key),
            signer=key,
            entropy=entropy((0, number, "attempt", 0)),
            authority=authority.trusted,
            policy=POLICY,
        )
        members.append(Member(device, values[number].astype(np.float32), 10 * number + 10))
    return members


def test_the_state_machine_says_the_golden_session_byte_for_byte() -> None:
    golden = {name: bytes.fromhex(value) for name, value in json.loads(GOLDEN.read_text()).items()}
    coordinator = Coordinator(header(dimension=5), Authority(), golden_fleet())
    survivors = until_signed(coordinator, silent=(3,))
    total = finished(coordinator, survivors)
    first = {message.stage: message for message in coordinator.members[0].log}
    assert coordinator.header.encoded == golden["header"]
    assert coordinator.roster is not None
    assert coordinator.roster.encoded == golden["roster"]
    for stage, body, signature in (
        ("advertise", "advertisement", "advertisement signature"),
        ("share", "bundle", "bundle signature"),
        ("mask", "masked input", "masked input signature"),
        ("survivors", "survivors", None),
        ("unmask", "revealed", None),
    ):
        assert first[stage].body == golden[body], stage
        if signature is not None:
            assert first[stage].signature == golden[signature], stage
    assert first["mask"].blob == golden["vector"]
    assert coordinator.proof() == golden["proof"]
    assert np.array_equal(total, plain_sum(coordinator, survivors))


@pytest.mark.parametrize("crashes", range(1, 16))
def test_a_crash_after_any_action_changes_nothing(crashes: int) -> None:
    """One device is started again from its disk after every ``crashes``-th answer, and often in between: it says the
    same bytes, and the sum is the same."""
    coordinator = opened(4)
    member = coordinator.members[2]
    step = 0

    def crashed() -> None:
        nonlocal step
        step += 1
        if step % crashes == 0 or crashes > 10:
            before = member.outgoing
            for _ in range(crashes % 3 + 1):
                assert member.start(coordinator.header) == before

    roster = coordinator.open()
    crashed()
    for place in range(4):
        coordinator.members[place].tell(roster)
        coordinator.hear_share(place)
    crashed()
    for place in range(4):
        coordinator.members[place].tell(coordinator.delivery(place))
        coordinator.hear_mask(place)
    crashed()
    survivors = coordinator.survivors()
    for place in range(4):
        coordinator.members[place].tell(survivors.encoded)
        coordinator.hear_survivors(place)
    crashed()
    assert np.array_equal(finished(coordinator, survivors), plain_sum(coordinator, survivors))


def test_a_crash_before_a_message_left_says_it_all_the_same() -> None:
    """What was kept, and never said, is said after the restart: the device never takes the step a second time."""
    coordinator = opened(4)
    survivors = until_masked(coordinator)
    member = coordinator.members[1]
    kept = member.disk
    first = member.tell(survivors.encoded)
    assert member.disk != kept
    again = Member(member.device, member.values, member.weight, disk=member.disk)
    message = again.start(coordinator.header)
    assert message == first
    assert message is not None
    assert message.stage == "survivors"


def test_after_a_restart_other_values_change_no_byte() -> None:
    """A second masked input for the same header: the vector that was kept is what is sent."""
    coordinator = opened(4)
    until_masked(coordinator)
    member = coordinator.members[1]
    before = member.outgoing
    member.values = np.full(5, -0.5, np.float32)
    assert member.start(coordinator.header) == before


# Two attempts. (What a cheating coordinator tries is in ``test_catalogue``.)


@pytest.mark.parametrize("changes", [{"attempt": 1}, {"round": 10}, {"round": 10, "plan": digest("other")}])
def test_spent_across_attempts_and_rounds(changes: dict[str, Any]) -> None:
    """A completed sum kept secret, called aborted, and asked again: on this checkpoint the device is spent."""
    coordinator = opened(6)
    until_signed(coordinator)
    member = coordinator.members[0]
    with pytest.raises(SpentOnCheckpoint):
        member.start(changed(coordinator.header, **changes), at=100)
    member.start(coordinator.header)
    finished(coordinator, coordinator.survivors())
    with pytest.raises(SpentOnCheckpoint):
        member.start(changed(coordinator.header, **changes), at=100)
    assert member.start(changed(coordinator.header, model=digest("next"), **changes), at=100) is not None


def test_spent_stands_above_whatever_else_is_remembered() -> None:
    """However it came that an attempt is under way on a checkpoint where a list was signed: no second list there."""
    coordinator = opened(4)
    survivors = until_masked(coordinator)
    member = coordinator.members[0]
    member.disk = replace(member.memory, spent=frozenset({tensors_of(coordinator.header.model)})).encoded
    member.start(coordinator.header)
    with pytest.raises(SpentOnCheckpoint):
        member.tell(survivors.encoded)


def test_the_same_header_after_the_round_is_refused() -> None:
    coordinator = opened(6)
    finished(coordinator, until_signed(coordinator))
    with pytest.raises(SpentOnCheckpoint):
        coordinator.members[0].start(coordinator.header)


def test_advertising_anew_deletes_the_older_attempt() -> None:
    """Aborted after masking, masked again: of the older attempt nothing is signed or revealed any more."""
    coordinator = opened(4)
    survivors = until_masked(coordinator)
    old = coordinator.header
    member = coordinator.members[0]
    live = member.live(old)
    vector, shown = live.vector, Advertisement.parse(live.advertised)
    shares = [share for pair in live.held.values() for share in (pair.self_mask, pair.mask_key)]
    again = Coordinator(changed(old, attempt=1), coordinator.authority, coordinator.members)
    again.open(at=50)
    assert vector not in member.disk
    assert not any(share in member.disk for share in shares)
    new = Advertisement.parse(member.live(old).advertised)
    assert not {new.commitment, new.nonce, new.mask_key, new.share_key} & {
        shown.commitment,
        shown.nonce,
        shown.mask_key,
        shown.share_key,
    }
    with pytest.raises(Refusal, match="replay"):
        member.start(old, at=100)
    member.start(again.header, at=100)
    with pytest.raises(BadMessage, match="this is no roster"):
        member.tell(survivors.encoded, at=100)


def test_a_fresh_attempt_completes() -> None:
    coordinator = opened(4)
    until_masked(coordinator)
    again = Coordinator(changed(coordinator.header, attempt=1), coordinator.authority, coordinator.members)
    for member in again.members:
        member.log.clear()
    roster = again.open(at=60)
    for place in range(4):
        again.members[place].tell(roster)
        again.hear_share(place)
    for place in range(4):
        again.members[place].tell(again.delivery(place))
        again.hear_mask(place)
    survivors = again.survivors()
    for place in range(4):
        again.members[place].tell(survivors.encoded)
        again.hear_survivors(place)
    assert np.array_equal(finished(again, survivors), plain_sum(again, survivors))


# Headers and policy.


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "run-2"},
        {"round": 10},
        {"model": digest("another")},
        {"plan": digest("another")},
        {"dimension": 6},
        {"codec": "float16"},
        {"codec_version": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_round_than_the_device_trained_for(changes: dict[str, Any]) -> None:
    coordinator = opened()
    member = coordinator.members[0]
    with pytest.raises(Refusal, match="names another"):
        member.start(changed(coordinator.header, **changes), wants=expected(coordinator.header))
    assert member.log == []


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ({"smallest_cohort": 64}, {}, "hides among 64"),
        ({"largest_norm": 3.9}, {}, "L2 clip"),
        ({"smallest_norm": 4.1}, {}, "L2 clip"),
        ({"largest_range": 0.5}, {}, "range"),
        ({"largest_weight_cap": 999}, {}, "weight cap"),
        ({"strict_only": True}, {"rule": RING}, "strict"),
        ({"smallest_sigma": 40}, {"rule": RING}, "40 bits"),
    ],
)
def test_the_owners_policy(policy: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    coordinator = opened(**changes)
    member = coordinator.members[0]
    member.device = replace(member.device, policy=POLICY.changed(**policy))
    with pytest.raises(Refusal, match=words):
        member.start(coordinator.header)
    assert member.log == []


def test_the_defaults_are_the_designs() -> None:
    assert SecurePolicy().smallest_cohort == 64


def test_replays_rates_and_expiry() -> None:
    coordinator = opened()
    member, head = coordinator.members[0], coordinator.header
    with pytest.raises(Refusal, match="expired"):
        member.start(head, at=1000.5)
    assert member.start(head, at=100) is not None
    with pytest.raises(Refusal, match="moment ago") as caught:
        member.start(changed(head, attempt=1), at=104)
    assert caught.value.retry_s == pytest.approx(6)
    assert member.start(changed(head, attempt=1), at=110) is not None
    for old in (head, changed(head, attempt=1, expires_at=999)):
        with pytest.raises(Refusal, match="replay"):
            member.start(old, at=200)
    assert member.start(changed(head, attempt=1), at=200) is not None  # the live one goes on


def test_a_fast_round_is_tried_a_few_times_only() -> None:
    coordinator = opened(rule=RING)
    member = coordinator.members[0]
    for attempt in range(3):
        assert member.start(changed(coordinator.header, attempt=attempt), at=20 * attempt) is not None
    with pytest.raises(Refusal, match="3 times"):
        member.start(changed(coordinator.header, attempt=3), at=100)


def test_expiry_deletes_everything_and_ends_the_talk() -> None:
    coordinator = opened(4)
    survivors = until_masked(coordinator)
    last_second = coordinator.members[1]
    last_second.tell(survivors.encoded, at=1000.0)
    assert list(last_second.memory.live) == [tensors_of(coordinator.header.model)]
    assert stages(last_second)[-1] == "survivors"
    member = coordinator.members[0]
    with pytest.raises(Refusal, match="expired"):
        member.tell(survivors.encoded, at=1000.5)
    assert member.memory.live == {}
    assert stages(member) == ["advertise", "share", "mask"]


def test_an_expired_attempt_is_swept_when_another_begins() -> None:
    coordinator = opened(4)
    until_masked(coordinator)
    member = coordinator.members[0]
    member.start(changed(coordinator.header, model=digest("next"), round=10, expires_at=9000), at=2000)
    assert list(member.memory.live) == [tensors_of(digest("next"))]


# Rosters.


def test_a_roster_with_another_key_for_this_device() -> None:
    coordinator = opened(4)
    coordinator.open()
    assert coordinator.roster is not None
    entries = list(coordinator.roster.entries)
    shown = replace(entries[0].advertisement, nonce=digest("mine"))
    # The coordinator has got hold of the identity's key, so even the signature is right.
    signature = sign_advertisement(shown, coordinator.header.digest, coordinator.members[0].device.signer)
    entries[0] = RosterEntry(shown, signature, entries[0].certificate)
    with pytest.raises(BadMessage, match="other keys"):
        coordinator.members[0].tell(Roster.of(coordinator.header, entries).encoded)


def test_a_roster_with_another_identity_for_this_device() -> None:
    coordinator = opened(4)
    coordinator.open()
    assert coordinator.roster is not None
    entries, twin = list(coordinator.roster.entries), DeviceKey.create(entropy("twin"))
    shown = entries[0].advertisement
    signature = sign_advertisement(shown, coordinator.header.digest, twin)
    entries[0] = RosterEntry(shown, signature, coordinator.authority.certify(shown.device, twin))
    with pytest.raises(BadMessage, match="another identity"):
        coordinator.members[0].tell(Roster.of(coordinator.header, entries).encoded)


# Shares.


def shared(n: int = 4, **changes: Any) -> Coordinator:
    coordinator = opened(n, **changes)
    roster = coordinator.open()
    for place in range(n):
        coordinator.members[place].tell(roster)
        coordinator.hear_share(place)
    return coordinator


def test_too_few_shared() -> None:
    coordinator = shared(6)
    assert coordinator.cohort.parameters.threshold == 5
    with pytest.raises(Refusal, match="4 devices shared"):
        coordinator.members[0].tell(coordinator.delivery(0, silent=(4, 5)))
    coordinator.members[0].start(coordinator.header)
    assert coordinator.members[0].tell(coordinator.delivery(0, silent=(5,))) is not None


def test_in_a_ring_shares_of_strangers_are_refused() -> None:
    coordinator = shared(20, rule=RING, minimum_cohort=17)
    graph = coordinator.cohort.graph
    stranger = next(place for place in range(1, 20) if place not in graph.neighbours(0))
    whole = Bundle.parse(coordinator.delivery(0), 20)
    rows = tuple(sorted([*whole.rows, (stranger, bytes(82), bytes(64))]))
    with pytest.raises(BadMessage, match="neighbours"):
        coordinator.members[0].tell(Bundle(0, rows).encoded)


# Survivor lists and proofs.


@pytest.mark.parametrize(
    ("places", "error", "words"),
    [
        ((1, 2, 3, 4, 5), Refusal, "lacks this device"),
        ((0, 1, 2, 3), BadMessage, "too few"),
        ((0, 1, 2, 3, 6), BadMessage, "not in the roster"),
        ((0, 1, 2, 2, 3), BadMessage, "ascending"),
    ],
)
def test_lists_that_are_not_signed(places: tuple[int, ...], error: type[SecaggError], words: str) -> None:
    coordinator = opened(6)
    until_masked(coordinator)
    member = coordinator.members[0]
    with pytest.raises(error, match=words):
        member.tell(Survivors(places).encoded)
    assert not member.memory.spent
    assert stages(member) == ["advertise", "share", "mask"]


def test_a_proof_with_too_few_or_wrong_signatures_reveals_nothing() -> None:
    coordinator = opened(6)
    until_signed(coordinator)
    member, whole = coordinator.members[0], Proof.parse(coordinator.proof(), 6)
    assert coordinator.cohort.parameters.threshold == 5
    other = changed(coordinator.header, attempt=1)
    for signatures in (
        whole.signatures[:4],
        (*whole.signatures[:4], (4, bytes(64)), (5, whole.signatures[0][1])),
        tuple(
            (place, signed(peer.device.signer, other.digest, "survivors", coordinator.survivors().encoded))
            for place, peer in enumerate(coordinator.members)
        ),
    ):
        member.start(coordinator.header)
        with pytest.raises(BadMessage, match="share holders signed"):
            member.tell(Proof(signatures).encoded)
    assert "unmask" not in stages(member)
    member.start(coordinator.header)
    assert member.tell(coordinator.proof()) is not None


def test_unmasking_may_be_asked_again_and_the_answer_is_the_same() -> None:
    coordinator = opened(4)
    until_signed(coordinator)
    member = coordinator.members[0]
    first = member.tell(coordinator.proof())
    member.start(coordinator.header)
    assert member.tell(coordinator.proof()) == first


# Memory: see ``test_memory``.


def test_secrets_are_in_no_repr() -> None:
    coordinator = shared()
    memory = coordinator.members[0].memory
    live = coordinator.members[0].live(coordinator.header)
    assert live.secrets is not None
    for shown in (repr(memory), repr(live), repr(live.secrets), repr(live.held)):
        assert live.secrets.self_mask.hex() not in shown
        assert repr(live.secrets.self_mask)[2:-1] not in shown
        assert repr(live.held[0].self_mask)[2:-1] not in shown


def test_a_header_that_is_none_is_a_clear_error() -> None:
    coordinator = opened(4)
    member = coordinator.members[0]
    with pytest.raises(BadMessage):
        member.device.attempt(b"no header", expected(coordinator.header), None, 0)  # type: ignore[arg-type]
    assert AttemptHeader.parse(coordinator.header.encoded) == coordinator.header
