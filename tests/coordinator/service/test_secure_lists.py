"""A secure round outlives its revocation list: the authority issues newer ones while devices are still to begin, while
they mask, and against one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client_sdk.credentials.certificate import CLOCKS_APART_S, RevocationList
from client_sdk.protocol.names import Route
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.header import AttemptHeader
from tests.coordinator.certified import key_of
from tests.coordinator.served import RUN, Phone, Served
from tests.coordinator.service.wire import Sent, kind

pytestmark = pytest.mark.whole

COHORT = {"select": 6, "goal": 6, "quorum": 0.5, "select_s": 10, "collect_s": 60}


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def reissued(world: Served, *revoked: Phone) -> RevocationList:
    """The authority's next list, which the coordinator has taken."""
    keys = [world.keys[phone.number] for phone in revoked]
    strangers = [key_of(f"stranger {world.clock.at}")] if not revoked else []
    return world.coordinator.identities.take_list(world.authority.list(world.clock.at, *keys, *strangers))


def header_of(world: Served) -> AttemptHeader:
    return AttemptHeader.parse(bytes.fromhex(world.state.secure.header))


def counted(world: Served, round: int = 1) -> list[int]:
    return sorted(world.index(row.device) for row in world.store.contributions(RUN, round))


def test_repro_a_list_that_is_issued_before_the_devices_begin_costs_no_round(world: Served) -> None:
    world.secure_run()
    world.begin()
    named = header_of(world).revocations
    for _ in range(3):
        assert reissued(world).counter > named
    world.boot()
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1
    assert counted(world) == list(range(6))
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(range(6)), atol=1e-3)


def test_devices_may_fetch_the_headers_list_before_and_after_a_newer_one(world: Served) -> None:
    world.secure_run()
    world.begin()
    assert world.turn(world.phones[0])
    assert world.turn(world.phones[0])
    reissued(world)
    world.play()
    assert counted(world) == list(range(6))


@pytest.mark.parametrize("phase", ["sharing", "masking", "agreeing", "unmasking"])
def test_a_list_that_is_issued_in_an_exchange_costs_no_round(world: Served, phase: str) -> None:
    world.secure_run()
    world.begin()
    world.play(lambda: world.state.phase == phase)
    reissued(world)
    world.boot()
    world.play()
    assert counted(world) == list(range(6))
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(range(6)), atol=1e-3)


def test_a_device_that_a_newer_list_revokes_falls_silent_and_the_attempt_goes_on(
    world: Served,
) -> None:
    world.secure_run(cohort=COHORT, finish={"rounds": 2})
    world.begin()
    first = header_of(world)
    world.play(lambda: world.state.phase == "masking")
    newer = reissued(world, world.phones[2])
    refused = world.answer(world.phones[2], "share")
    assert (refused.status_code, kind(refused)) == (403, "revoked-key")
    for _ in range(3):
        world.play()
        if world.coordinator.operators.run(RUN).version:
            break
        world.pass_time(21)
    assert counted(world) == [0, 1, 3, 4, 5]
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of([0, 1, 3, 4, 5]), atol=1e-3)
    left = [row for row in world.rows if row.device != world.rows[2].device]
    world.check_in(*(world.index(row.device) for row in left))
    world.pass_time(11)
    second = header_of(world)
    assert (first.revocations, second.round) == (newer.counter - 1, 2)
    assert (second.revocations, second.revocations_digest) == (newer.counter, newer.digest)


def test_a_device_that_is_revoked_before_the_roster_is_made_is_not_in_it(world: Served) -> None:
    world.secure_run(cohort=COHORT)
    world.begin()
    for phone in world.phones[:5]:
        assert world.turn(phone)
        assert world.turn(phone)
    reissued(world, world.phones[2])
    world.play_to_end()
    assert counted(world) == [0, 1, 3, 4, 5]


def masked_by(world: Served, *phones: Phone) -> None:
    """These go on until their vectors have come."""
    for phone in phones:
        while world.rows[phone.number].device not in world.state.secure.masked:
            assert world.turn(phone)


