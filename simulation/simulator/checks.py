"""Checks the arguments of ``simulate`` before anything starts, and says what the plan will do to the
clients' updates. Each error is one sentence that names the fix."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from client_sdk import codecs
from client_sdk.extensions import Provided
from client_sdk.tensors import Tensors
from client_sdk.tensors.manifest import StatisticRole
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from coordinator.runtime.insight.plan_check import said_of_plan
from simulation.clients import Clients
from simulation.engines import EngineName, MakeEngine
from simulation.simulator.scoring import BY_CLASS, CENTRAL, CLIENTS, DEVICES, HIGH, LOW
from simulation.virtual.behaviour import Behaviour, Habits, work_done
from simulation.virtual.recorded import RecordedHabits, Recording

# ------------------------------------------------------------ options
# The types of ``simulate``'s options, for every function that passes them on.
#
# Their meaning is in the documentation of ``simulate``.


PlanLike = Plan | Mapping[str, Any] | str | PathLike[str]
ClientsLike = Clients | Mapping[str, Any] | Sequence[Any]
BehaviourLike = Behaviour | Mapping[str, Behaviour] | Recording | None
ClassesLike = Mapping[str, str] | Callable[[str], str] | None
Keep = int | Literal["all"] | None
SecureWay = Literal["masked", "quantized"]
InitLike = Tensors | str | PathLike[str] | None


class SimulateOptions(TypedDict, total=False):
    """The options of any run."""

    test: Any
    score_clients: int | Literal["all"]
    score_every: int
    behaviour: BehaviourLike
    classes: ClassesLike
    engine: EngineName | MakeEngine
    workers: int | None
    init: InitLike
    statistics: Mapping[str, StatisticRole] | None
    secure: SecureWay
    seed: int
    steps: str
    folder: str | PathLike[str] | None
    keep_checkpoints: Keep
    progress: bool | None


class AllSimulateOptions(SimulateOptions, total=False):
    """All options, with those that recipes set themselves."""

    datacenter: Mapping[str, Any] | None
    rounds: int | None


# ------------------------------------------------------------ checks


LONGEST_CERTIFIED = 40
"""The most letters of an id in a certificate."""
PARTS = {
    "rule": ("aggregation", "rule", "quorate.rules"),
    "server_optimizer": ("aggregation", "server_optimizer", "quorate.server_optimizers"),
    "strategy": ("strategy", "name", "quorate.strategies"),
    "selection": ("cohort", "choose", "quorate.selections"),
    "codec": ("task", "codec", codecs.GROUP),
}
"""The arguments of ``simulate`` that are objects of a notebook: where a plan names them, and their group of entry
points."""
LEARNER = "simulation:learner"
"""The name of the learner in the arguments, for a plan that names none."""


def require_whole(name: str, value: Any, least: int) -> None:
    """ValueError unless ``value`` is a whole number, ``least`` or more."""
    try:
        fits = not isinstance(value, bool) and index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")


def require_learner(learner: Any) -> None:
    """ValueError unless ``learner`` is an object with ``train``, or a function."""
    what = ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(learner, torch.nn.Module):
        what = f"a {type(learner).__name__} is a torch module"
    elif inspect.isclass(learner):
        what = f"{learner.__name__} is a class"
    elif not (callable(learner) or hasattr(learner, "train")):
        what = f"a {type(learner).__name__} is none"
    if what:
        raise ValueError(
            "a learner is a client_sdk.learning.Learner(model=lambda: ..., loss=...), an object with train(...), or a "
            f"function train(model, data, task); {what}"
        )


def plan_of(plan: PlanLike) -> Plan:
    """The plan, from any of the forms that a user may give. PlanError."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, str | PathLike):
        return Plan.from_toml(Path(plan))
    if not isinstance(plan, Mapping):
        raise PlanError(
            f"a plan is a Plan, a dict or the path of a TOML file; a {type(plan).__name__} is none of these"
        )
    task = plan.get("task", {})
    whole = {"name": "simulation", **plan}
    if isinstance(task, Mapping):
        whole["task"] = {"learner": LEARNER, **task}
    return Plan.parse(whole)


