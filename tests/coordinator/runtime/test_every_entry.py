"""Every built-in strategy, codec, rule and server optimizer in runs of whole devices: whose coordinator dies at any
step at which something becomes durable, and of two replicas that take turns. The bits of all versions are the same,
and so is what each device keeps.

A new entry of a registry is in one of these runs by itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.device.states import Candidate, MemoryStates, belongs
from client_sdk.device.strategies import Learn, Local, half_of, installed, train_by
from client_sdk.protocol.devices import Task, Work
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Manifest, Tensors, from_bytes, named, to_bytes
from client_sdk.update import Update, body_of, report_of
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.plan import Plan
from coordinator.store import MemoryStore
from coordinator.verify import verify
from tests.coordinator.runtime.fragile import Crash, FragileBlobs, FragileStore, Points
from tests.coordinator.world import World
from tests.rotating import in_parts

DEVICES, ROUNDS = 4, 3
EVERY = 41
"""Of so many steps at which something becomes durable one is the coordinator's last, another one in each run."""
NUMBERS: Mapping[str, dict[str, float]] = {
    "q-ffl": {"q": 1.5},
    "scaffold": {"population": 5},
    "feddyn": {"population": 5},
    "ditto": {"lambda": 0.5},
    "error-feedback": {"momentum": 0.5},
    "trimmed-mean": {"fraction": 0.2},
    "krum": {"wrong": 0, "keep": 2},
    "centered-clipping": {"radius": 0.5},
}
"""What a plan must set for an entry, or had better."""
TASKS: Mapping[str, dict[str, Any]] = {
    "feddyn": {"mu": 0.1},
    **{name: {"averaged": ["!head"]} for name in ("fedper", "fedbn", "fedrep")},
}
"""What an entry goes with."""


def plans() -> dict[str, dict[str, Any]]:
    """Each codec in one of them, each strategy, rule and server optimizer in one at least."""
    found = {}
    algorithms = itertools.cycle([*STRATEGIES, *RULES])
    optimizers = itertools.cycle(SERVER_OPTIMIZERS)
    for codec in [*codecs.names(), *codecs.names()][: max(len(codecs.names()), len(STRATEGIES) + len(RULES))]:
        name, optimizer = next(algorithms), next(optimizers)
        numbers = NUMBERS.get(name, {})
        strategy = {"strategy": {"name": name, "parameters": numbers}} if name in STRATEGIES else {}
        rule = {} if strategy else {"rule": name, "rule_parameters": numbers}
        step = {"server_optimizer": optimizer, "server_learning_rate": 0.5}
        task = {"codec": codec, "learning_rate": 0.1, "epochs": 2, **TASKS.get(name, {})}
        found[f"{name}, {task['codec']}, {optimizer}"] = {
            "task": task,
            "aggregation": {"weighting": "equal", "partial": "refuse", **rule, **step},
            **strategy,
        }
    return found


PLANS = plans()


def test_each_entry_is_in_one_of_the_runs() -> None:
    asked = [Plan.parse({"name": "marks", **World(1).plan(**plan)}) for plan in PLANS.values()]
    assert {plan.task.codec for plan in asked} == set(codecs.names())
    assert {plan.strategy.name for plan in asked if plan.strategy is not None} == set(STRATEGIES)
    assert {plan.aggregation.rule for plan in asked} == set(RULES)
    assert {plan.aggregation.server_optimizer for plan in asked} == set(SERVER_OPTIMIZERS)


MODEL: Tensors = {
    "w": np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5),
    "scale": np.array(0.5, np.float32),
    "head": np.zeros(2, np.float32),
    "steps": np.array(7, np.int64),
}


