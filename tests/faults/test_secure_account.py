"""The explorer's account of secure rounds: its numbers of a roster are those of the product, and who lacks holders."""

from __future__ import annotations

import pytest

from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.graph import groups_of
from client_sdk.secagg.roster import Advertisement, Roster, RosterEntry
from coordinator.engine.secure.plan import Secure
from tests.explorer.secure.account import GroupAccount, SecureAccount, numbers_of
from tests.explorer.secure.plans import LARGEST, LINEAR_CODECS
from tests.explorer.secure.vectors import divided
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
    account = SecureAccount({}, around, groups=[GroupAccount(sorted(around), 3, ring=around, neighbours=4)])
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


def test_schedules_have_groups_with_each_rule() -> None:
    grouped = [shape.plan for shape in map(Shape.of, range(3000)) if shape.plan.get("secure", {}).get("groups", 1) > 1]
    assert 0.007 < len(grouped) / 3000 < 0.02
    assert {plan["secure"]["groups"] for plan in grouped} == {2, 3, 4}
    assert {plan["aggregation"]["rule"] for plan in grouped} == {"mean", "median", "trimmed-mean"}


def test_groups_are_those_that_the_product_gives() -> None:
    """Both are written after the same page, and for few groups no more devices are needed than a schedule has."""
    for n in range(6, 2 * LARGEST):
        nonces = [bytes([n, number]) * 16 for number in range(n)]
        shown = [Advertisement(f"{number:02}", b"", b"", b"", nonce) for number, nonce in enumerate(nonces)]
        roster = Roster(0, 0, tuple(RosterEntry(one, b"", b"") for one in shown))
        for groups in (1, 2, 3, 4):
            wanted = [[f"{place:02}" for place in places] for places in groups_of(nonces, groups)]
            assert divided(roster, groups) == wanted


def test_a_round_goes_on_with_most_groups_and_a_quorum() -> None:
    groups = [GroupAccount([f"{name}{place}" for place in range(4)], 3, 3, 3, 1) for name in "abc"]
    account = SecureAccount({"cohort": {"quorum": 0.5, "goal": 12}, "secure": {}}, [], groups=groups)
    a, b, c = (set(group.order) for group in groups)
    assert account.needed() == 6
    assert account.needed(listed=True) == 8
    account.shared = dict.fromkeys(a | b | c, "")
    assert account.complete(a | b | {"c0", "c1"}) == groups[:2]
    assert account.enough(groups[:2], a | b)
    assert not account.enough(groups[:1], a), "one of three"
    assert not account.enough(groups[:2], {"a0", "a1", "b0", "b1", "b2"}), "less than a quorum"
    assert account.complete(a | {"b0", "b1", "b2"}, listed=True) == groups[:1], "b lacks its margin"
    groups[2].fallen = True
    assert account.lacks(a, c) == set(), "nobody needs the secrets of a group that has fallen"
    assert account.lacks(a, b) == b
