"""What a device agrees to: the plan's terms in every header, the owner's bounds, revocation lists, clocks, expiry."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from client_sdk.credentials.certificate import certify, sign_revocations
from client_sdk.identity import DeviceKey
from client_sdk.secagg.actions import DeviceContribution, Keep, Transmit
from client_sdk.secagg.consent import SecurePolicy, plain_refusal, require_terms, require_withstood
from client_sdk.secagg.errors import BadMessage, Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader, GraphRule, withstood
from client_sdk.secagg.memory import Answered, Memory
from client_sdk.secagg.nearness import SKETCH_BYTES
from tests.client_sdk.secagg.attempt import AUTHORITY_KEY, FOREVER, changed, digest, entropy, header, numbered_list
from tests.client_sdk.secagg.fleet import (
    LEARNER,
    POLICY,
    Coordinator,
    Member,
    expected,
    fleet,
    tensors_of,
    until_masked,
    until_signed,
)

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)


def lone(**policy: Any) -> Member:
    members, _ = fleet(1, policy=POLICY.changed(**policy))
    return members[0]


def test_no_attempt_begins_once_todays_sums_are_made() -> None:
    """A coordinator may begin many attempts in one round, and others may open the sum of one that a device has left."""
    member = lone(sums_a_day=2)
    answered = {bytes(32): Answered(at=50, vectors=2, sketch=bytes(SKETCH_BYTES))}
    member.disk = replace(member.memory, answered=answered).encoded
    with pytest.raises(Refusal, match="into 2 sums a day") as refused:
        member.start(header(dimension=5), at=100)
    assert not refused.value.final
    assert member.log == []
    member.disk = replace(member.memory, answered={bytes(32): replace(answered[bytes(32)], vectors=1)}).encoded
    assert member.start(header(dimension=5), at=100) is not None


# The plan's terms.


@pytest.mark.parametrize(
    "changes",
    [
        {"q": 17},
        {"max_norm": 4.5},
        {"max_abs": 0.5},
        {"weight_cap": 999},
        {"rule": RING},
        {"minimum_cohort": 4},
        {"noise": 1.0, "divisor": 4},
        {"minimum_cohort": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.items())),
)
def test_a_header_has_the_terms_of_the_plan_that_was_agreed_to(changes: dict[str, Any]) -> None:
    """Also in a later attempt at the same round: the plan's digest is the same, the terms are not the plan's."""
    member, head = lone(smallest_cohort=2), header(dimension=5)
    with pytest.raises(Refusal, match="other terms than the plan"):
        member.start(changed(head, **changes), wants=expected(head))
    assert member.start(head) is not None
    with pytest.raises(Refusal, match="other terms than the plan"):
        member.start(changed(head, attempt=1, **changes), at=100, wants=expected(head))
    assert [message.stage for message in member.log] == ["advertise"]


def test_terms_are_judged_before_anything_is_trained() -> None:
    """The default policy of an owner who set nothing, on the plan's terms alone."""
    terms = header(minimum_cohort=64).terms
    require_terms(terms, SecurePolicy())
    with pytest.raises(Refusal, match="hides among 64 or more; the plan asks for 63"):
        require_terms(replace(terms, minimum_cohort=63), SecurePolicy())
    fast = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)
    require_terms(replace(terms, rule=fast), SecurePolicy())
    with pytest.raises(Refusal, match="80 bits of secrecy; the plan asks for 79"):
        require_terms(replace(terms, rule=replace(fast, sigma=79)), SecurePolicy())


@pytest.mark.parametrize(
    ("bound", "term", "words"),
    [
        ("largest_norm", "max_norm", "an L2 clip of at most 4; the plan asks for 4.5"),
        ("largest_range", "max_abs", "a range of at most 4; the plan asks for 4.5"),
        ("largest_weight_cap", "weight_cap", "a weight cap of at most 4; the plan asks for 5"),
    ],
)
def test_the_owners_bounds_exclude_plans_that_ask_for_more(bound: str, term: str, words: str) -> None:
    at_the_bound: dict[str, Any] = {term: 4}
    above: dict[str, Any] = {term: 5 if term == "weight_cap" else 4.5}
    bounded: dict[str, Any] = {bound: 4}
    terms = header(minimum_cohort=64, **at_the_bound).terms
    require_terms(terms, SecurePolicy(**bounded))
    require_terms(replace(terms, **above), SecurePolicy())
    with pytest.raises(Refusal, match=f"owner allows {words}"):
        require_terms(replace(terms, **above), SecurePolicy(**bounded))


