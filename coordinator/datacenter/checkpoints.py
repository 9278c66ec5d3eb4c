"""Saves the steps of a training job, so that it can continue after a crash: a folder of steps, each complete or absent.

The folder is visible to all ranks. Tensors are written by torch.distributed.checkpoint as safetensors, each rank its
part; numbers and names of the optimizer as JSON. Nothing is pickled: a state with another kind of value is refused.
These are not the platform's checkpoints: they hold the optimizer too.

::

    about.json          what is trained here: learner, model, recipe, first weights; compared before anything is loaded
    step-000000120/     shard-*.safetensors, state.json; complete is written last: a step without it is ignored
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from client_sdk.learning.errors import CheckpointMismatch, LearnerFailed, LearningError
from client_sdk.learning.group import Group, sentence
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import COMPLETE, STEP_FOLDER, whole_steps

KEEP = 2
"""Number of stored steps: the newest complete ones."""
STATE = "state.json"
_KEPT = "kept."
"""Begins the name of a tensor of one rank, or of all, that is neither the model's nor the optimizer's."""
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)
"""Not strict: of a pipeline each rank has its own stages, and what it has none of stays as it is."""


class NotSaved(LearningError):
    """A step could not be written: the disk, mostly."""


class Checkpoints:
    """The saved steps of one job, in ``folder``, which is created where it is missing. All ranks call each method
    together."""

    def __init__(self, folder: Path, group: Group, about: dict[str, Any]) -> None:
        """``about``: what is trained (learner, examples, model, first, recipe), as JSON values."""
        self._folder, self._group, self._about = folder, group, about
        self.apart = False
        """Whether each rank's optimizer has a state of its own, with which only as many ranks can go on."""

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
        self,
        step: int,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: dict[str, Any] | None,
        kept: Mapping[str, torch.Tensor],
        shared: Collection[str] = (),
    ) -> None:
        """Write the state after ``step`` steps, and read it back, before an older one is removed. ``kept``: what else
        the next step needs, on each rank its own, but for the names in ``shared``.

        LearnerFailed, on one rank, where the optimizer's state has values that are neither tensors nor JSON; NotSaved
        where it cannot be written; GroupLost where a rank died or hangs.
        """
        path = self._path(step)
        error: Exception | None = None
        tensors: dict[str, torch.Tensor] = {}
        text = ""
        try:
            tensors, values = _divided(self._state(module, optimizer))
            for name, value in kept.items():
                tensors[f"{_KEPT}{'all' if name in shared else self._group.rank} {name}"] = value
            text = json.dumps(values)
        except (TypeError, ValueError, NotImplementedError) as problem:
            error = LearnerFailed(f"The optimizer's state cannot be saved without pickle: {sentence(problem)}")
        self._group.agree(error)
        parts = self._group.gather(text)
        try:
            with self._together(), _quietly():
                writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
                dcp.save(_apart(tensors), storage_writer=writer, process_group=self._group.only,
                         no_dist=self._group.alone)  # fmt: skip
        except CheckpointException as failed:
            found = NotSaved(f"The state after step {step} cannot be saved in {self._folder}: {_cause(failed)}.")
            self._group.agree(found if self._group.rank == 0 else None)
        try:
            self._read_back(path, tensors)
            if self._group.rank == 0:
                together = {name: value for part in parts for name, value in json.loads(part).items()}
                state = {"values": together, "scaler": scaler, "world": self._group.world}
                write_durably(path / STATE, json.dumps(state).encode())
        except (OSError, SafetensorError) as problem:
            error = NotSaved(f"The state after step {step} cannot be saved in {self._folder}: {sentence(problem)}.")
        self._group.agree(error)
        if self._group.rank == 0:
            write_durably(path / COMPLETE, b"")
            for old in self._whole()[:-KEEP]:
                self._remove(old)

    def load(self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
        """Fill module and optimizer with the state after ``step`` steps; the scaler's state.

        CheckpointMismatch, on one rank, where it does not fit or cannot be read; GroupLost as ``save``.
        """
        path = self._path(step)
        self._require_world(path)
        tensors, values = _divided(self._state(module, optimizer))
        saved: dict[str, Any] = {}
        error: Exception | None = None
        try:
            with self._together(), _quietly():
                reader = HuggingFaceStorageReader(str(path))
                dcp.load(tensors, storage_reader=reader, no_dist=self._group.alone)
        except CheckpointException as failed:
            error = CheckpointMismatch(f"The checkpoint {path} cannot be used: {_cause(failed)}.")
            self._group.agree(error if self._group.rank == 0 else None)
        try:
            saved = json.loads((path / STATE).read_text())
            values = {name: _tuples(saved["values"][name]) for name in values}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            error = CheckpointMismatch(f"The checkpoint {path} cannot be used: {STATE} lacks {sentence(problem)}.")
        self._group.agree(error)
        state = {**tensors, **values}
        set_state_dict(
            module,
            _optimizers(optimizer),
            model_state_dict=_below("model.", state),
            optim_state_dict=_below(self._optim, state),
            options=_FLAT,
        )
        scaler: dict[str, Any] | None = saved["scaler"]
        return scaler

    def kept(self, step: int) -> tuple[dict[str, torch.Tensor], int]:
        """What this rank kept after ``step`` steps, and the number of ranks then. Where it was another number each gets
        the mean of all: the mean of what ranks add to their next gradients stays what it was."""
        path = self._path(step)
        world = _world(path)
        found: dict[str, torch.Tensor] = {}
        for file in sorted(path.glob("shard-*.safetensors")):
            with safe_open(file, "pt") as saved:
                for key in saved.keys():  # noqa: SIM118  (no mapping)
                    if not key.startswith(_KEPT):
                        continue
                    rank, name = key.removeprefix(_KEPT).split(" ", 1)
                    if rank == "all" or (world == self._group.world and int(rank) == self._group.rank):
                        found[name] = saved.get_tensor(key).to(self._group.device)
                    elif world != self._group.world:
                        part = saved.get_tensor(key).to(self._group.device) / world
                        found[name] = found[name] + part if name in found else part
        return found, world

    def _read_back(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """SafetensorError or OSError where this rank's file does not hold, on the disk, what was to be saved. One
        tensor is in memory at a time."""
        for file in path.glob(f"shard-{self._group.rank + 1:05d}-*.safetensors"):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            with safe_open(file, "pt") as found:
                for name in found.keys():  # noqa: SIM118  (no mapping)
                    if not torch.equal(found.get_tensor(name), _own_part(tensors[name])):
                        raise SafetensorError(f"{name} has other values on the disk")

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
        write_durably(path, json.dumps(self._about).encode())
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

    def _state(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
        """All of both by name that this rank has: tensors, of sharded ones the shards, and other values."""
        model, optim = get_state_dict(module, _optimizers(optimizer), options=_FLAT)
        here = {name: value for name, value in model.items() if not getattr(value, "is_meta", False)}
        return {f"model.{name}": value for name, value in here.items()} | {
            f"{self._optim}{name}": value for name, value in optim.items()
        }

    @property
    def _optim(self) -> str:
        return f"optim {self._group.rank}." if self.apart else "optim."

    def _require_world(self, path: Path) -> None:
        world = _world(path)
        found = None
        if self.apart and world not in (0, self._group.world):
            found = CheckpointMismatch(
                f"{path} has an optimizer for each of {world} processes, and here are {self._group.world}: "
                "with sync_every and hogwild a training goes on with as many."
            )
        self._group.agree(found if self._group.rank == 0 else None)

    def _together(self) -> AbstractContextManager[None]:
        """Turns an error in torch's own collectives into GroupLost."""
        return nullcontext() if self._group.alone else self._group.unbroken()

    def _whole(self) -> list[int]:
        """The complete steps, in ascending order."""
        return whole_steps(self._folder)

    def _remove(self, step: int) -> None:
        path = self._path(step)
        (path / COMPLETE).unlink(missing_ok=True)  # from now on the step is incomplete, also after a crash
        shutil.rmtree(path, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress torch's warning that one process saves alone, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _optimizers(own: torch.optim.Optimizer | None) -> tuple[torch.optim.Optimizer, ...]:
    return () if own is None else (own,)


def _world(path: Path) -> int:
    """The number of ranks that have saved a step; 0 where it cannot be read."""
    try:
        return int(json.loads((path / STATE).read_text())["world"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _divided(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Its tensors, and its other values."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The values of these tensors, each in memory of its own, in order: safetensors are no views of each other."""
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        place = local.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return found


def _below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What of it is on this rank, on the CPU."""
    local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().cpu()


def _tuples(value: Any) -> Any:
    """JSON has no tuples: optimizers' settings have no lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def write_durably(path: Path, content: bytes) -> None:
    """Write a file, as a whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _cause(failed: CheckpointException) -> str:
    """The first line of the lowest rank's error."""
    _, wrapped = min(failed.failures.items(), key=lambda item: item[0])
    error = wrapped[0] if isinstance(wrapped, tuple) else wrapped
    if isinstance(error, OSError) and error.strerror:
        return os.strerror(error.errno) if error.errno else error.strerror
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300].rstrip(".")
