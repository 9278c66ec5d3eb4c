"""The explorer's account of secure rounds: its numbers of a roster are those of the product, and who lacks holders."""

from __future__ import annotations

import pytest

from client_sdk.secagg.errors import BadParameters
from coordinator.engine.secure.plan import Secure
from tests.explorer.secure.account import SecureAccount, numbers_of
from tests.explorer.secure.plans import LARGEST, LINEAR_CODECS
from tests.explorer.shape import Shape, made_secure


@pytest.mark.parametrize("drop", [None, 0, 1, 2, 3])
def test_numbers_of_small_rosters_follow_from_what_may_happen(drop: int | None) -> None:
    """Derived by hand for few devices, where each combination is likelier than 2^-40; the product computes tails."""
    section = {} if drop is None else {"profile": "fast", "drop": drop}
    secure, rings = Secure.model_validate({**section, "max_norm": 1.0, "max_abs": 1.0, "minimum_cohort": 3}), 0
    for n in range(3, LARGEST + 1):
        try:
            found = secure.rule.parameters(n)
        except BadParameters:
            continue
        neighbours = 0 if found.complete else found.neighbours
        assert numbers_of(section, n) == (neighbours, found.threshold, found.signers), n
        rings += neighbours > 0
    assert rings or drop is None


def test_on_a_ring_the_neighbours_hold_the_shares() -> None:
    around = ["a", "b", "c", "d", "e", "f"]
    account = SecureAccount({}, around, order=sorted(around), ring=around, neighbours=4, threshold=3)
    assert account.lacks(around, around) == set()
    assert account.lacks(set(around) - {"a"}, around) == set()
    # Opposite devices hold nothing of each other, and nobody holds a share of its own.
    assert account.lacks({"a", "b", "c", "d"}, around) == lacking_by_hand("abcd")


def lacking_by_hand(present: str) -> set[str]:
    """Each device's four nearest, written out."""
    nearest = {"a": "efbc", "b": "facd", "c": "abde", "d": "bcef", "e": "cdfa", "f": "deab"}
    return {device for device, holders in nearest.items() if len(set(holders) & set(present)) < 3}


def test_schedules_have_rings_other_codecs_and_a_datacenter_beside_secure_rounds() -> None:
    shapes = [shape for shape in map(made_secure, map(Shape.of, range(1500))) if shape.secure]
    fast = [shape.plan["secure"].get("profile") == "fast" for shape in shapes]
    assert 0.08 < sum(fast) / len(fast) < 0.16
    assert {shape.plan["task"]["codec"] for shape in shapes} == {"float32@1", *LINEAR_CODECS}
    assert {shape.plan["secure"]["q"] for shape in shapes} == {2, 4, 8, 16}
    assert any(shape.datacenter and shape.workers for shape in shapes)
    assert any(shape.focus[0] == "op-unbar" for shape in shapes)
