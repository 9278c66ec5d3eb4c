"""The description of a training job: what to train, its result, its errors and their texts. Shared by all modules that
start or watch its processes. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from client_sdk.terminal import sentence_of
from coordinator.datacenter.recipe import Recipe

STEP_FOLDER = re.compile(r"step-([0-9]{9})")
COMPLETE = "complete"
"""The file that is written last in the folder of a step."""
SHUTDOWN_S = 2
"""Seconds that the other processes of a group have to end after one has died or hangs."""


class JobSpec(BaseModel):
    """A job: a learner, its data, a recipe, its input and its output. Paths are those of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learner: str
    """``package:name`` of an installed learner, or ``module:attribute``."""
    data: str
    """An installed data set, or a file: ``mine.npz``, ``mine.csv:outcome``. Every process reads all of it."""
    recipe: Recipe
    init: Path | None = None
    """The first checkpoint, safetensors. None: the learner's own, drawn by the recipe's seed."""
    init_digest: str = ""
    """SHA-256 that its bytes must have. Empty: any."""
    out: Path | None = None
    """Where the trained model is written, atomically, as safetensors."""
    checkpoints: Path | None = None
    """Folder for saved steps. None: a job that fails starts from the beginning."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between two saved ones; the last step is saved too."""
    resume: bool = True
    """Whether to continue from the folder's newest step; otherwise a folder with steps is refused."""
    nproc: int = Field(default=1, ge=1, le=1024)
    """Processes on this machine."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of numerical libraries in each process. None: OMP_NUM_THREADS of the environment, else 1."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl", "mpi", "ccl"] = "auto"
    """The library of collectives: ``auto`` is NCCL between GPUs and Gloo between CPUs."""
    hang_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """A process that is silent for so many seconds counts as hung; the group is started again within SHUTDOWN_S more.
    Where all processes hang, or the only one, detection takes twice as long."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """How often the processes are started again before the job fails."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that reached its end."""

    report: dict[str, Any]
    """``training.Report`` of the last start."""
    out: Path | None
    digest: str
    """SHA-256 of the model's safetensors bytes."""
    restarts: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """This machine's place among several that run one job."""

    node: int
    """0 is the leader: its processes have the lowest ranks, and host the rendezvous."""
    nnodes: int
    endpoint: str
    """HOST:PORT of machine 0, for the rendezvous."""
    rendezvous_id: str
    """Id of the rendezvous, unique for each start."""


class JobFailed(Exception):
    """The job cannot be completed: the message is one sentence. Saved steps remain."""


class JobStopped(Exception):
    """The job was stopped on request. Launched again with the same folder it continues from the last complete step."""


def whole_steps(folder: Path) -> list[int]:
    """The complete saved steps in a job's folder, in ascending order."""
    found = (STEP_FOLDER.fullmatch(path.parent.name) for path in folder.glob(f"step-*/{COMPLETE}"))
    return sorted(int(match[1]) for match in found if match is not None)


MODULES = frozenset({"torch", "psutil", "safetensors"})
"""Modules that ``quorate[datacenter]`` installs."""


def training_error_text(error: Exception) -> str:
    """The error as one sentence."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if top in MODULES:
        return f"Training here needs {top}, which is not installed: pip install 'quorate[datacenter]'"
    return sentence_of(error)


def no_torch() -> str | None:
    """The error text where torch is not installed; None where it is. Does not import torch."""
    return None if find_spec("torch") is not None else training_error_text(ModuleNotFoundError("torch", name="torch"))
