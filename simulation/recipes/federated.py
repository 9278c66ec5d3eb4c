"""FedAvg, FedSGD and FedProx: plans for ``simulate``, with the hyperparameters that the papers name.

It only makes plans. The coordinator's engine runs the rounds, as in deployment. With ``secure_rounds`` they are secure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack

from coordinator.engine.plan import Plan
from simulation.history import History
from simulation.simulator.checks import ClientsLike, SimulateOptions, require_whole
from simulation.simulator.simulate import simulate
from simulation.virtual.behaviour import Behaviour

WEEK_S = 604_800.0
"""Virtual seconds that a round waits for its slowest client: the papers have no deadline."""
DAYS_S = (432_000.0, 518_400.0)
"""Virtual seconds that a secure round waits, and after which its attempts expire: 5 days, and the 6 that a plan
allows."""

WHOLE_BATCH = 1_000_000
"""A batch size above any client's number of examples: a batch is all of its data."""


def plan(
    name: str,
    *,
    rounds: int,
    per_round: int,
    target: float | None = None,
    metric: str = "accuracy",
    secure_rounds: Mapping[str, Any] | None = None,
    **parts: Mapping[str, Any],
) -> Plan:
    """The plan of an experiment as papers describe it: ``per_round`` clients in each round, all that report count, no
    deadline. ``parts``: ``task`` and ``aggregation``, as in a plan.

    ``secure_rounds``: the plan's section ``[secure]``, at least ``max_norm`` and ``max_abs``; None: rounds are plain.
    PlanError, also where the algorithm needs what the coordinator of a secure round never sees; ValueError."""
    require_whole("per_round", per_round, 1)
    cohort = {"select": per_round, "goal": per_round, "quorum": 1 / per_round, "collect_s": WEEK_S}
    sections: dict[str, Any] = {}
    aggregation = dict(parts.get("aggregation", {}))
    if secure_rounds is not None:
        cohort["collect_s"], expires_s = DAYS_S
        aggregation.setdefault("partial", "refuse")  # devices mask no other work than the whole
        sections["secure"] = {"expires_s": expires_s, **secure_rounds}
    finish: dict[str, Any] = {"rounds": rounds}
    if target is not None:
        finish |= {"metric": metric, "target": target}
    task = {"learner": "simulation:learner", **parts.get("task", {})}
    return Plan.parse(
        {
            "name": name,
            "cohort": cohort,
            "finish": finish,
            "task": task,
            "aggregation": aggregation,
            **sections,
        }
    )


def fedavg(
    learner: Any,
    clients: ClientsLike,
    *,
    rounds: int = 100,
    per_round: int | None = None,
    epochs: int | None = None,
    task_steps: int | None = None,
    batch_size: int = 10,
    learning_rate: float = 0.1,
    server_learning_rate: float = 1.0,
    server_optimizer: str = "average",
    server_optimizer_parameters: Mapping[str, Any] | None = None,
    target: float | None = None,
    secure_rounds: Mapping[str, Any] | None = None,
    **options: Unpack[SimulateOptions],
) -> History:
    """FederatedAveraging (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1).

    ``per_round`` = C K clients (None: 10, or all where there are fewer), E = ``epochs`` (1, unless ``task_steps`` is
    given: how many steps a client makes in a round), B = ``batch_size``, eta = ``learning_rate``. ``server_optimizer``:
    another one than the plain mean, with its parameters: ``fedavgm`` (Hsu et al. 2019, arXiv:1909.06335),
    ``fedadagrad``, ``fedadam``, ``fedyogi`` (Reddi et al. 2021, arXiv:2003.00295), ``lars``, ``lamb``, ``radam``
    (``coordinator.engine.aggregation.layerwise``).

    ``target``: stop at this accuracy on ``test``. ``secure_rounds``: the plan's section ``[secure]``, as of all
    recipes with rounds; ``secure=`` says how it is simulated. ``options``: ``simulate``'s; ``steps`` says in which way
    steps are made.
    """
    task = {"batch_size": batch_size, "learning_rate": learning_rate} | work_of(epochs, task_steps)
    made = plan(
        "fedavg",
        rounds=rounds,
        per_round=each_round(per_round, clients),
        target=target,
        task=task,
        secure_rounds=_asked(secure_rounds, options),
        aggregation={
            "server_learning_rate": server_learning_rate,
            "server_optimizer": server_optimizer,
            "server_optimizer_parameters": dict(server_optimizer_parameters or {}),
        },
    )
    return simulate(made, learner, clients, **options)