def learned(number: int, model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
    """Plain SGD of device ``number`` towards values of its own; the more steps, the higher its number is."""
    names = [name for name in sorted(named(model, task.averaged)) if model[name].dtype == np.float32]
    steps, now = (number + 1) * (task.epochs or 1), {name: model[name].copy() for name in names}
    for _ in range(steps):
        for name, weight in now.items():
            gradient = weight - np.float32(number - 1) + (offset or {}).get(name, np.float32(0))
            gradient = gradient + np.float32(task.mu) * (weight - model[name])
            now[name] = np.asarray(weight - np.float32(task.learning_rate) * gradient)
    delta = {name: now[name] - model[name] for name in names}
    work = Work(steps=steps, steps_planned=steps, epochs=1.0, examples_seen=10)
    return Update(delta, 10, work=work, metrics={"loss": 1.0 + number}, model=Manifest.of(model))


class Play:
    """Four devices play three rounds, each of which closes without one of them; that one comes too late."""

    def __init__(self, plan: Mapping[str, Any], *fatal: int, replicas: int = 1) -> None:
        self.plan, self.points, self.crashes = plan, Points(*fatal), 0
        store: Any = FragileStore(MemoryStore(), self.points)
        self.world = World(DEVICES, store=store, blobs=FragileBlobs(self.points))
        self.states = [MemoryStates() for _ in range(DEVICES)]
        self.replicas = itertools.cycle([self.world.coordinator, *(self.world.replica() for _ in range(replicas - 1))])
        self.points.armed = True

    def again(self, happening: Callable[[], Any]) -> Any:
        """Until it is answered: after a crash another coordinator starts on what is durable."""
        if self.points.fatal == ():
            self.world.coordinator = next(self.replicas)
        while True:
            try:
                return happening()
            except Crash:
                self.crashes += 1
                self.world.boot()

    def create(self) -> None:
        if not self.world.coordinator.operators.runs():
            cohort = {"select": DEVICES, "goal": DEVICES - 1, "quorum": 1.0}
            self.world.create(MODEL, cohort=cohort, finish={"rounds": ROUNDS}, retention={"rounds": 9}, **self.plan)

    def check_in(self, number: int) -> None:
        message = self.world.message().model_copy(update={"strategies": dict(installed())})
        self.world.coordinator.devices.check_in(self.world.rows[number], message)()
        self.world.settle()

    def settle(self, number: int) -> None:
        """As a device does before it trains: by what became of its last update."""
        states = self.states[number]
        if (before := states.candidate("")) is not None:
            device = self.world.rows[number].device
            outcome = self.world.coordinator.devices.outcome(device, "marks", before.round)
            states.settle("", keep=belongs(outcome, before, masked=False))

    def trained(self, number: int) -> bytes:
        assignment = self.world.assignment(number)
        assert assignment is not None
        self.settle(number)
        task, states = assignment.task, self.states[number]
        checkpoint = from_bytes(self.world.blobs.open(assignment.checkpoint.digest).read())
        codec = codecs.beside(task.codec, assignment.roles)
        origin = codecs.Origin.of(assignment)
        learn = functools.partial(learned, number)
        local = Local(update=learn(checkpoint, task)) if task.strategy is None else None
        if local is None and task.strategy is not None:
            kept = states.current("")
            sent = Learn(learn, lambda delta: codec.decode(codec.encode(delta, origin)))
            state = {} if kept is None else kept.tensors
            local = train_by(half_of(task.strategy), sent, checkpoint, state, task)
            states.put("", Candidate(assignment.round, 0, "-"), local.state, 0.0)
        assert local is not None
        report = report_of(local.update, codec.name, "marks", assignment.round)
        return body_of(codec.encode(local.update.delta, origin), report)

    def play(self) -> Play:
        self.again(self.create)
        for number in range(1, ROUNDS + 1):
            for device in range(DEVICES):
                self.again(functools.partial(self.check_in, device))
            bodies = [self.again(functools.partial(self.trained, device)) for device in range(DEVICES)]
            order = [(number + place) % DEVICES for place in range(DEVICES)]
            for device in order[:-1]:
                self.again(functools.partial(self.world.send, device, bodies[device], number))
            with pytest.raises(ProblemError):
                self.again(functools.partial(self.world.send, order[-1], bodies[order[-1]], number))
        self.again(self.world.settle)
        for device in range(DEVICES):
            self.settle(device)
        return self

    def story(self) -> dict[str, object]:
        """All that must not depend on where a coordinator died, or which one was asked."""
        kept = [states.current("") for states in self.states]
        return {
            "line": [(row.version, row.digest, row.named_tensors) for row in self.world.store.checkpoints("marks")],
            "small": self.world.coordinator.core.state("marks").small,
            "kept": [None if one is None else (one.round, to_bytes(one.tensors)) for one in kept],
        }


@pytest.mark.slow
@pytest.mark.parametrize("place", in_parts(range(len(PLANS)), of=2), ids=list(PLANS))
def test_dead_at_any_step_and_with_two_replicas_the_bits_are_the_same(place: int) -> None:
    plan = list(PLANS.values())[place]
    whole = Play(plan).play()
    story, points = whole.story(), len(whole.points.names)
    assert len(story["line"]) == ROUNDS + 1  # type: ignore[arg-type]
    assert [str(one) for one in verify(whole.world.store, whole.world.blobs)] == []
    assert Play(plan, replicas=2).play().story() == story, "two replicas"
    for point in range(1 + place * 7 % EVERY, points + 1, EVERY):
        play = Play(plan, point).play()
        assert play.crashes == 1
        assert play.story() == story, f"dead {whole.points.names[point - 1]}, {point}"
