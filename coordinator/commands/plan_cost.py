"""Computes what a run of a plan costs, before it starts: devices, bytes on the network, disk, memory and time."""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk import codecs
from client_sdk.tensors import HEADER_LIMIT, Manifest
from coordinator.engine.plan import Plan

MEMORY_MODELS = 3
"""Memory of the coordinator for a round, in float32 models: a round of 256 updates of 1M values was measured at 2.9 by
``benchmarks/coordinator.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """An upper bound for one federated round. Bytes are of all devices together, without the headers of HTTP."""

    values: int
    """Elements of the model that are averaged, of ``model_values`` in all."""
    model_values: int
    model_bytes: int
    update_bytes: int
    """The longest update of one device, encoded."""
    download_bytes: int
    """Every selected device fetches the model."""
    upload_bytes: int
    """Every selected device sends an update, also those that come after the round has closed."""
    disk_bytes: int
    """Updates in the coordinator's folder at once: those of a round, and of the rounds that the plan retains."""
    memory_bytes: int
    longest_s: float
    """Seconds from the round's opening to its deadline."""

    @classmethod
    def of(cls, plan: Plan, model: Manifest) -> RoundCost:
        """The cost for an initial checkpoint with these tensors. TensorError where the plan averages none of them, or
        where its codec cannot take them."""
        averaged = model.select(plan.task.averaged)
        select, update = plan.cohort.select, codecs.get(plan.task.codec).max_bytes(averaged)
        size = model.nbytes + HEADER_LIMIT
        return cls(
            values=averaged.elements,
            model_values=model.elements,
            model_bytes=model.nbytes,
            update_bytes=update,
            download_bytes=select * size,
            upload_bytes=select * update,
            disk_bytes=select * update * (1 + plan.retention.rounds),
            memory_bytes=MEMORY_MODELS * 4 * averaged.elements,
            longest_s=plan.cohort.select_s + plan.cohort.collect_s,
        )
