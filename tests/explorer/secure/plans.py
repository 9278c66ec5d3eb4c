"""The plan of a schedule whose rounds are secure, and its sizes: small cohorts, of which a few devices may vanish."""

from __future__ import annotations

from typing import Any

from client_sdk.secagg.parameters import SMALLEST
from tests.explorer.chance import Chance

GROUPS = (2, 3, 3, 3, 4)
"""Into so many groups a roster is divided, where it is: with three, or four, one of them may fall."""
GROUPS_RULES = ("mean", "mean", "median", "trimmed-mean")
"""What is done with the sums of groups."""
QUORUMS_OF_GROUPS = (0.4, 0.5, 0.6, 0.8)
"""The last one is more than one of two groups, or two of three, have: of three and more it is lowered to what is left
without one, since a plan with more is refused."""
LARGEST = 14
"""Devices of a secure schedule: an attempt costs the square of their number."""
SMALLEST_FLEET = 4
SMALLEST_RING = 6
"""Devices of the smallest roster that is a ring where one of them may vanish."""
FAST = 0.12
"""The part of the secure schedules whose rounds are *fast*, most of them with rings."""
LINEAR = 0.2
"""The part of the secure schedules whose devices send a drawn part of the coordinates, or rotated ones."""
LINEAR_CODECS = ("rotated@1", "sampled-half@1", "sampled-half-rotated@1", "sampled-quarter-rotated@1")
EXCHANGE_S = 24.0
"""The longest an exchange lasts: devices advertise again after ten seconds at the soonest."""


def secured(
    chance: Chance, plan: dict[str, Any], devices: int, *, fast: bool = False, groups: int = 1
) -> dict[str, Any]:
    """The plan with secure rounds for a fleet of so many devices, at least ``SMALLEST`` for each of the ``groups``.
    ``fast``: at least ``SMALLEST_RING``."""
    floor = SMALLEST_RING if fast else SMALLEST * groups
    most = max(floor, round(devices * chance.between("roster", 0.55, 1.0)))
    goal = max(floor, most - chance.below("reserve", 3))
    smallest = SMALLEST + chance.below("smallest cohort", min(3, goal // groups - SMALLEST + 1))
    codec, q = "float32@1", chance.pick("q", (8, 16, 16))
    if chance.unit("linear") < LINEAR:
        codec = chance.pick("linear codec", LINEAR_CODECS)
        q = chance.pick("few bits", (2, 4, 8)) if "rotated" in codec else q
    profile: dict[str, Any] = {"profile": "fast", "drop": chance.pick("drop", (1, 1, 2))} if fast else {}
    smallest = max(smallest, SMALLEST_RING - 1) if fast else smallest
    old, cap = plan["aggregation"], chance.pick("secure cap", (3, 50))
    collect_s, exchange_s = chance.pick("secure collect_s", (30.0, 45.0)), chance.pick("exchange_s", (14.0, EXCHANGE_S))
    margin = chance.pick("margin", (None, None, None, 0, 2))
    finish = {**plan["finish"], "source": "evaluator"} if plan["finish"].get("metric") else plan["finish"]
    select = min(devices, most + chance.below("secure spare", 2))
    return {
        **{section: fields for section, fields in plan.items() if section != "strategy"},
        "task": {**plan["task"], "codec": codec, "score_held_out": False},
        "cohort": {
            **plan["cohort"],
            "select": select,
            "goal": goal,
            "quorum": _quorum(chance, goal, groups),
            "pool": select + chance.below("pool of groups", groups),
            "choose": "uniform",  # devices say no size after their first secure round
            "collect_s": collect_s,
        },
        "aggregation": {
            **old,
            **(_rule_of_groups(chance, old["weighting"]) if groups > 1 else {"rule": "mean", "rule_parameters": {}}),
            "weight_cap": cap,
            "partial": "refuse",
            "clip_norm": None,
        },
        "finish": {**finish, "rounds": 6} if groups > 1 else finish,
        "retention": {"rounds": 0},
        "secure": {
            **profile,
            "q": q,
            "max_norm": 4.0 if q == 2 else chance.pick("max_norm", (0.5, 4.0)),  # two bits drown a smaller update
            "max_abs": chance.pick("max_abs", (0.5, 1.0)),
            "minimum_cohort": smallest,
            **({"groups": groups} if groups > 1 else {}),
            "reserve": most - goal,
            **({} if margin is None else {"margin": margin}),
            "exchange_s": exchange_s,
            "attempts": chance.pick("attempts", (1, 2, 3, 3)),
            "expires_s": collect_s + exchange_s * chance.pick("expires", (4, 4, 40)),
            "barred_rounds": chance.pick("barred_rounds", (1, 3, 10)),
            "quiet_s": chance.pick("quiet_s", (exchange_s, exchange_s, None)),
        },
    }


def _quorum(chance: Chance, goal: int, groups: int) -> float:
    """The part of the goal with which a round counts."""
    drawn: float = chance.pick("secure quorum", (0.4, 0.5, 0.7, 1.0) if groups == 1 else QUORUMS_OF_GROUPS)
    left = goal - -(-goal // groups)
    return drawn if groups < 3 else min(drawn, 100 * left // goal / 100)


def _rule_of_groups(chance: Chance, weighting: str) -> dict[str, Any]:
    """What a plan does with the sums of its groups. Rules that look at their means take no weights."""
    rule = chance.pick("rule of groups", GROUPS_RULES)
    trims = {"fraction": chance.pick("trimmed of groups", (0.2, 0.4))} if rule == "trimmed-mean" else {}
    return {"rule": rule, "rule_parameters": trims, "weighting": weighting if rule == "mean" else "equal"}
