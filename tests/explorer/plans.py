"""The plans of schedules, drawn from the seed: of plain rounds, and what a datacenter adds.

``secure.plans`` has those of secure rounds.
"""

from __future__ import annotations

from typing import Any

from tests.explorer.chance import Chance

DATA = "proxy"
LEARNER = "explorer:marks"
ADAM = {"server_optimizer": "fedadam", "server_optimizer_parameters": {"beta1": 0.5, "tau": 0.25}}
"""Keys of a plan's aggregation: a server optimizer that has a state."""
OTHERS = ("power-of-choice", "oort", "cyclic", "fixed", "poisson")
"""Selections of some plans; the first goes with equal weights only."""
STRATEGY = {"name": "adaptive-mu", "parameters": {"patience": 1}}
"""One that has a small state, and reads what devices report."""
MECHANISMS = ("gaussian", "gaussian", "tree", "blt")
SHORT = 0.5
"""A clip to which every update is scaled."""
KEEPS = {"name": "ditto", "parameters": {"lambda": 0.5}}
"""One by which devices keep a state from round to round."""


def plan_of(chance: Chance, goal: int, select: int, replicas: int) -> dict[str, Any]:
    """The plan of plain rounds with cohorts of this size."""
    short = replicas == 1 and chance.unit("short") < 0.3
    equal = chance.unit("equal") < 0.4
    median = equal and chance.unit("median") < 0.25
    trimmed = equal and not median and chance.unit("trimmed") < 0.2
    adam = chance.unit("adam") < 0.12
    clip = chance.unit("clip")
    choose = "by_examples" if equal and chance.unit("choose") < 0.3 else "uniform"
    spare = 1 if choose == "by_examples" else chance.below("pool", 2)
    if choose == "uniform" and spare and chance.unit("selection") < 0.4:
        choose = chance.pick("which", OTHERS if equal else OTHERS[1:])
    return {
        "name": "marks",
        "task": {
            "learner": LEARNER,
            "codec": chance.pick("codec", ("float32@1", "float32@1", "float16@1")),
            "score_held_out": True,
        },
        "cohort": {
            "select": select,
            "goal": goal,
            "quorum": chance.pick("quorum", (0.4, 0.6, 0.85, 1.0)),
            "pool": select + spare,
            "select_s": chance.pick("select_s", (3.0, 8.0)),
            "collect_s": 12.0 if short else chance.pick("collect_s", (30.0, 45.0)),
            "choose": choose,
            "choose_parameters": {},
        },
        "aggregation": {
            "rule": "median" if median else "trimmed-mean" if trimmed else "mean",
            "rule_parameters": {"fraction": chance.pick("fraction", (0.0, 0.2, 0.4))} if trimmed else {},
            "weighting": "equal" if equal else "examples",
            "weight_cap": chance.pick("cap", (3, 50, 10_000)),
            "partial": chance.pick(
                "partial", ("full", "refuse") if median or trimmed else ("full", "examples_seen", "refuse")
            ),
            "clip_norm": 0.5 if clip < 0.15 else None,
            "server_optimizer": "average",
            "server_optimizer_parameters": {},
            **(ADAM if adam else {}),
            "server_learning_rate": 1.0 if clip < 0.85 else 0.5,
        },
        "finish": {
            "rounds": chance.pick("rounds", (1, 2, 3, 4, 6)),
            "abandoned": _abandoned(chance),
            **_scores(chance),
        },
        "retention": {"rounds": chance.pick("retention", (0, 0, 1, 2))},
        **_strategy(chance.unit("strategy")),
    }


def _strategy(drawn: float) -> dict[str, Any]:
    return {"strategy": STRATEGY} if drawn < 0.15 else {"strategy": KEEPS} if drawn < 0.25 else {}


def _abandoned(chance: Chance) -> int | None:
    """Abandoned rounds in a row after which the run is paused, in some schedules."""
    return chance.pick("abandoned", (2, 3, 5)) if chance.unit("any-abandoned") < 0.2 else None


def _scores(chance: Chance) -> dict[str, Any]:
    """A rule by which scores finish a run, in some schedules."""
    if chance.unit("any-scores") >= 0.15:
        return {}
    rule: dict[str, Any] = {
        "metric": "accuracy",
        "source": chance.pick("source", ("evaluator", "devices")),
        "better": chance.pick("better", ("higher", "lower")),
        "patience": chance.pick("score-patience", (None, 1, 2)),
        "min_delta": chance.pick("min-delta", (0.0, 0.125)),
    }
    return rule | {"target": chance.pick("target", (0.25, 0.5, 0.75)) if rule["patience"] is None else None}


