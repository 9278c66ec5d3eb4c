"""Saves the steps of a training job, so that it can continue after a crash: a folder of steps, each complete or absent.

The folder is visible to all ranks and written by torch.distributed.checkpoint. These are not the platform's
checkpoints, which are safetensors: they hold the optimizer too, and a file that torch pickles (``.metadata``), so they
are private to the machines that train, and never sent.

::

    about.json          what is trained here: learner, model, recipe, first weights; compared before anything is loaded
    step-000000120/     .metadata is written last: a step without it is incomplete and ignored
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from client_sdk.learning.errors import CheckpointMismatch, LearningError
from client_sdk.learning.group import Group
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import STEP_FOLDER, whole_steps

KEEP = 2
"""Number of stored steps: the newest complete ones."""


class NotSaved(LearningError):
    """A step could not be written: the disk, mostly."""


class Checkpoints:
    """The saved steps of one job, in ``folder``, which is created where it is missing. All ranks call each method
    together."""

    def __init__(self, folder: Path, group: Group, about: dict[str, Any]) -> None:
        """``about``: what is trained (learner, examples, model, first, recipe), as JSON values."""
        self._folder, self._group, self._about = folder, group, about

    def open(self, resume: bool) -> int | None:
        """The newest complete step, or None where there is none. Removes incomplete steps.

        Raises CheckpointMismatch, on one rank, where the folder holds another job's steps, or any steps without
        ``resume``.
        """
        found: int | None = None
        error: Exception | None = None
        if self._group.rank == 0:
            try:
                found = self._prepare(resume)
            except (LearningError, OSError) as problem:
                error = problem
        self._group.agree(error)
        agreed = self._group.hand_out(json.dumps(found).encode() if self._group.rank == 0 else None)
        step: int | None = json.loads(agreed)
        return step

    def save(
        self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, scaler: dict[str, Any] | None
    ) -> None:
        """Write the state after ``step`` steps.

        NotSaved, on one rank, where it cannot be written; GroupLost where a rank died or hangs.
        """
        state = _state(module, optimizer, step, scaler)
        try:
            with self._together(), _quietly():
                dcp.save(state, checkpoint_id=self._path(step), no_dist=self._group.alone)
        except CheckpointException as failed:
            found = NotSaved(f"The state after step {step} cannot be saved in {self._folder}: {_cause(failed)}.")
            self._group.agree(found if self._group.rank == 0 else None)
        if self._group.rank == 0:
            for old in self._whole()[:-KEEP]:
                self._remove(old)

    def load(
        self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, scaler: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Fill module and optimizer with the state after ``step`` steps; the scaler's state.

        CheckpointMismatch, on one rank, where it does not fit or cannot be read; GroupLost as ``save``.
        """
        state = _state(module, optimizer, step, scaler)
        try:
            with self._together(), _quietly():
                dcp.load(state, checkpoint_id=self._path(step), no_dist=self._group.alone)
        except CheckpointException as failed:
            found = CheckpointMismatch(f"The checkpoint {self._path(step)} cannot be used: {_cause(failed)}.")
            self._group.agree(found if self._group.rank == 0 else None)
        set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return state.get("scaler")

    def _prepare(self, resume: bool) -> int | None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole, path = self._whole(), self._folder / "about.json"
        if whole and not resume:
            raise CheckpointMismatch(
                f"{self._folder} holds a training that has reached step {whole[-1]}: "
                "go on from there with --resume, or take another folder."
            )
        if whole:
            self._require_same(path)
        for entry in self._folder.iterdir():
            match = STEP_FOLDER.fullmatch(entry.name)
            if match is not None and int(match[1]) not in whole:
                shutil.rmtree(entry)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._about))
        fresh.replace(path)
        return whole[-1] if whole else None

    def _require_same(self, path: Path) -> None:
        try:
            there = json.loads(path.read_text())
            recipe = Recipe.model_validate(there["recipe"])
            names = dict(there["model"])
            examples, first, learner = there["examples"], there["first"], there["learner"]
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointMismatch(
                f"{path} is missing or unreadable: it is unknown what was trained there."
            ) from None
        other = f"The checkpoints in {self._folder} are of another"
        here = dict(self._about["model"])
        for name in [*here, *names]:
            if here.get(name) != names.get(name):
                raise CheckpointMismatch(
                    f"{other} model: {name} is {names.get(name, 'absent')} there and {here.get(name, 'absent')} here."
                )
        if learner != self._about["learner"]:
            raise CheckpointMismatch(f"{other} learner: {learner} there, {self._about['learner']} here.")
        if first != self._about["first"]:
            raise CheckpointMismatch(f"{other} training: it began from other weights.")
        if examples != self._about["examples"]:
            raise CheckpointMismatch(f"{other} data set: {examples} examples there and {self._about['examples']} here.")
        if (difference := Recipe.model_validate(self._about["recipe"]).difference_from(recipe)) is not None:
            raise CheckpointMismatch(f"{other} training: {difference}.")

    def _together(self) -> AbstractContextManager[None]:
        """Turns an error in torch's own collectives into GroupLost."""
        return nullcontext() if self._group.alone else self._group.unbroken()

    def _whole(self) -> list[int]:
        """The complete steps, in ascending order."""
        return whole_steps(self._folder)

    def _remove(self, step: int) -> None:
        path = self._path(step)
        (path / ".metadata").unlink(missing_ok=True)  # from now on the step is incomplete, also after a crash
        shutil.rmtree(path, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress torch's warning that one process saves alone, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _state(
    module: nn.Module, optimizer: torch.optim.Optimizer, step: int, scaler: dict[str, Any] | None
) -> dict[str, Any]:
    model, optim = get_state_dict(module, optimizer)
    state: dict[str, Any] = {"model": model, "optim": optim, "step": step}
    return state if scaler is None else {**state, "scaler": scaler}


def _cause(failed: CheckpointException) -> str:
    """The first line of the lowest rank's error."""
    _, wrapped = min(failed.failures.items(), key=lambda item: item[0])
    error = wrapped[0] if isinstance(wrapped, tuple) else wrapped
    if isinstance(error, OSError) and error.strerror:
        return os.strerror(error.errno) if error.errno else error.strerror
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300].rstrip(".")