def with_objects(plan: PlanLike, objects: Mapping[str, Any]) -> tuple[PlanLike, dict[str, dict[str, Provided]]]:
    """The plan that names these objects of a notebook, and what they are called in it, by group of entry points.
    ``objects``: those of ``PARTS`` that are given. ValueError where the plan names another one in their place."""
    found: dict[str, dict[str, Provided]] = {}
    for part, made in objects.items():
        if isinstance(made, type):
            raise ValueError(f"{part}= is a class: give an object of it, {made.__name__}()")
        section, field, group = PARTS[part]
        if isinstance(made, str):
            raise ValueError(f"{part}= takes an object: the plan names what is built in, {section}.{field} = {made!r}")
        name = _name_of(part, made)
        if part == "codec" and ":" not in name:
            raise ValueError(f"codec= has the name {name!r}: give it one as of a package, name = 'notebook:mine@1'")
        version = str(getattr(made, "version", "0"))
        plan = _naming(plan, part, section, field, name, version, has_half=getattr(made, "device", None) is not None)
        found[group] = {name.partition("@")[0]: Provided(name.partition("@")[0], version, made)}
    return plan, found


def _name_of(part: str, made: Any) -> str:
    """``notebook:half-way`` of an object of the class HalfWay; a codec has a name of its own."""
    if part == "codec":
        return str(getattr(made, "name", ""))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(made).__name__).strip("_").lower().replace("_", "-")
    return f"notebook:{words}"


def _naming(
    plan: PlanLike, part: str, section: str, field: str, name: str, version: str, *, has_half: bool
) -> PlanLike:
    if isinstance(plan, str | PathLike):
        plan = Plan.from_toml(Path(plan))
    whole = plan.model_dump(mode="json", exclude_unset=True) if isinstance(plan, Plan) else plan
    if not isinstance(whole, Mapping) or not isinstance(whole.get(section) or {}, Mapping):
        return plan  # the plan's own check says what is wrong with it
    fields = dict(whole.get(section) or {})
    if fields.get(field, name) != name:
        raise ValueError(f"{part}= is given, and the plan says {section}.{field} = {fields[field]!r}: leave one out")
    fields[field] = name
    if part != "codec":
        fields["version" if field == "name" else f"{field}_version"] = version
    if part == "strategy" and has_half:
        fields["devices"] = True
    return {**whole, section: fields}


def require_datacenter(plan: Plan, data: Mapping[str, Any], learner: Any) -> None:
    """ValueError where the plan's datacenter rounds cannot be simulated with these arguments."""
    if plan.datacenter is None:
        if data:
            raise ValueError("datacenter= is given, and the plan has no section [datacenter]")
        return
    if plan.datacenter.data not in data:
        raise ValueError(
            f"the plan's datacenter rounds train on {plan.datacenter.data!r}: give datacenter="
            f"{{{plan.datacenter.data!r}: data}}, or leave the section [datacenter] out"
        )
    if not hasattr(learner, "loss"):
        raise ValueError("datacenter rounds need a client_sdk.learning.Learner")


def require_secure(plan: Plan, clients: Clients, way: Any) -> None:
    """ValueError where the plan's secure rounds cannot be simulated with these clients, or in this ``way``."""
    if way not in get_args(SecureWay):
        raise ValueError(f"secure={way!r} is one of {', '.join(map(repr, get_args(SecureWay)))}")
    if plan.secure is None:
        return
    long = next((client for client in clients if len(client) > LONGEST_CERTIFIED), None)
    if long is not None:
        raise ValueError(
            f"client {long!r} cannot be in secure rounds: a certified id has at most {LONGEST_CERTIFIED} letters"
        )


def require_playable(plan: Plan, clients: Clients, habits: Habits) -> None:
    """ValueError for what the simulation cannot play of a plan with buffered rounds."""
    if isinstance(habits, RecordedHabits) and (plan.buffered is not None or plan.secure is not None):
        raise ValueError("a recording has lanes of plain rounds, and the plan has others: give a Behaviour")
    if plan.buffered is None:
        return
    if habits.by_share:
        raise ValueError("straggler_share= is a share of a cohort, and buffered rounds have none: give stragglers=")
    if len(clients) < plan.places:
        raise ValueError(
            f"buffered.concurrency ({plan.places}) devices train at once, and there are {len(clients)} clients: lower "
            "it, or bring more clients"
        )


