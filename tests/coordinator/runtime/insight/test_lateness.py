"""When it is said that lateness is concentrated: not by chance, not for a handful, and in words that name whom."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.protocol.insight import DeviceParticipation
from coordinator.runtime.insight.participation import by_class, lateness


def device(number: int, selected: int, missed: int, kind: str = "no class") -> DeviceParticipation:
    came = selected - missed
    return DeviceParticipation(
        device=f"d{number}", device_class=kind, selected=selected, reported=came, counted=came, late=missed
    )


@pytest.mark.parametrize(("rounds", "p"), [(3, 0.25), (10, 0.1), (10, 0.5), (100, 0.03), (1, 0.3)])
def test_chance_alone_is_not_said(rounds: int, p: float) -> None:
    for seed in range(40):
        rng = np.random.default_rng([seed, rounds])
        assert lateness([device(number, rounds, int(rng.binomial(rounds, p))) for number in range(200)]) == ""


def test_slow_devices_are_said_with_their_class() -> None:
    rng = np.random.default_rng(1)
    slow = [device(number, 6, int(rng.binomial(6, 0.9)), "slow") for number in range(60)]
    fast = [device(number + 60, 6, int(rng.binomial(6, 0.1)), "fast") for number in range(340)]
    said = lateness(slow + fast)
    assert said.startswith("Lateness is concentrated: ")
    assert " of 400 devices came too late or were silent in " in said
    assert said.index("by class: slow") < said.index("fast")


def test_a_handful_is_not_said_however_late_it_is() -> None:
    assert lateness([device(0, 50, 50)] + [device(number, 50, 0) for number in range(1, 100)]) == ""
    few = [device(number, 50, 50) for number in range(6)] + [device(number, 50, 0) for number in range(6, 100)]
    assert lateness(few).startswith("Lateness is concentrated: 6 of 100 devices came too late or were silent in 100%")
    seldom = [device(number, 1, number % 2) for number in range(100, 110)]
    often_late = [device(number, 50, 20) for number in range(110, 115)]
    assert lateness(few + seldom).startswith("Lateness is concentrated: 6 of 100 devices")
    away = [one.changed(device=f"w{at}", reported=0, counted=0, late=0, withdrawn=50) for at, one in enumerate(few)]
    assert lateness(few + away).startswith("Lateness is concentrated: 6 of 100 devices"), "they withdrew"
    assert lateness(few + often_late).startswith("Lateness is concentrated: 6 of 105 devices"), "they report often"


def test_a_class_is_said_where_its_devices_were_selected_too_seldom_to_tell() -> None:
    slow = [device(number, 1, 1, "slow") for number in range(12)]
    fast = [device(number + 12, 3, number % 3 == 0, "fast") for number in range(40)]
    said = lateness(slow + fast)
    assert said.startswith("Lateness is concentrated: the 12 devices of slow came too late or were silent in 100% of")
    few = [device(number, 1, 1, "slow") for number in range(2)]
    assert lateness(few + fast) == "", "a class of a twentieth of the devices at least"
    rng = np.random.default_rng(4)
    alike = [device(number, 2, int(rng.binomial(2, 0.3)), "ab"[number % 2]) for number in range(100)]
    assert lateness(alike) == ""


def test_rates_of_classes_are_of_all_selections_also_in_rounds_that_were_abandoned() -> None:
    slow = [device(number, 6, 5, "slow").changed(counted=0) for number in range(60)]
    fast = [device(number + 60, 6, 0, "fast").changed(counted=3) for number in range(140)]
    assert "silent in 83% of their 360 selections, the others 0%; by class: slow 83%, fast 0%" in lateness(slow + fast)


def test_a_device_that_withdraws_is_not_late() -> None:
    away = [
        DeviceParticipation(device=f"w{number}", device_class="no class", selected=9, withdrawn=9)
        for number in range(50)
    ]
    assert lateness(away + [device(number, 9, 1) for number in range(50)]) == ""


def test_nobody_and_everybody() -> None:
    assert lateness([]) == ""
    assert lateness([device(0, 5, 5)]) == ""
    assert lateness([device(0, 5, 5), device(1, 3, 3)]) == ""
    assert lateness([device(0, 1, 1, "a"), device(1, 1, 0, "b")]) == "", "one selection of each shows nothing"
    assert lateness([device(0, 5, 0)]) == ""


def test_classes_with_the_most_devices_come_first() -> None:
    found = by_class([device(0, 1, 0, "a"), device(1, 1, 0, "c"), device(2, 1, 0, "c"), device(3, 1, 0, "b")])
    assert [one.device_class for one in found] == ["c", "a", "b"]


def test_classes_are_sums() -> None:
    large, small = by_class([device(0, 4, 4, "a"), device(1, 4, 1, "a"), device(2, 2, 0, "b")])
    assert (large.device_class, large.devices, large.never_counted) == ("a", 2, 1)
    assert (large.selected, large.counted, large.missed) == (8, 3, 5)
    assert small.device_class == "b"
