"""The meters of secure rounds: how many ended, how, and what became of their devices; nothing by device or exchange."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.served import Served


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def meters(world: Served) -> dict[str, float]:
    """The lines of the exposition, by name and labels."""
    lines = world.wire.app.state.service.meters.text().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_secure_round_that_is_summed_is_counted_with_its_devices(world: Served) -> None:
    world.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    world.phones[2].stops = "mask"
    world.begin()
    assert 'quorate_rounds_total{kind="secure",outcome="committed"}' not in meters(world)
    world.play_to_end()
    found = meters(world)
    assert found['quorate_rounds_total{kind="secure",outcome="committed"}'] == 1
    assert not [name for name in found if name.startswith('quorate_rounds_total{kind="federated"')]
    by_outcome = {
        outcome: found[f'quorate_round_devices_total{{outcome="{outcome}"}}']
        for outcome in ("reported", "withdrawn", "late", "dropped", "refused")
    }
    assert by_outcome["reported"] == 5, "one sent its keys and shares, and vanished before its vector"
    assert by_outcome["dropped"] == 1
    assert sum(by_outcome.values()) == 6, by_outcome
    route = f'method="PUT",route="{Route.SECURE_MESSAGE}"'
    accepted = found[f'quorate_requests_total{{{route},status="200"}}']
    assert accepted == sum(sent.method == "PUT" and answer.status_code == 200 for _, sent, answer in world.log)
    assert found['quorate_runs{status="finished"}'] == 1


def test_a_secure_round_that_is_abandoned_is_counted(world: Served) -> None:
    world.secure_run(finish={"rounds": 1, "abandoned": 1})
    world.check_in(0, 1)
    world.pass_time(11)
    assert meters(world)['quorate_rounds_total{kind="secure",outcome="abandoned"}'] == 1


def test_no_meter_names_a_device_a_round_or_an_exchange(world: Served) -> None:
    world.secure_run()
    world.begin()
    world.play()
    text = world.wire.app.state.service.meters.text().decode()
    assert not [row.device for row in world.rows if row.device in text]
    assert '="advertise"' not in text
    labels = {
        part.split("=")[0] for line in meters(world) if "{" in line for part in line.split("{")[1][:-1].split('",')
    }
    assert labels <= {"kind", "outcome", "status", "route", "method", "le"}, labels
