"""A training job as words: what to train, what came of it, why not. What all that start or watch its processes share.

Knows no processes and no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.datacenter.recipe import Recipe

STEP_FOLDER = re.compile(r"step-([0-9]{9})")
SHUTDOWN_S = 2
"""Seconds that the other processes of a group have to end, once one has died or hangs."""


class JobSpec(BaseModel):
    """A job: a learner, its data, a recipe, and where it comes from and goes to. Paths are those of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learner: str
    """``package:name`` of an installed learner, or ``module:attribute``."""
    data: str
    """An installed data set, or a file ending in .npz. Every process reads all of it."""
    recipe: Recipe
    init: Path | None = None
    """The checkpoint to begin with, safetensors. None: the learner's own, drawn by the recipe's seed."""
    out: Path | None = None
    """Where the trained model is written, safetensors, whole or not at all."""
    checkpoints: Path | None = None
    """Folder for saved steps. None: a job that breaks off begins anew."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between two that are saved; the last is saved too."""
    resume: bool = True
    """Whether to go on from what the folder holds; else a folder with steps is refused."""
    nproc: int = Field(default=1, ge=1, le=1024)
    """Processes on this machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    hang_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """A process that is silent for so long counts as hung; the group is started again within SHUTDOWN_S more. Where all
    stand still, or the only one, it takes twice as long."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """How often the processes are started again before the job fails."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that reached its end."""

    report: dict[str, Any]
    """``training.Report`` of the processes that ended it."""
    out: Path | None
    digest: str
    """SHA-256 of the model's safetensors bytes."""
    restarts: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """This machine's place among several that do a job together."""

    node: int
    """0 leads: its processes have the lowest ranks, and hold what the others meet at."""
    nnodes: int
    endpoint: str
    """HOST:PORT of machine 0, where the processes meet."""
    meeting: str
    """Another word for each time that they meet there."""


class JobFailed(Exception):
    """The job cannot be done: one sentence says why. What was saved is still there."""


class JobStopped(Exception):
    """It was asked to stop. Launched again with the same folder it goes on from the last whole step."""


def whole_steps(folder: Path) -> list[int]:
    """The steps saved in a job's folder that were written to their end, in rising order."""
    found = (STEP_FOLDER.fullmatch(path.parent.name) for path in folder.glob("step-*/.metadata"))
    return sorted(int(match[1]) for match in found if match is not None)
