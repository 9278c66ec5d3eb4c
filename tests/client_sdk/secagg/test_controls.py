"""Positive controls: with one device rule switched off the oracles find the break, and with all rules on they do not.

The same plans, move by move, against both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from client_sdk.secagg.survivors import Proof
from tests.client_sdk.secagg import plans
from tests.client_sdk.secagg.cheater import tolerated
from tests.client_sdk.secagg.cheats import Cheat, revealing
from tests.client_sdk.secagg.lax import (
    ForgetsRosters,
    ForgetsVectors,
    KeepsOlderAttempts,
    Lax,
    RevealsBoth,
    SignsAgain,
    relax,
)
from tests.client_sdk.secagg.oracle import error_of

VICTIM = "device-0000"

Play = Callable[[Cheat], object]


def relaxed(cheat: Cheat, rules: type[Lax]) -> Cheat:
    for number in cheat.honest:
        relax(cheat.members[number], rules)
    return cheat


@pytest.mark.parametrize(
    ("rules", "play", "n", "colluding", "broken"),
    [
        pytest.param(
            ForgetsRosters, plans.play_two_rosters, 6, (5,), {"betrayed", "recovered", "exposed"}, id="one roster"
        ),
        pytest.param(
            SignsAgain,
            plans.play_two_lists,
            5,
            (4,),
            {"betrayed", "doubly signed", "recovered", "exposed"},
            id="one list",
        ),
        pytest.param(
            SignsAgain, plans.play_another_attempt, 5, (4,), {"doubly signed", "recovered"}, id="spent over attempts"
        ),
        pytest.param(ForgetsVectors, plans.play_many_vectors, 4, (), {"recovered"}, id="one vector"),
        pytest.param(
            RevealsBoth, plans.play_both_kinds, 5, (4,), {"betrayed", "recovered", "exposed"}, id="one-way state"
        ),
    ],
)
def test_one_rule_switched_off_is_a_break_that_is_found(
    rules: type[Lax], play: Play, n: int, colluding: tuple[int, ...], broken: set[str]
) -> None:
    kept = Cheat(n, colluding)
    play(kept)
    assert kept.verdict() == {}
    lax = relaxed(Cheat(n, colluding), rules)
    play(lax)
    assert set(lax.verdict()) == broken
    assert VICTIM in lax.oracle().recovered()


def test_the_vector_that_comes_out_is_the_victims() -> None:
    """To the last bit, where both lists are of one attempt."""
    lax = relaxed(Cheat(5, (4,)), SignsAgain)
    plans.play_two_lists(lax)
    oracle = lax.oracle()
    lanes = oracle.recovered()[VICTIM]
    assert error_of(lax.members[0], oracle.rows, lanes) == 0
    assert lanes[-2:].tolist() == [lax.members[0].weight, 1]
    assert not np.array_equal(lanes, oracle.recovered().get("device-0001", lanes[:0]))


def test_the_check_of_signatures_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may not lack more than two of seven; with the check off two honest devices stand alone."""
    kept = Cheat(7, (5, 6))
    plans.play_many_lists(kept)
    assert revealing(kept.members) == set()
    assert kept.refused("share holders signed the list", range(5))
    assert kept.verdict() == {}
    monkeypatch.setattr(Proof, "require", lambda *anything: None)
    lax = Cheat(7, (5, 6))
    plans.play_many_lists(lax)
    assert lax.verdict() == {"exposed": [{"device-0000", "device-0001"}]}


def test_deleting_the_older_attempt_switched_off() -> None:
    """Its purpose: an attacker who seizes devices later finds nothing of an attempt that was left."""
    kept = Cheat(4, (3,))
    older = plans.play_older_attempt(kept)
    assert kept.refused("a replay", range(3))
    assert kept.seized(older, (1, 2)).verdict() == {}
    lax = relaxed(Cheat(4, (3,)), KeepsOlderAttempts)
    older = plans.play_older_attempt(lax)
    assert lax.refusals == []
    assert [lax.members[number].outgoing.stage for number in range(3)] == ["mask"] * 3  # type: ignore[union-attr]
    assert lax.verdict() == {"left over": ["device-0000", "device-0001", "device-0002"]}
    assert VICTIM in lax.seized(older, (1, 2)).recovered()


def test_colluders_are_counted_in_the_smallest_roster_that_a_device_accepts() -> None:
    """No rule is switched off, and the break is there: a lying coordinator also chooses how large a roster is. Five
    colluders are what 12 devices withstand; 9 devices, which this plan allows as well, withstand four. An owner who
    reckons with five says so, and the device refuses."""
    assert (tolerated(12), tolerated(9)) == (5, 4)
    allowed, refused = (Cheat(9, range(4, 9), {"minimum_cohort": 8}) for _ in range(2))
    for number in refused.honest:
        device = refused.members[number].device
        refused.members[number].device = replace(device, policy=device.policy.changed(most_colluding=5))
    for cheat in (allowed, refused):
        where = cheat.until_masked()
        for listed, numbers in ((range(9), (0, 1)), (range(1, 9), (2, 3))):
            cheat.revealed(where, cheat.signed(where, listed, numbers), numbers)
    assert allowed.refusals == []
    assert allowed.verdict()["betrayed"] == [VICTIM]
    assert VICTIM in allowed.oracle().recovered()
    assert refused.refused("against 5 colluding devices; a group of 9 withstands 4", range(4))
    assert all(refused.stages(number) == ["advertise"] for number in range(4))
    assert refused.verdict() == {}
