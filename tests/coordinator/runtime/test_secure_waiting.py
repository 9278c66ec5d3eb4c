"""Secure rounds wait where there is no authority, or no revocation list that is in date, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_sdk.protocol.names import Route
from client_sdk.secagg.header import AttemptHeader
from coordinator.runtime.secure_rounds import SecureRoundsWait
from tests.coordinator.runtime.test_secure_rounds import kinds, require_summed
from tests.coordinator.served import RUN, Served
from tests.coordinator.service.wire import kind


@pytest.fixture
def outdated() -> Iterator[Served]:
    """A run that was created when the revocation list had been out of date for an hour."""
    made = Served()
    made.clock.at += 25 * 3600
    made.secure_run()
    yield made
    made.close()


def test_a_run_waits_for_a_list_that_is_in_date_and_says_so(outdated: Served) -> None:
    world = outdated
    with pytest.raises(SecureRoundsWait, match="Secure rounds wait"):
        world.check_in()
    assert world.state.phase == "collecting"
    assert world.header(world.phones[0]).status_code == 204
    why = world.coordinator.operators.run(RUN).stalled
    assert "Secure rounds wait" in why
    assert world.coordinator.stalled()[RUN] == why
    assert "Secure rounds wait" in str(world.coordinator.healthy()["authority"])
    world.coordinator.identities.take_list(world.authority.list(world.clock.at))
    world.pass_time(1)
    world.pass_time(10)
    assert world.coordinator.operators.run(RUN).stalled == ""
    world.play()
    require_summed(world)


def test_a_run_whose_list_stays_out_of_date_abandons_its_round_and_sums_nothing(outdated: Served) -> None:
    world = outdated
    with pytest.raises(SecureRoundsWait):
        world.check_in()
    world.clock.at += 61
    world.coordinator.tick()
    row = world.store.round(RUN, 1)
    assert row is not None
    assert row.status == "abandoned"
    assert world.state.version == 0


def test_an_advertisement_is_sent_again_later_where_the_list_has_run_out_meanwhile() -> None:
    world = Served()
    world.secure_run()
    world.clock.at += 24 * 3600 - 30
    world.pass_time(0)
    world.begin()
    phone = world.phones[0]
    phone.head = AttemptHeader.parse(world.header(phone, world.state.round_number).content)
    phone.member.start(phone.head, world.clock.at, world.wants(phone.head))
    assert phone.member.outgoing is not None
    world.clock.at += 45
    assert kind(world.tell(phone, phone.member.outgoing)) == "busy"
    world.coordinator.identities.take_list(world.authority.list(world.clock.at))
    assert world.tell(phone, phone.member.outgoing).status_code == 200
    world.close()


class NoAuthority:
    """What a world has in place of an authority, whose coordinators have none from their next start on."""

    def pinned(self) -> None:
        return None


def test_without_any_authority_a_secure_run_waits_says_so_and_never_goes_on_in_clear() -> None:
    world = Served()
    world.authority = NoAuthority()  # type: ignore[assignment]
    world.boot()
    world.secure_run(finish={"rounds": 1, "abandoned": 2})
    with pytest.raises(SecureRoundsWait, match="--authority"):
        world.check_in()
    assert (world.state.phase, world.state.secure.header) == ("collecting", "")
    why = world.coordinator.operators.run(RUN).stalled
    assert "--authority" in why
    assert world.coordinator.stalled() == {RUN: why}
    assert "--authority" in str(world.coordinator.healthy()["authority"])
    given = [world.assignment(number) for number in range(6)]
    assert all(found is not None and found.secure is not None for found in given)
    answer = world.ask(world.phones[0], "PUT", Route.UPDATE, body=b"x" * 100)
    assert (answer.status_code, kind(answer)) == (503, "busy")
    world.clock.at += 61
    world.coordinator.tick()
    row = world.store.round(RUN, 1)
    assert row is not None
    assert (row.status, row.kind) == ("abandoned", "secure")
    assert not {"Reported", "Masked", "Committed"} & set(kinds(world))
    world.close()