def test_the_owners_floor_excludes_plans_with_a_smaller_clip() -> None:
    terms = header(minimum_cohort=64).terms
    require_terms(replace(terms, max_norm=0.1), SecurePolicy())
    require_terms(replace(terms, max_norm=0.01), SecurePolicy(smallest_norm=0.01))
    with pytest.raises(Refusal, match=r"owner allows an L2 clip of at least 0\.1; the plan asks for 0\.0999"):
        require_terms(replace(terms, max_norm=0.0999), SecurePolicy())


def test_a_fast_rule_that_counts_on_no_colluders_is_refused() -> None:
    """Its bits are 128 and worth nothing: with nobody colluding two neighbours would do, and two sybils read all."""
    rule = GraphRule(profile="fast", drop=3, corrupt_millionths=0, sigma=80, eta=20)
    assert rule.parameters(70).neighbours < 15
    terms = header(minimum_cohort=64, rule=rule).terms
    with pytest.raises(Refusal, match="against 10 % who collude; the plan counts on 0 %"):
        require_terms(terms, SecurePolicy())


def test_a_stricter_owner_stops_an_attempt_under_way() -> None:
    member, head = lone(), header(dimension=5)
    assert member.start(head) is not None
    member.device = replace(member.device, policy=POLICY.changed(smallest_cohort=64))
    with pytest.raises(Refusal, match="hides among 64"):
        member.start(head)


def test_what_does_not_fit_the_header_is_refused_before_a_key_is_shown() -> None:
    member, head = lone(), header(dimension=5)
    member.weight = head.weight_cap + 1
    with pytest.raises(Refusal, match="weight is not within the header's cap"):
        member.start(head)
    member.weight, member.values = 1, member.values[:4]
    with pytest.raises(Refusal, match="another number of values"):
        member.start(head)
    assert member.log == []
    assert member.memory.encoded == Memory().encoded


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(np.zeros(5, np.float64), "not an array of float32", id="float64"),
        pytest.param(np.zeros(5, np.float16), "not an array of float32", id="float16"),
        pytest.param([0.0] * 5, "not an array of float32", id="a list"),
        pytest.param(np.zeros((5, 1), np.float32), "another number of values", id="two axes"),
        pytest.param(np.array([0, 0, np.nan, 0, 0], np.float32), "NaN or infinity", id="NaN"),
        pytest.param(np.array([0, 0, 0, -np.inf, 0], np.float32), "NaN or infinity", id="infinity"),
    ],
)
def test_an_update_that_cannot_be_masked_is_refused_before_a_key_is_shown(values: Any, words: str) -> None:
    """After its peers have shared it would cost them the attempt."""
    member, head = lone(), header(dimension=5)
    member.values = values
    with pytest.raises(Refusal, match=words):
        member.start(head)
    assert member.log == []
    assert member.memory.encoded == Memory().encoded


@pytest.mark.parametrize("weight", [-1, 2.5, True, None, "3"])
def test_a_weight_that_is_no_whole_number_within_the_cap_is_refused_before_a_key_is_shown(weight: Any) -> None:
    member, head = lone(), header(dimension=5)
    member.weight = weight
    with pytest.raises(Refusal, match="weight is not within the header's cap"):
        member.start(head)
    assert member.log == []


def test_a_rounding_secret_of_another_length_is_refused_before_a_key_is_shown() -> None:
    """An empty one would be known to everybody, and with it how every value was rounded."""
    member, head = lone(), header(dimension=5)
    put_in = DeviceContribution(values=member.values, weight=1, rounding_secret=b"")
    half = member.device.attempt(head.encoded, expected(head), put_in, 0.0)
    assert isinstance(half.send(None), Keep)
    opening = half.send(Memory())
    assert isinstance(opening, Keep)
    with pytest.raises(Refusal, match="rounding secret"):
        opening.change(Memory())


@pytest.mark.parametrize(
    ("rule", "n", "colluding"),
    [
        (GraphRule(profile="strict"), 300, 101),
        (GraphRule(profile="strict"), 64, 21),
        (GraphRule(profile="strict"), 3, 2),
        (GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40), 300, 30),
    ],
)
def test_how_many_colluding_devices_a_roster_withstands(rule: GraphRule, n: int, colluding: int) -> None:
    assert withstood(rule, n) == colluding
    require_withstood(rule, n, SecurePolicy())
    require_withstood(rule, n, SecurePolicy(most_colluding=colluding))
    with pytest.raises(Refusal, match=f"a group of {n} withstands {colluding}"):
        require_withstood(rule, n, SecurePolicy(most_colluding=colluding + 1))


