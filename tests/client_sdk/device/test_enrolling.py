"""How a device becomes known and stays so: certificate, registration, renewal, rotation; and who is not believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import Action, Certify, Reply, RequestRefused, Save, Send, Unreachable
from client_sdk.device.enrolling import REGISTRATIONS, RENEWAL_S
from client_sdk.device.record import Record
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.authority.issuer import DAY_S
from tests.client_sdk.device.scripted import Crash, Driver, ScriptedCoordinator
from tests.client_sdk.device.scripted_authority import START
from tests.client_sdk.device.sessions import URL, entropy, run
from tests.coordinator.authority.world import key_of


def saved(driver: Driver) -> Record:
    record = driver.storage.load()
    assert record is not None
    return record


def certificate_of(driver: Driver) -> Certificate:
    return Certificate.parse(bytes.fromhex(saved(driver).certificate))


def enrolled(rounds: int = 1, **script: Any) -> Driver:
    """A device that has joined one round of ``rounds``."""
    driver = Driver(ScriptedCoordinator(rounds, **script))
    run(driver)
    driver.performed.clear()
    driver.coordinator.authority.asked.clear()
    return driver


# ---------------------------------------------------------------- the first certificate


def test_enrolment_without_an_answer_is_repeated_with_the_same_key() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    driver.lost = {1, 5}
    run(driver)
    assert coordinator.authority.asked == ["enrol", "enrol"]
    assert coordinator.registrations == 2
    assert len(coordinator.authority.holders) == 1
    assert [isinstance(action, Certify) for action in driver.performed[1:4]] == [True, False, True]


def test_the_authority_of_the_token_is_saved_with_the_key_before_it_is_asked() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    run(driver)
    first = driver.performed[0]
    assert isinstance(first, Save)
    assert first.record.key_seed
    assert first.record.authority is not None
    token = driver.coordinator.authority.enrolment
    assert (first.record.authority.url, first.record.authority.digest) == (token.url, token.authority.hex())


def test_a_device_without_token_says_what_is_missing_and_saves_nothing() -> None:
    driver = Driver(ScriptedCoordinator())
    with pytest.raises(ProblemError, match="quorate authority token"):
        run(driver, enrolment_token=None)
    assert driver.storage.load() is None


def test_a_token_that_the_authority_refuses_ends_the_session_with_its_sentence() -> None:
    driver = Driver(ScriptedCoordinator())
    token = driver.coordinator.authority.enrolment
    with pytest.raises(ProblemError, match="This enrolment token is not known here"):
        run(driver, enrolment_token=EnrolmentToken(token.url, token.authority, bytes(16)))


def test_a_workers_token_makes_no_device_and_spoils_no_later_try() -> None:
    """The authority has certified the key as a worker's by then, and certifies it for nothing else."""
    driver = Driver(ScriptedCoordinator(rounds=1))
    authority, draw = driver.coordinator.authority, entropy()
    with pytest.raises(ProblemError, match="is for a worker; a device needs"):
        run(driver, enrolment_token=authority.token(holder="worker"), draw=draw)
    assert saved(driver) == Record()
    assert run(driver, draw=draw) == 1
    assert saved(driver).key_seed


def test_another_authority_than_the_tokens_is_refused_at_once() -> None:
    """A coordinator may answer at the authority's address with an authority of its own."""
    driver = Driver(ScriptedCoordinator())
    token = driver.coordinator.authority.enrolment
    with pytest.raises(ProblemError, match="another authority"):
        run(driver, enrolment_token=EnrolmentToken(token.url, bytes(32), token.secret))
    assert [type(action) for action in driver.performed] == [Save, Certify]


def test_a_key_kept_outside_signs_and_never_enters_the_record() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    driver.signer = DeviceKey.create()
    run(driver, signer=driver.signer)
    assert saved(driver).key_seed == ""
    assert certificate_of(driver).public_key.hex() == driver.signer.public_hex
    with pytest.raises(ValueError, match="signer"):
        run(driver)


# ---------------------------------------------------------------- which authority, which coordinator


def test_a_token_of_another_authority_is_refused_with_what_to_do() -> None:
    driver = enrolled(rounds=2)
    token = EnrolmentToken("https://other.example", bytes(32), bytes(16))
    with pytest.raises(ProblemError, match=r"of another authority, at https://other.example, .* folder of its own"):
        run(driver, enrolment_token=token)
    assert driver.performed == []


