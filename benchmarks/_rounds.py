"""Plays federated rounds one at a time, so that ours and another's can alternate: our simulation, and the bare loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Never

import numpy as np
import torch
from torch import nn

from client_sdk.tensors import Tensors
from simulation import Clients
from simulation.demo.compare import LoopPart, LoopRecipe, fedavg
from simulation.engines import CannotTrain, EngineName, Job, engine_called
from simulation.simulator import checks as checked
from simulation.simulator.first_model import first_model, first_roles
from simulation.virtual.simulation import Simulation

BATCH = 10
LEARNING_RATE = 0.1
MANY = 1_000_000
"""A number of rounds that is never reached."""


SECURE = {
    "aggregation": {"weighting": "examples", "partial": "refuse"},
    "secure": {"max_norm": 10.0, "max_abs": 0.1, "weight_cap": 1000, "minimum_cohort": 3},
}
"""What a plan has besides whose rounds are secure."""


def plan_of(select: int, *, secure: bool = False) -> dict[str, Any]:
    """The setting: ``select`` clients a round, one epoch, batches of 10, SGD 0.1."""
    return {
        **(SECURE if secure else {}),
        "name": "benchmark",
        "task": {"epochs": 1, "batch_size": BATCH, "learning_rate": LEARNING_RATE},
        "cohort": {"select": select, "goal": select, "collect_s": 600.0},
        "finish": {"rounds": MANY},
    }


class Played:
    """``simulate`` round by round: each ``play`` is one committed round. A context manager."""

    def __init__(
        self,
        learner: Any,
        clients: Clients,
        select: int,
        *,
        engine: EngineName = "serial",
        workers: int | None = None,
        init: Tensors | None = None,
        quantized: bool = False,
        steps: str = "exact",
    ) -> None:
        """``quantized``: rounds are secure, and only quantized. ``steps``: see ``simulate``."""
        plan = checked.plan_of(plan_of(select, secure=quantized))
        class_of = checked.class_of(None, clients)
        first, origin = first_model(init, learner, 0)
        self.cohorts: deque[list[str]] = deque()
        """The devices that counted in each played round: ``Bare`` trains the same."""
        self._simulation = Simulation(
            plan,
            learner,
            clients,
            checked.habits_of(None, class_of, clients, 0),
            class_of=class_of,
            make_engine=engine_called(engine, workers),
            init=first,
            origin=origin,
            said=first_roles(learner, None, print),
            folder=None,
            seed=0,
            failed=_failed,
            datacenter={},
            masked=not quantized,
            steps=steps,
        )

    def __enter__(self) -> Played:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._simulation.__exit__(kind, error, trace)

    def play(self) -> None:
        """Plays one round. SystemExit if it was not committed: abandoned rounds are not reported."""
        before = self._simulation.state
        after = self._simulation.play_round(lambda *_: None)
        self._simulation.keep()
        if after.version != before.version + 1:
            raise SystemExit(f"round {before.round_number} was not committed")
        counted = self._simulation.store.contributions(self._simulation.run, before.round_number)
        self.cohorts.append([item.device for item in counted])

    def model(self) -> Tensors:
        """The newest checkpoint."""
        return self._simulation.model()


class Bare:
    """The bare loop (``simulation.demo.compare``) over the cohorts of ``played``, one in each ``play``."""

    def __init__(self, module: type[nn.Module], clients: Clients, played: Played, initial: Tensors) -> None:
        self._clients, self._played = clients, played
        recipe = LoopRecipe(
            model=module,
            loss=nn.functional.cross_entropy,
            epochs=1,
            batch_size=BATCH,
            learning_rate=LEARNING_RATE,
        )
        shards: Any = _Gathered(clients)
        self._rounds = fedavg(recipe, initial, shards, self._cohorts())
        self.world: Mapping[str, torch.Tensor] = {}

    def play(self) -> None:
        self.world = next(self._rounds)

    def _cohorts(self) -> Iterator[list[LoopPart]]:
        number = 0
        while True:
            number += 1
            cohort = self._played.cohorts.popleft()
            yield [LoopPart(round=number, device=device, shard=self._clients.number(device)) for device in cohort]


def furthest(model: Tensors, world: Mapping[str, torch.Tensor]) -> float:
    """The largest difference between a checkpoint and the bare loop's model."""
    return max(float(np.max(np.abs(model[name] - tensor.numpy()))) for name, tensor in world.items())


class _Gathered:
    """All shards in memory before anything is measured, as in a hand-written loop."""

    def __init__(self, clients: Clients) -> None:
        self._shards = [clients[clients.id(number)].train for number in range(len(clients))]

    def __getitem__(self, number: int) -> Any:
        return self._shards[number]


def _failed(job: Job, failed: CannotTrain) -> Never:
    raise SystemExit(f"client {job.device} failed: {failed.reason}\n{failed.trace}")