# Revocation lists.


@pytest.mark.parametrize(
    "changes",
    [{"revocations": 3}, {"revocations": 1}, {"revocations_digest": digest("forged")}],
    ids=["newer", "older", "forged"],
)
def test_a_header_names_the_list_by_which_the_device_vouches(changes: dict[str, Any]) -> None:
    """A counter out of the air would otherwise be the highest ever seen, and bar the device from all honest rounds."""
    member, head = lone(), header(dimension=5)
    with pytest.raises(Refusal, match="another revocation list"):
        member.start(changed(head, **changes), wants=expected(head))
    assert member.memory.revocations == 0
    assert member.start(head) is not None
    assert member.memory.revocations == 2


def under(counter: int, **changes: Any) -> AttemptHeader:
    """A header that names the authority's list of this number."""
    return header(dimension=5, revocations=counter, revocations_digest=numbered_list(counter).digest, **changes)


def test_an_attempt_goes_on_by_its_own_list_and_the_next_one_needs_the_newest() -> None:
    """Another run shows the device a newer list meanwhile."""
    member, head = lone(), under(2)
    first = member.start(head)
    assert first is not None
    other = under(3, run="run-2", model=digest("next"))
    assert member.start(other, at=100) is not None
    assert member.start(head, at=200, wants=replace(expected(head), revocations=None)) == first
    assert member.start(head, at=200, wants=replace(expected(head), revocations=numbered_list(3))) == first
    with pytest.raises(Refusal, match="older than number 3"):
        member.start(under(2, attempt=1), at=300)
    assert member.start(under(3, attempt=1), at=300) is not None


def test_the_list_may_go_out_of_date_while_the_attempt_goes_on() -> None:
    """No attempt begins by it any more; the one under way ends as it began."""
    due = numbered_list(5, next_update=1000)
    members, authority = fleet(3)
    head = header(dimension=5, revocations=5, revocations_digest=due.digest)
    coordinator = Coordinator(head, authority, members)
    roster = coordinator.open(at=999)
    assert members[0].tell(roster, at=2000) is not None
    with pytest.raises(Refusal, match="out of date"):
        members[1].start(changed(head, attempt=1), at=1010)


def test_a_certificate_that_has_expired_when_the_roster_comes_is_refused() -> None:
    members, authority = fleet(3)
    key = bytes.fromhex(members[2].device.signer.public_hex)
    short = certify(AUTHORITY_KEY, id="device-0002", holder="device", public_key=key, not_before=0, not_after=500)
    members[2].device = replace(members[2].device, certificate=short.encoded)
    roster = Coordinator(header(dimension=5), authority, members).open(at=100)
    with pytest.raises(BadMessage, match="vouch for device device-0002"):
        members[0].tell(roster, at=501)
    assert members[1].tell(roster, at=499) is not None


def test_a_list_that_another_authority_signed_begins_no_attempt() -> None:
    forged = sign_revocations(
        DeviceKey.create(entropy("another")), counter=2, issued=0, next_update=FOREVER, revoked=()
    )
    member, head = lone(), header(dimension=5, revocations_digest=forged.digest)
    with pytest.raises(BadMessage, match="another authority"):
        member.start(head, wants=replace(expected(head), revocations=forged))
    assert member.log == []
    assert member.memory.encoded == Memory().encoded


def test_without_a_list_an_attempt_goes_on_and_none_begins() -> None:
    member, head = lone(), header(dimension=5)
    with pytest.raises(Refusal, match="no revocation list"):
        member.start(head, wants=replace(expected(head), revocations=None))
    first = member.start(head)
    assert member.start(head, wants=replace(expected(head), revocations=None)) == first


# One model, whatever its file and run.


def played(member: Member, head: AttemptHeader, at: float = 0.0, tensors: bytes = b"") -> Transmit | None:
    wants = expected(head)
    return member.start(head, at, replace(wants, tensors=tensors) if tensors else wants)


def test_repro_one_checkpoint_is_one_in_all_files_and_all_runs() -> None:
    """The same tensors in another order or with other metadata have another file; two runs may begin with one
    model: *spent* knows both."""
    members, authority = fleet(4)
    model = digest("the tensors")
    coordinator = Coordinator(header(dimension=5), authority, members)
    survivors = until_masked(coordinator)
    member = members[0]
    member.tell(survivors.encoded)
    mine = tensors_of(coordinator.header.model)
    assert list(member.memory.spent) == [mine]
    for other in ({"model": model}, {"run": "run-2"}, {"run": "run-2", "model": model, "plan": digest("other")}):
        with pytest.raises(SpentOnCheckpoint) as caught:
            played(member, header(dimension=5, round=10, **other), 100, mine)
        assert caught.value.final
    assert played(member, header(dimension=5, round=10, model=model), 100) is not None