def require_enough(plan: Plan, clients: Clients) -> None:
    """ValueError where these clients are too few for any round of this plan. It stops counting as soon as there are
    enough, because a client's data may be made at each access."""
    least, quorum, able = plan.cohort.min_examples, plan.cohort.quorum_count, 0
    if plan.secure is not None:
        quorum = plan.secure.fewest_advertisers(plan.cohort)
    there: Iterable[int] = range(len(clients))
    if named := plan.cohort.devices:
        if unknown := [name for name in named if name not in clients]:
            raise ValueError(f"cohort.devices names {unknown[0]!r}, and there is no such client")
        there = [clients.number(name) for name in named]
    for number in there:
        able += clients.holdings.examples(number) >= least
        if able >= quorum:
            return
    having = f" with at least {least} example{'s' * (least > 1)}" if able < len(clients) else ""
    raise ValueError(
        f"the plan's quorum is {quorum} reports and there are {able} clients{having}: "
        f"lower cohort.goal ({plan.cohort.goal}) or cohort.quorum, or bring more clients"
    )


def require_choice(plan: Plan, clients: Clients) -> None:
    """ValueError where the plan's selection would select every client, whatever its size or turn."""
    if plan.cohort.choose != "uniform" and len(clients) <= plan.cohort.select and not plan.cohort.chosen_already:
        raise ValueError(
            f'choose = "{plan.cohort.choose}" selects {plan.cohort.select} of {len(clients)} clients: all of them in '
            "each round, whatever their size or turn; lower cohort.select, or bring more clients"
        )


def require_scores(plan: Plan, test: Any, scored: Sequence[str]) -> None:
    """ValueError where the plan's ``finish`` needs a score that this simulation does not compute."""
    metric, source = plan.finish.metric, plan.finish.source
    if metric is None or source == DEVICES:
        return
    fix = ""
    if source == CENTRAL and test is None:
        fix = "give test="
    elif (source in (CLIENTS, LOW, HIGH) or source.startswith(BY_CLASS)) and not scored:
        fix = "give score_clients="
    elif source not in (CENTRAL, CLIENTS, LOW, HIGH) and not source.startswith(BY_CLASS):
        fix = f"there are {CENTRAL}, {CLIENTS}, {LOW}, {HIGH}, {BY_CLASS}<name> and {DEVICES}"
    if fix:
        raise ValueError(f"the plan's finish looks at {metric} of {source!r}, which nothing here would score: {fix}")


def require_addable(plan: Plan, learner: Any, scored: Sequence[str]) -> None:
    """ValueError where a metric of the learner has a state that cannot be added up over clients, and is to be."""
    asked = "score_clients" if scored else "task.score_held_out" if plan.task.score_held_out else ""
    reason = learner.unaddable() if asked and hasattr(learner, "unaddable") else ""
    if reason:
        raise ValueError(f"{asked} scores clients: {reason[:1].lower()}{reason[1:]}")


def require_trainable(plan: Plan, learner: Any) -> None:
    """ValueError where the learner trains nothing that the plan averages, or not all of it."""
    reason = learner.untrainable(plan.task.averaged) if hasattr(learner, "untrainable") else ""
    if reason:
        raise ValueError(reason)


def require_watched(plan: Plan, scored: Collection[tuple[str, str]]) -> None:
    """ValueError where the plan's ``finish`` needs a metric (source, name) that the first model's scores lack."""
    metric, source = plan.finish.metric, plan.finish.source
    if metric is None or source == DEVICES or (source, metric) in scored:
        return
    there = ", ".join(f"{name} of {of}" for of, name in sorted(scored)) or "none at all"
    raise ValueError(f"the plan's finish looks at {metric} of {source!r}, and the first model's scores are: {there}")


