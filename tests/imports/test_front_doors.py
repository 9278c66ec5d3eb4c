"""The public names of the front door and of the rooms, listed once here too: a change here is one that users see."""

from __future__ import annotations

import subprocess
import sys

import pytest

import client_sdk
import client_sdk.learning
import quorate
import quorate.testing
import simulation

QUORATE = ["Client", "History", "Learner", "Plan", "Update", "partition", "simulate"]
SIMULATION = [
    "Behaviour",
    "ClientFailed",
    "Clients",
    "History",
    "Plan",
    "SimulationError",
    "Stalled",
    "partition",
    "simulate",
]


def test_front_door_of_quorate() -> None:
    assert quorate.__all__ == dir(quorate) == QUORATE
    for name in QUORATE:
        assert getattr(quorate, name).__name__ == name


def test_front_door_defines_nothing() -> None:
    for room in (client_sdk, client_sdk.learning, simulation):
        for name in set(QUORATE) & set(room.__all__):
            assert getattr(quorate, name) is getattr(room, name)


def test_front_door_of_the_contracts() -> None:
    assert quorate.testing.__all__ == dir(quorate.testing) == sorted(quorate.testing._HOMES)
    for name in quorate.testing.__all__:
        assert getattr(quorate.testing, name).__name__ == name


def test_front_door_of_the_simulation() -> None:
    assert simulation.__all__ == SIMULATION
    for name in SIMULATION:
        assert getattr(simulation, name).__name__ == name


@pytest.mark.parametrize("door", [quorate, client_sdk, client_sdk.learning, simulation])
def test_name_that_is_not_public_is_refused_with_those_that_are(door: object) -> None:
    with pytest.raises(AttributeError, match=r"has no 'Simulator'; it has .*, "):
        door.Simulator  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "absent", "extra"),
    [
        ("quorate.simulate", "pydantic_settings", "simulation"),
        ("quorate.Learner", "torch", "torch"),
        ("simulation.simulate", "pydantic_settings", "simulation"),
        ("client_sdk.learning.Learner", "torch", "torch"),
        ("quorate.testing.RuleContract", "pytest", "testing"),
    ],
)
def test_missing_extra_is_named_in_one_sentence(name: str, absent: str, extra: str) -> None:
    package, _, attribute = name.rpartition(".")
    code = f"import sys; sys.modules[{absent!r}] = None; from {package} import {attribute}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"ImportError: {name} needs {absent}: pip install 'quorate[{extra}]'"
    ), done.stderr