def test_every_checkpoint_that_was_signed_on_and_every_learner_that_joined_stays_known() -> None:
    members, authority = fleet(4)
    coordinators = [
        Coordinator(header(dimension=5, round=9 + number, model=digest(f"{number}")), authority, members)
        for number in range(3)
    ]
    for number, coordinator in enumerate(coordinators):
        members[0].tell(until_masked(coordinator, at=100.0 * number).encoded, at=100.0 * number)
    assert set(members[0].memory.spent) == {tensors_of(one.header.model) for one in coordinators}
    for number, coordinator in enumerate(coordinators):
        with pytest.raises(SpentOnCheckpoint):
            members[0].start(changed(coordinator.header, round=20 + number), at=1000)
    head = header(dimension=5, round=30, model=digest("another"))
    members[0].start(head, at=2000, wants=replace(expected(head), learner="other:net"))
    assert members[0].memory.plain == set()


def test_pauses_tries_and_the_one_live_attempt_are_of_the_checkpoint_over_all_runs() -> None:
    member, head = lone(), header(dimension=5, rule=RING)
    mine = tensors_of(head.model)
    assert played(member, head) is not None
    second = changed(head, run="run-2", model=digest("another file"))
    with pytest.raises(Refusal, match="moment ago"):
        played(member, second, 5, mine)
    assert played(member, second, 10, mine) is not None
    assert [live.header for live in member.memory.live.values()] == [second.encoded]
    assert played(member, changed(head, run="run-3"), 20, mine) is not None
    with pytest.raises(Refusal, match="advertised 3 times") as caught:
        played(member, changed(head, run="run-4"), 40, mine)
    assert caught.value.final
    assert member.memory.advertisements[mine].count == 3


def test_the_order_of_attempts_is_kept_for_each_run_over_its_checkpoints() -> None:
    member, head = lone(), header(dimension=5)
    assert member.start(changed(head, attempt=1)) is not None
    assert member.start(changed(head, round=10, model=digest("next")), at=20) is not None
    for older in (changed(head, attempt=2), changed(head, model=digest("third"), attempt=9)):
        with pytest.raises(Refusal, match="a replay") as caught:
            member.start(older, at=40)
        assert not caught.value.final
    assert member.start(changed(head, run="run-2"), at=40) is not None, "another run counts by itself"
    assert member.memory.order == {digest("run-1"): (10, 0), digest("run-2"): (9, 0)}


def test_repro_a_run_of_the_same_name_in_another_database_is_no_replay() -> None:
    """A device that had joined a run "mnist" refused the first rounds of every other run of that name, for ever."""
    member, head = lone(), header(dimension=5)
    assert member.start(head) is not None
    other = changed(head, run_digest=digest("another database"), round=1, model=digest("other"))
    assert member.start(other, at=20) is not None
    for name in ("run-1", "another name"):
        replayed = changed(head, round=8, run=name, run_digest=head.run_digest)
        with pytest.raises(Refusal, match="a replay"):
            member.start(replayed, at=40)


def test_repro_the_memory_grows_by_no_more_than_safety_needs() -> None:
    """It grew by 108 bytes for each checkpoint that was signed on, and for each run by its name too."""
    members, authority = fleet(4)
    sizes = []
    for number in range(3):
        head = header(dimension=5, round=9 + number, model=digest(f"model {number}"))
        until_signed(Coordinator(head, authority, members))
        for member in members:
            member.disk = member.memory.ended(head.encoded).encoded
        sizes.append(len(members[0].disk))
    assert members[0].memory.advertisements == {}
    assert [after - before for before, after in pairwise(sizes)] == [32, 32]
    one, sizes = lone(), []
    for number in range(3):
        head = header(dimension=5, run="x" * (1 + number), model=digest(f"model {number}"))
        assert one.start(head) is not None
        one.disk = one.memory.ended(head.encoded).encoded
        sizes.append(len(one.disk))
    assert [after - before for before, after in pairwise(sizes)] == [88, 88], "44 for the checkpoint, 44 for the run"