def test_an_authority_that_moved_is_asked_at_the_address_of_the_newer_token() -> None:
    driver = enrolled(rounds=2)
    token = EnrolmentToken("https://moved.example", driver.coordinator.authority.enrolment.authority, bytes(16))
    run(driver, enrolment_token=token)
    authority = saved(driver).authority
    assert authority is not None
    assert authority.url == "https://moved.example"
    assert driver.coordinator.authority.asked == []


def test_another_coordinator_gets_the_same_certificate() -> None:
    driver = enrolled()
    first = driver.coordinator
    driver.coordinator = ScriptedCoordinator(rounds=1, authority=first.authority)
    run(driver, coordinator="http://elsewhere.test", enrolment_token=None)
    assert first.authority.asked == []
    assert driver.coordinator.known == first.known
    assert [entry.coordinator for entry in driver.storage.history()] == [URL, "http://elsewhere.test"]


def interrupted(where: Callable[[Action], bool]) -> Driver:
    """A device that lost its power before this action."""
    probe = Driver(ScriptedCoordinator(rounds=1))
    run(probe)
    place = next(i for i, action in enumerate(probe.performed) if where(action))
    driver = Driver(ScriptedCoordinator(rounds=1)).crash_at([(place, "before")])
    with pytest.raises(Crash):
        run(driver)
    driver.crashes = {}
    driver.performed.clear()
    return driver


def test_a_round_of_one_coordinator_is_not_continued_at_another() -> None:
    driver = interrupted(lambda action: isinstance(action, Send) and action.route is Route.UPDATE)
    first = driver.coordinator
    driver.coordinator = ScriptedCoordinator(rounds=1, authority=first.authority)
    run(driver, 2, coordinator="http://elsewhere.test")
    dropped, received = driver.storage.history()
    assert (dropped.result, dropped.coordinator) == ("dropped", URL)
    assert dropped.joined_at <= dropped.ended_at
    assert (received.result, received.coordinator) == ("receipt", "http://elsewhere.test")
    assert first.rounds[0].update is None


def test_a_round_given_to_another_id_is_dropped() -> None:
    driver = interrupted(lambda action: isinstance(action, Send) and action.route is Route.UPDATE)
    record = saved(driver)
    assert record.assignment is not None
    driver.storage.save(record.changed(assignment=record.assignment.changed(device="d9")))
    run(driver)
    assert [entry.result for entry in driver.storage.history()] == ["dropped"]


def test_the_history_says_where_the_coordinator_could_have_made_devices_up() -> None:
    driver = enrolled()
    driver.coordinator = ScriptedCoordinator(rounds=1, authority=driver.coordinator.authority)
    driver.coordinator.inside = True
    run(driver, coordinator="http://demo.test")
    assert [entry.authority_inside for entry in driver.storage.history()] == [False, True]


# ---------------------------------------------------------------- registered again


@pytest.mark.parametrize("route", [Route.CHECK_IN, Route.CHECKPOINT, Route.UPDATE])
def test_a_coordinator_that_lost_the_device_gets_its_certificate_again_and_the_update_arrives(route: Route) -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    part = route.value.rpartition("/")[2] if route is not Route.CHECKPOINT else "checkpoints"

    def forget(method: str, path: str) -> None:
        if part in path and coordinator.registrations == 1:
            coordinator.known.clear()

    coordinator.interfere = forget
    driver.fetched = None if route is not Route.CHECKPOINT else fetch_by_request(driver)
    assert run(driver) == 1
    assert coordinator.registrations == 2
    assert coordinator.rounds[0].update == b"round 1, training 1"
    assert driver.trainings == 1
    assert coordinator.authority.asked == ["enrol"]


def fetch_by_request(driver: Driver) -> Callable[[Any], Reply]:
    from client_sdk.device.actions import Fetched, RequestRefused
    from client_sdk.protocol.problems import parse_problem

    def fetch(action: Any) -> Reply:
        key = certificate_of(driver).key_id.hex()
        status, body = driver.coordinator.handle("GET", f"/v1/checkpoints/{action.checkpoint.digest}", key, b"")
        return Fetched(driver.clock) if status == 200 else RequestRefused(parse_problem(status, body), driver.clock)

    return fetch


def test_a_key_that_is_unknown_however_often_it_registers_ends_the_session() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.interfere = lambda method, path: (
        problem("unregistered", "No.") if path == Route.CHECK_IN.value else None
    )
    with pytest.raises(ProblemError, match=r"No\."):
        run(Driver(coordinator))
    assert coordinator.registrations == 1 + REGISTRATIONS