def class_of(classes: ClassesLike, clients: Clients) -> Callable[[str], str]:
    """A function client -> its class; "" for all where there are no classes. ValueError for clients without a class."""
    if classes is None:
        return lambda client: ""
    if isinstance(classes, Mapping):
        missing = next((client for client in clients if client not in classes), None)
        if missing is not None:
            raise ValueError(f"classes gives client {missing!r} no class")
    elif not callable(classes):
        raise ValueError("classes is a mapping client -> class, or a function")
    name_of = classes.__getitem__ if isinstance(classes, Mapping) else classes

    def named(client: str) -> str:
        name = name_of(client)
        if not isinstance(name, str):
            raise ValueError(f"classes gives client {client!r} the class {name!r}, which is no text")
        return name

    return named


def habits_of(behaviour: BehaviourLike, of: Callable[[str], str], clients: Clients, seed: int) -> Habits:
    """The habits of all clients. ValueError for a class without a behaviour; the first thousand clients are checked."""
    if behaviour is None:
        behaviour = Behaviour()
    if isinstance(behaviour, Recording):
        return RecordedHabits(behaviour, seed)
    if not isinstance(behaviour, Behaviour):
        if not isinstance(behaviour, Mapping) or not all(isinstance(one, Behaviour) for one in behaviour.values()):
            raise ValueError("behaviour is a Behaviour, a mapping class -> Behaviour, or a Recording")
        for number in range(min(1000, len(clients))):
            name = of(clients.id(number))
            if name not in behaviour:
                raise ValueError(
                    f"client {clients.id(number)!r} is of the class {name!r}, for which no behaviour is given; "
                    f"given are: {', '.join(sorted(behaviour)) or 'none'}"
                )
    return Habits(behaviour, of, seed)


def scored_clients(count: int | Literal["all"], clients: Clients, seed: int) -> Sequence[str]:
    """The clients whose held-out examples are scored, drawn once for the run. ValueError for a bad ``count``."""
    if count == "all":
        return list(clients)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f'score_clients={count!r} is a number of clients from 0, or "all"')
    if count >= len(clients):
        return list(clients)
    rng = np.random.Generator(np.random.PCG64([seed, 0]))
    return [clients.id(int(number)) for number in sorted(rng.choice(len(clients), count, replace=False))]


_MOST = 10_000
"""Clients that are looked at."""


def foreseen(plan: Plan, clients: Clients, habits: Habits, *, stops_early: bool) -> list[str]:
    """What the plan will do to the clients' updates, as far as their sizes and speeds are known before round 1: a
    sentence for each thing, who weighs less than its examples, whose work a deadline cuts short. Empty where the data
    of clients is made when it is asked for, or where they are too many to look at. ``stops_early``: whether the learner
    can, which a function cannot."""
    if len(clients) > _MOST or not clients.holdings.at_hand:
        return []
    sizes = [int(size) for size in clients.sizes]
    said = [said_of_plan(plan, sizes)]
    cut, most = [], 0
    for name, conduct in {} if habits.by_share else habits.conducts(list(clients), 1).items():
        if conduct.share < 1.0:  # a straggler, as the user wants it
            continue
        whole = plan.task.planned_steps(clients.examples(name))
        steps, _ = work_done(conduct, whole, plan.cohort.collect_s, plan.task.time_budget_s)
        if steps < whole:
            cut.append(name)
            most = max(most, whole)
    if cut:
        becomes = {"full": "counts in full", "examples_seen": "counts by the part done", "refuse": "is refused"}
        what = becomes[plan.aggregation.partial] if stops_early else "does not count, as a function cannot stop early"
        said.append(
            f"{len(cut)} of {len(sizes)} clients ({', '.join(cut[:3])}{', ...' if len(cut) > 3 else ''}) have up to "
            f"{most:,} steps of work, more than fit in the time of a round: their work is cut short and "
            f"{what}. Raise cohort.collect_s ({plan.cohort.collect_s:g} virtual s) or "
            "task.time_budget_s, or lower Behaviour.step_s"
        )
    return [f"{sentence}." for sentence in said if sentence]