def test_what_is_final_is_said_so_and_nothing_else_is() -> None:
    """The coordinator counts on a device no longer, once that has refused finally: on this checkpoint, in no run."""
    assert SpentOnCheckpoint().final
    assert not Refusal("whatever").final
    member, head = lone(), header(dimension=5)
    refused = []
    for changes, at in (({"expires_at": 5}, 10.0), ({"minimum_cohort": 2}, 0.0), ({"codec": "other"}, 0.0)):
        with pytest.raises(Refusal) as caught:
            member.start(changed(head, **changes), at, None if "codec" not in changes else expected(head))  # type: ignore[arg-type]
        refused.append(caught.value)
    member.start(head)
    with pytest.raises(Refusal) as caught:
        member.start(changed(head, attempt=1), at=1)
    assert not any(error.final for error in [*refused, caught.value])


def test_a_codec_seed_that_the_plan_does_not_give_is_refused() -> None:
    """Else a coordinator could choose the rotation, or which coordinates count."""
    member, head = lone(), header(dimension=5)
    with pytest.raises(Refusal, match="another seed of the codec"):
        member.start(changed(head, codec_seed=digest("chosen")), wants=expected(head))
    assert member.log == []
    assert expected(head).codec_seed == bytes(32)
    assert member.start(changed(head, codec_seed=digest("the plan's"))) is not None


# Clocks.


def test_an_attempt_may_not_live_for_ever() -> None:
    member = lone(longest_life_s=3600)
    head = header(dimension=5, expires_at=10_000)
    with pytest.raises(Refusal, match="longer than 3600 s"):
        member.start(head, at=6_399)
    assert member.start(head, at=6_400) is not None
    assert SecurePolicy().longest_life_s == 7 * 86_400


def test_a_clock_that_goes_back_begins_the_pause_again_and_no_more() -> None:
    member, head = lone(), header(dimension=5)
    assert member.start(head, at=1_000_000) is not None
    for at in (500.0, 400.0):
        with pytest.raises(Refusal, match="moment ago") as caught:
            member.start(changed(head, attempt=1), at=at)
        assert caught.value.retry_s == pytest.approx(10)
    with pytest.raises(Refusal, match="moment ago"):
        member.start(changed(head, attempt=1), at=409)
    assert member.start(changed(head, attempt=1), at=410) is not None


def test_a_clock_that_jumps_ahead_leaves_the_number_of_fast_tries() -> None:
    members, _ = fleet(1)
    member, head = members[0], header(dimension=5, rule=RING)
    for attempt, at in enumerate((0.0, 1e6, 2e6)):
        assert member.start(changed(head, attempt=attempt), at=at) is not None
    with pytest.raises(Refusal, match="3 times"):
        member.start(changed(head, attempt=3), at=1e9)


def test_sweeping_leaves_what_is_for_good() -> None:
    members, authority = fleet(4)
    coordinator = Coordinator(header(dimension=5, expires_at=1000), authority, members)
    until_masked(coordinator)
    memory = members[0].memory
    assert memory.swept(1000) is memory
    swept = memory.swept(1000.5)
    assert swept.live == {}
    assert (swept.advertisements, swept.spent, swept.plain) == (memory.advertisements, memory.spent, memory.plain)
    with pytest.raises(Refusal, match="replay"):  # swept, and expired: the same header begins nothing
        Member(members[0].device, members[0].values, 1, disk=swept.encoded).start(coordinator.header, at=900)


# No way back to plain.


def test_agreeing_to_a_secure_round_ends_plain_plans_for_all_learners_and_apps() -> None:
    """Not only after masking: an attempt that is aborted at once must not be a way to the same data in the clear. Nor
    may another learner be: its data are the same."""
    member = lone()
    assert plain_refusal(member.memory.plain, LEARNER) is None
    with pytest.raises(Refusal):
        member.start(header(dimension=5, minimum_cohort=2))
    assert plain_refusal(member.memory.plain, LEARNER) is None  # nothing was agreed to
    assert member.start(header(dimension=5)) is not None
    for name in (LEARNER, "another:learner", "publisher/app"):
        assert name in (plain_refusal(member.memory.plain, name) or "")


def test_the_owner_alone_lets_plain_plans_in_again() -> None:
    member = lone()
    member.start(header(dimension=5))
    memory = Memory.parse(member.memory.plain_again(LEARNER).encoded)
    assert plain_refusal(memory.plain, LEARNER) is None
    assert plain_refusal(memory.plain, "another:learner") is not None
    assert plain_refusal(memory.masked_for("another:learner").plain, LEARNER) is None
    assert plain_refusal(memory.masked_for(LEARNER).plain, LEARNER) is not None
    assert Memory().plain_again(LEARNER) == Memory()
    assert memory.advertisements == member.memory.advertisements