def test_a_coordinator_that_registers_another_device_is_left() -> None:
    coordinator = ScriptedCoordinator()
    genuine = coordinator._register
    coordinator._register = lambda *asked: genuine(*asked).changed(device="d9")  # type: ignore[method-assign]
    driver = Driver(coordinator)
    with pytest.raises(ProblemError, match="another device"):
        run(driver)
    assert saved(driver).registered is None


@pytest.mark.parametrize("kind", ["revoked-key", "not-certified", "enrolment-refused", "unauthenticated"])
def test_what_needs_a_person_ends_the_session(kind: str) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.interfere = lambda method, path: problem(kind, "Ask somebody.")
    driver = Driver(coordinator)
    with pytest.raises(ProblemError, match=r"Ask somebody\."):
        run(driver)
    assert coordinator.authority.asked == ["enrol"]


# ---------------------------------------------------------------- renewal


def test_in_the_second_half_of_its_time_a_certificate_is_renewed_before_a_check_in() -> None:
    driver = enrolled(rounds=4)
    first = certificate_of(driver)
    driver.clock = START + 44 * DAY_S
    run(driver, 1, enrolment_token=None)
    assert driver.coordinator.authority.asked == []
    driver.clock = START + 46 * DAY_S
    run(driver, 2, enrolment_token=None)
    assert driver.coordinator.authority.asked == ["renew"]
    renewed = certificate_of(driver)
    assert (renewed.id, renewed.public_key) == (first.id, first.public_key)
    assert renewed.not_after > first.not_after
    assert list(driver.coordinator.known.values()) == [renewed]
    asked = [action for action in driver.performed if isinstance(action, Certify | Send)]
    place = next(i for i, action in enumerate(asked) if isinstance(action, Certify))
    following = [action.route for action in asked[place + 1 : place + 3] if isinstance(action, Send)]
    assert following == [Route.REGISTER, Route.CHECK_IN]


@pytest.mark.parametrize("trouble", ["unreachable", "refused", "the present one again"])
def test_a_renewal_that_fails_is_asked_for_once_an_hour_and_stops_no_work(trouble: str) -> None:
    driver = enrolled(rounds=1)
    authority = driver.coordinator.authority
    driver.clock = START + 46 * DAY_S
    times: list[float] = []

    def fail(action: Certify, record: Record, signer: DeviceKey, at: float) -> Reply:
        times.append(at)
        if trouble == "unreachable":
            return Unreachable("No authority answers.", at)
        if trouble == "refused":
            return RequestRefused(problem("revoked-key", "The authority has revoked this key.").problem, at)
        return replace(genuine(action, record, signer, START), at=at)

    genuine: Any = authority.perform
    authority.perform = fail  # type: ignore[method-assign, assignment]
    checks: list[float] = []

    def check(method: str, path: str) -> None:
        if path == Route.CHECK_IN.value:
            checks.append(driver.clock)
        if len(checks) == 1500:
            raise Crash

    driver.coordinator.interfere = check
    with pytest.raises(Crash):
        run(driver, enrolment_token=None)
    hours = (checks[-1] - checks[0]) / RENEWAL_S
    assert hours > 3
    assert hours - 1 <= len(times) <= hours + 1
    assert driver.coordinator.registrations == 1, "no certificate is registered again"
    assert max(later - earlier for earlier, later in pairwise(checks)) < 11


def test_a_certificate_that_the_coordinator_takes_no_more_is_renewed_at_once() -> None:
    driver = enrolled(rounds=2)
    driver.clock = START + 46 * DAY_S
    expired = iter([problem("expired-certificate", "It has expired.")])
    driver.coordinator.interfere = lambda method, path: next(expired, None) if method == "PUT" else None
    run(driver, enrolment_token=None)
    assert "renew" in driver.coordinator.authority.asked
    assert driver.coordinator.rounds[1].update is not None


def expire(driver: Driver) -> None:
    """All certificates of the device are out of date, for everybody."""
    driver.clock = START + 100 * DAY_S

    def check(method: str, path: str) -> ProblemError | None:
        known = driver.coordinator.known.values()
        new = path == Route.REGISTER.value or any(one.not_after > driver.clock for one in known)
        return None if new else problem("expired-certificate", "It has expired.")

    driver.coordinator.interfere = check