def test_a_device_that_is_revoked_after_it_masked_counts(world: Served) -> None:
    """The attempt keeps its header's list until it ends."""
    world.secure_run(cohort=COHORT)
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    masked_by(world, world.phones[2])
    reissued(world, world.phones[2])
    world.boot()
    assert kind(world.tell(world.phones[2], sent_by(world.phones[2]))) == "revoked-key", "its door is shut at once"
    world.play_to_end()
    assert counted(world) == list(range(6))
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(range(6)), atol=1e-3)


def test_a_device_that_is_revoked_after_it_masked_is_not_in_the_next_attempt(world: Served) -> None:
    world.secure_run(cohort=COHORT)
    for phone in world.phones[3:5]:
        phone.stops = "mask"
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    masked_by(world, world.phones[2])
    first, newer = header_of(world), reissued(world, world.phones[2])
    world.play()
    world.pass_time(21)
    assert world.state.current.attempt == 1
    for number in (0, 1, 5):
        world.phones[number].head, world.phones[number].through = None, False
    world.play_to_end()
    (made,) = [row for row in world.store.events(RUN, 0) if row.kind == "Rostered" and row.body["attempt"] == 1]
    assert made.body["groups"][0]["order"] == sorted(world.rows[number].device for number in (0, 1, 5))
    assert counted(world) == [0, 1, 5]
    (header,) = [row for row in world.store.events(RUN, 0) if row.kind == "Announced" and row.body["attempt"] == 1]
    second = AttemptHeader.parse(bytes.fromhex(str(header.body["header"])))
    assert (first.revocations, second.revocations) == (newer.counter - 1, newer.counter)
    refused = [row for row in world.store.refusals(RUN, 1) if row.device == world.rows[2].device]
    assert [row.kind for row in refused] == ["abandoned"]


def sent_by(phone: Phone) -> Transmit:
    """What it has sent, or is to send."""
    assert phone.member.outgoing is not None
    return phone.member.outgoing


def test_a_header_names_what_another_replica_took_a_moment_ago(world: Served) -> None:
    world.secure_run()
    before = world.coordinator.identities.list()
    newer = world.replica().identities.take_list(world.authority.list(world.clock.at))
    assert world.coordinator.identities.list() is before, "this one reads the store every few seconds"
    world.begin()
    assert header_of(world).revocations_digest == newer.digest
    world.play()
    assert counted(world) == list(range(6))


# ------------------------------------------------------------ the route


def shown(world: Served, listed: RevocationList) -> tuple[int, str]:
    answer = world.wire.send(Sent("GET", Route.REVOCATION_LIST.format(digest=listed.digest.hex()), {}))
    assert answer.status_code != 200 or answer.content == listed.encoded
    return answer.status_code, kind(answer)


def test_a_list_is_shown_by_its_digest_to_everybody_until_it_is_out_of_date(world: Served) -> None:
    first = world.coordinator.identities.list()
    assert first is not None
    reissued(world)
    answer = world.wire.send(Sent("GET", Route.REVOCATION_LIST.format(digest=first.digest.hex()), {}))
    assert (answer.status_code, answer.content) == (200, first.encoded)
    assert answer.headers["content-type"] == "application/vnd.quorate.revocations"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["etag"] == f'"{first.digest.hex()}"'
    for at, found in ((0, 200), (CLOCKS_APART_S, 200), (CLOCKS_APART_S + 1, 404)):
        world.clock.at = first.next_update + at
        third = reissued(world)
        assert shown(world, first) == (found, "" if found == 200 else "unknown-list")
    assert shown(world, third) == (200, "")


def test_nothing_but_lists_is_shown(world: Served) -> None:
    world.secure_run()
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    for digest in world.stored():
        answer = world.wire.send(Sent("GET", Route.REVOCATION_LIST.format(digest=digest), {}))
        assert (answer.status_code, kind(answer)) == (404, "unknown-list")
    answer = world.wire.send(Sent("GET", Route.REVOCATION_LIST.format(digest="no-digest"), {}))
    assert answer.status_code == 422