def fedsgd(
    learner: Any,
    clients: ClientsLike,
    *,
    rounds: int = 100,
    per_round: int | None = None,
    learning_rate: float = 0.1,
    target: float | None = None,
    secure_rounds: Mapping[str, Any] | None = None,
    **options: Unpack[SimulateOptions],
) -> History:
    """FederatedSGD (arXiv:1602.05629, section 2): each client takes one step along the gradient of all its data, so
    the round takes one step of length ``learning_rate`` along the gradient of all data of its clients,
    w <- w - eta sum_k (n_k / n) g_k. It is FedAvg with B = infinity and E = 1.

    This is not exact with clients that hold more than 10,000 examples, which is the largest weight of a client.
    """
    task = {"batch_size": WHOLE_BATCH, "steps": 1, "learning_rate": learning_rate}
    made = plan(
        "fedsgd",
        rounds=rounds,
        per_round=each_round(per_round, clients),
        target=target,
        secure_rounds=_asked(secure_rounds, options),
        task=task,
    )
    return simulate(made, learner, clients, **options)


def fedprox_with_stragglers(
    learner: Any,
    clients: ClientsLike,
    *,
    stragglers: float = 0.9,
    mu: float = 1.0,
    partial: Literal["full", "examples_seen", "refuse"] = "full",
    rounds: int = 100,
    per_round: int | None = None,
    epochs: int = 20,
    batch_size: int = 10,
    learning_rate: float = 0.03,
    target: float | None = None,
    secure_rounds: Mapping[str, Any] | None = None,
    **options: Unpack[SimulateOptions],
) -> History:
    """FedProx where some clients get through only part of their epochs (Li et al. 2020, arXiv:1812.06127, Algorithm 2
    and section 5.2).

    ``stragglers``: the share of the selected clients that are stragglers in a round, exact but for rounding; 0, 0.5 and
    0.9 in the paper. ``mu``: of the proximal term (mu/2) ||w - w_global||^2. ``partial``: what happens to their work.
    The paper's three methods:

    ============================ =========== =========
    FedAvg, stragglers dropped   mu=0        "refuse"
    FedProx with mu = 0          mu=0        "full"
    FedProx                      mu > 0      "full"
    ============================ =========== =========

    A round whose clients are all stragglers and dropped is abandoned, and does not count as a round here.
    """
    behaviour = options.get("behaviour")
    if behaviour is not None and not isinstance(behaviour, Behaviour):
        raise ValueError("a recipe with stragglers takes one Behaviour for all clients, not one for each class")
    options["behaviour"] = replace(behaviour or Behaviour(), stragglers=0.0, straggler_share=stragglers)
    task = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "mu": mu}
    made = plan(
        "fedprox",
        rounds=rounds,
        per_round=each_round(per_round, clients),
        target=target,
        secure_rounds=_asked(secure_rounds, options),
        task=task,
        aggregation={"partial": partial},
    )
    return simulate(made, learner, clients, **options)


def _asked(secure_rounds: Mapping[str, Any] | None, options: SimulateOptions) -> Mapping[str, Any] | None:
    """The section that is asked for. ValueError where only the way is said in which it would be simulated."""
    if secure_rounds is None and "secure" in options:
        raise ValueError(
            f"secure={options['secure']!r} says how secure rounds are simulated, and this recipe's are plain: give "
            'secure_rounds={"max_norm": ..., "max_abs": ...}, the section [secure] of its plan'
        )
    return secure_rounds


def work_of(epochs: int | None, task_steps: int | None) -> dict[str, int]:
    """The task's work: ``epochs``, 1 where neither is given, or its ``steps``. ValueError for both."""
    if epochs is not None and task_steps is not None:
        raise ValueError(f"epochs={epochs} or task_steps={task_steps}: give one of them")
    return {"steps": task_steps} if task_steps is not None else {"epochs": 1 if epochs is None else epochs}


def each_round(per_round: int | None, clients: ClientsLike) -> int:
    """How many clients a round selects: 10 by default, or all where there are fewer. ValueError for more than
    there are."""
    known = len(clients)
    if per_round is None:
        return min(10, known)
    require_whole("per_round", per_round, 1)
    if per_round > known:
        raise ValueError(f"per_round={per_round} must be from 1 to the {known} clients that there are")
    return per_round
