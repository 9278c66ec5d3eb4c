"""Trains one client of one round again, alone, to debug a learner or a client's data."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from client_sdk.learning.budget import planned_steps
from client_sdk.tensors import Layout, Manifest, Tensors, from_bytes
from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.engine.plan import Plan
from coordinator.store import open_store
from simulation.clients import Clients
from simulation.engines.kernel import Kernel
from simulation.engines.port import Job
from simulation.simulator import checks
from simulation.simulator.first_model import first_model
from simulation.simulator.options import BehaviourLike, ClassesLike, InitLike
from simulation.virtual.behaviour import work_done


def rerun(
    plan: Plan,
    learner: Any,
    clients: Clients,
    client: str,
    round: int,
    *,
    behaviour: BehaviourLike,
    classes: ClassesLike,
    init: InitLike,
    seed: int,
    folder: str | PathLike[str] | None,
) -> Update:
    """The client's update as in that round, with the same number of steps. ValueError where the round's model is not
    known; errors of the learner pass through."""
    if client not in clients:
        raise ValueError(f"there is no client {client!r}; the first is {clients.id(0)!r}")
    habits = checks.habits_of(behaviour, checks.class_of(classes, clients), clients, seed)
    cohort: Sequence[str] = [client]
    if folder is None and habits.by_share:
        raise ValueError("straggler_share depends on who else was selected in the round: give folder=")
    if init is None and folder is not None:
        model, run, cohort = _of_folder(Path(folder), plan, round)
        cohort = [*cohort, *(() if client in cohort else (client,))]
    elif init is None and round > 1:
        raise ValueError(f"which model did round {round} start from? Give init= or folder=")
    else:
        model, run = first_model(init, learner, seed)[0](), plan.name
    conduct = habits.conducts(cohort, round)[client]
    planned = planned_steps(plan.task, clients.examples(client))
    steps, _ = work_done(conduct, planned, plan.cohort.collect_s, plan.task.time_budget_s)
    job = Job(
        run=run, round=round, attempt=0, device=client, cost=steps, steps=None if steps == planned else max(1, steps)
    )
    layout = Layout.of(Manifest.of(model), plan.task.averaged, {})  # an update that is returned as it is
    return Kernel(plan, learner, clients, layout).update(model, job)


def _of_folder(folder: Path, plan: Plan, round: int) -> tuple[Tensors, str, Sequence[str]]:
    """(the model from which this round of the folder's newest run of the plan started, the run, the round's cohort)."""
    if not (folder / BLOBS_FOLDER).is_dir():
        raise ValueError(f"{folder} is no data folder of a coordinator or a simulation")
    store = open_store(database_url(folder))
    try:
        runs = [row.run for row in store.runs() if row.plan_digest == plan.digest]
        if not runs:
            raise ValueError(f"{folder} has no run of this plan")
        row = next((row for row in store.rounds(runs[-1], round - 1) if row.round == round), None)
        if row is None:
            raise ValueError(f"round {round} of run {runs[-1]} in {folder} has not begun")
        line = [row for row in store.checkpoints(runs[-1]) if row.round is None or row.round < round]
        with FileBlobs(folder / BLOBS_FOLDER).open(line[-1].digest) as file:
            return from_bytes(file.read()), runs[-1], cast("list[str]", row.body.get("cohort", []))
    finally:
        store.close()