def test_an_expired_certificate_is_replaced_with_a_new_token_under_the_same_id() -> None:
    driver = enrolled(rounds=2)
    first = certificate_of(driver)
    expire(driver)
    driver.coordinator.authority.at = int(driver.clock)
    run(driver, enrolment_token=driver.coordinator.authority.token())
    assert set(driver.coordinator.authority.asked) == {"renew", "enrol"}
    assert certificate_of(driver).id == first.id
    assert [entry.result for entry in driver.storage.history()] == ["receipt", "receipt"]


def test_an_expired_certificate_without_a_token_ends_the_session_with_what_to_do() -> None:
    driver = enrolled(rounds=2)
    expire(driver)
    with pytest.raises(ProblemError, match=r"expired.* ask an operator of the authority for a new token"):
        run(driver, enrolment_token=None)


# ---------------------------------------------------------------- rotation, and crashes in all of it


def with_next_key(driver: Driver) -> DeviceKey:
    following = key_of("the next key")
    driver.storage.save(saved(driver).changed(next_key_seed=following.seed.hex()))
    return following


def test_a_rotation_under_way_is_finished_before_anything_else_is_sent() -> None:
    driver = enrolled(rounds=2)
    first, following = certificate_of(driver), with_next_key(driver)
    run(driver)
    record, rotated = saved(driver), certificate_of(driver)
    assert (record.key_seed, record.next_key_seed) == (following.seed.hex(), "")
    assert (rotated.id, rotated.public_key.hex()) == (first.id, following.public_hex)
    assert isinstance(driver.performed[0], Certify)
    assert list(driver.coordinator.known.values()) == [rotated]
    assert len(driver.storage.history()) == 2


def test_a_rotation_that_was_decided_against_leaves_the_old_key() -> None:
    driver = enrolled(rounds=2)
    first, following = certificate_of(driver), with_next_key(driver)
    other = driver.coordinator.authority
    stranger = Driver(ScriptedCoordinator(rounds=1, authority=other))
    stranger.signer = following
    run(stranger, signer=following)
    run(driver)
    assert saved(driver).next_key_seed == ""
    assert certificate_of(driver) == first
    assert len(driver.storage.history()) == 2


def test_a_revoked_key_keeps_the_next_one_since_it_may_have_been_answered_for() -> None:
    driver = enrolled(rounds=2)
    with_next_key(driver)
    driver.coordinator.authority.revoke(certificate_of(driver).id)
    with pytest.raises(ProblemError, match="revoked"):
        run(driver)
    assert saved(driver).next_key_seed != ""


def long_life() -> tuple[Driver, MemoryStorage]:
    """A device in whose one life all happens: it enrols, joins a round, rotates its key, renews, joins another one."""
    driver = Driver(ScriptedCoordinator(rounds=3))
    return driver, driver.storage


def live(driver: Driver, draw: Any) -> None:
    done = len(driver.storage.history())
    if done < 1:
        run(driver, 1, draw=draw)
    record = saved(driver)
    if record.key_seed != key_of("the next key").seed.hex() and not record.next_key_seed:
        with_next_key(driver)
    if len(driver.storage.history()) < 2:
        run(driver, 2 - len(driver.storage.history()), draw=draw)
    driver.clock = max(driver.clock, START + 60 * DAY_S)
    if len(driver.storage.history()) < 3:
        run(driver, 3 - len(driver.storage.history()), draw=draw)


def every_crash() -> Iterator[tuple[int, str]]:
    driver, _ = long_life()
    live(driver, entropy())
    for place, action in enumerate(driver.performed):
        if isinstance(action, Certify | Save | Send):
            yield place, "before"
            yield place, "after"


@pytest.mark.parametrize("crash", list(every_crash()), ids=lambda crash: f"{crash[1]}-{crash[0]}")
def test_a_crash_anywhere_in_a_long_life_keeps_one_id_and_loses_no_round(crash: tuple[int, str]) -> None:
    driver, storage = long_life()
    draw = entropy()
    driver.crash_at([crash])
    with pytest.raises(Crash):
        live(driver, draw)
    live(driver, draw)
    assert [(entry.round, entry.result) for entry in storage.history()] == [(n, "receipt") for n in (1, 2, 3)]
    assert len(driver.coordinator.authority.holders) == 1
    assert {entry.device for entry in storage.history()} == driver.coordinator.authority.holders
    record = saved(driver)
    assert (record.key_seed, record.next_key_seed) == (key_of("the next key").seed.hex(), "")
    assert certificate_of(driver).not_after > START + 100 * DAY_S