def buffered(chance: Chance, plan: dict[str, Any], devices: int) -> dict[str, Any]:
    """The plan with buffered rounds, of whom ``devices`` stay alive."""
    goal = max(1, min(int(plan["cohort"]["goal"]), (devices - 1) // 2))
    cohort = {name: plan["cohort"][name] for name in ("collect_s", "min_examples") if name in plan["cohort"]}
    cohort["select_s"] = 60.0
    section: dict[str, Any] = {
        "concurrency": 1 + chance.below("concurrency", devices),
        "most_stale": chance.pick("most_stale", (0, 1, 2, 5)),
    }
    if section["most_stale"] and chance.unit("staleness") < 0.5:
        section["staleness"] = [64, 40]
    kept = {name: one for name, one in plan.items() if name != "strategy"}
    finish = {"rounds": chance.pick("buffered-rounds", (4, 6, 8)), "abandoned": plan["finish"]["abandoned"]}
    task = {**plan["task"], "score_held_out": False}
    return {**kept, "task": task, "cohort": {**cohort, "goal": goal}, "finish": finish, "buffered": section}


def private(chance: Chance, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with noise in its rounds: of devices in secure ones, else of the coordinator."""
    finish = plan["finish"] | {"rounds": chance.pick("private rounds", (3, 4, 6))}
    if finish.get("metric"):
        finish["source"] = "evaluator"
    most = min(finish["rounds"], chance.pick("most rounds", (2, 3, 6)))
    section: dict[str, Any] = {"noise": chance.pick("noise", (1.0, 4.0)), "delta": 1e-6}
    cohort = {**plan["cohort"], "most_rounds": most, "min_examples": 1}
    if "secure" in plan:
        section |= {"mechanism": "distributed", "clip": plan["secure"]["max_norm"]}
        section["noise"] = max(section["noise"], 4.0 if plan["secure"]["q"] < 8 else 0.0)  # of a few units of a lane
    else:
        section |= {"mechanism": chance.pick("mechanism", MECHANISMS), "clip": chance.pick("clip", (SHORT, 4.0))}
        cohort["apart"] = chance.pick("apart", (None, None, 1, 2, 3))
        cohort["choose"] = cohort["choose"] if cohort["choose"] in ("fixed", "poisson") else "uniform"
    if chance.unit("ledger") < 0.4:
        section["ledger"] = "explorer"
    aggregation: dict[str, Any] = {"weighting": "equal", "clip_norm": None, "rule": "mean", "rule_parameters": {}}
    aggregation["partial"] = "refuse" if plan["aggregation"]["partial"] == "refuse" else "full"
    return {
        **{name: one for name, one in plan.items() if name != "strategy"},
        "task": {**plan["task"], "score_held_out": False},
        "cohort": cohort,
        "aggregation": {**plan["aggregation"], **aggregation},
        "finish": finish,
        "privacy": section,
    }


def with_datacenter(chance: Chance, plan: dict[str, Any]) -> dict[str, Any]:
    """Returns the plan with a section that falls back, or uses the datacenter by plan, or both; and with more and
    shorter rounds."""
    when = chance.unit("when")
    section = {
        "data": DATA,
        "steps": 10,
        "patience": None if when < 0.35 else chance.pick("patience", (1, 1, 1, 2)),
        "every": chance.pick("every", (1, 2, 2, 3)) if when < 0.65 else None,
        "wait_s": chance.pick("wait_s", (0.0, 4.0, 15.0)),
        "lease_s": chance.pick("lease_s", (4.0, 12.0)),
        "max_s": chance.pick("max_s", (25.0, 60.0)),
    }
    rounds = {"rounds": chance.pick("center-rounds", (3, 6, 9)), "abandoned": _abandoned(chance)}
    if plan.get("strategy") == KEEPS:  # a datacenter has no half of it
        plan = {name: one for name, one in plan.items() if name != "strategy"}
    return {**plan, "cohort": {**plan["cohort"], "select_s": 3.0}, "finish": rounds, "datacenter": section}
