"""Checks a fleet's options, and that the coordinator responds, and makes the orders of its worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.operator import OperatorClient
from simulation.fleet.habits import FleetHabits
from simulation.fleet.split import By, Split
from simulation.fleet.worker import WorkerOrders


def split_of(*, data: str, devices: int, by: str, alpha: float, size_sigma: float, seed: int) -> Split:
    """The split of a command's options. ValueError where there is no such method."""
    if by not in get_args(By):
        raise ValueError(f"--by {by}: known are {', '.join(get_args(By))}.")
    return Split(data=data, devices=devices, by=cast("By", by), alpha=alpha, size_sigma=size_sigma, seed=seed)


def worker_orders(
    split: Split,
    habits: FleetHabits,
    *,
    coordinator: str,
    enrolment_token: str,
    folder: Path,
    learner: str,
    processes: int,
    smallest_cohort: int | None = None,
) -> list[WorkerOrders]:
    """Orders for each worker process that has a device. ProblemError where no coordinator answers, ValueError where the
    enrolment token is none."""
    EnrolmentToken.parse(enrolment_token.strip())
    with OperatorClient(coordinator) as operator:
        operator.require_answer()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    workers = min(processes, split.devices)
    return [
        WorkerOrders(
            coordinator=operator.coordinator,
            enrolment_token=enrolment_token,
            folder=folder.resolve(),
            split=split,
            habits=habits,
            learner=learner,
            smallest_cohort=smallest_cohort,
            worker=worker,
            workers=workers,
        )
        for worker in range(workers)
    ]
