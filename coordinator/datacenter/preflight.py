"""Checks once, before the first poll, that this machine can do what an agent would offer: torch, GPUs, learners, data.

``look`` starts a process, since the agent itself does not load torch and data; that process loads everything as a
training job would, and reports the capabilities, or one sentence for an error.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from client_sdk.imports import end_uncollected, uncollected
from client_sdk.terminal import Failure
from coordinator.child_processes import SupervisedChild, when_parent_ends
from coordinator.datacenter.spec import training_error_text

ENV_REQUEST = "QUORATE_PREFLIGHT"
_MARK = "@preflight "


class PreflightRequest(BaseModel):
    """What an agent would offer: the learners, data and processes to check."""

    model_config = ConfigDict(frozen=True)

    learners: tuple[str, ...] = ()
    """Learners that the user named: only these. Empty: all installed ones."""
    data: dict[str, str]
    """Name in plans -> installed data set, or a file: ``/data/mine.npz``, ``/data/mine.csv:outcome``."""
    nproc: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"


class PreflightReport(BaseModel):
    """The capabilities of this machine."""

    learners: dict[str, str]
    """Name -> version, of those that can be trained here."""
    examples: dict[str, int]
    """Name of the data -> its training examples."""
    gpus: int
    gpu_bytes: tuple[int, ...] = ()
    """The memory of each of them."""


def look(wanted: PreflightRequest) -> PreflightReport:
    """Load everything requested, in a separate process. Failure, with one sentence, where something is missing."""
    env = {**os.environ, ENV_REQUEST: wanted.model_dump_json()}
    answers: list[str] = []

    def on_line(line: str) -> None:
        if line.startswith(_MARK):
            answers.append(line[len(_MARK) :])

    with TemporaryFile("w+", errors="replace") as errors:
        command = [sys.executable, "-m", "coordinator.datacenter.preflight"]
        child = SupervisedChild(command, environment=env, threads=None, errors=errors)
        child.follow(on_line)
        errors.seek(0)
        complaints = [line.strip() for line in errors.read().splitlines() if line.strip()]
    if not answers:
        last = f" ({complaints[-1][:200]})" if complaints else ""
        raise Failure(f"This machine could not be checked: the process {child.ending}{last}.")
    answer = json.loads(answers[0])
    if "failed" in answer:
        raise Failure(str(answer["failed"]))
    return PreflightReport.model_validate(answer)


def main() -> None:
    """The process that ``look`` starts."""
    when_parent_ends(partial(os._exit, 1))
    end_uncollected()
    wanted = PreflightRequest.model_validate_json(os.environ[ENV_REQUEST])
    try:
        answer: dict[str, Any] = _loaded(wanted).model_dump()
    except Exception as error:
        if os.environ.get("QUORATE_DEBUG"):
            raise
        answer = {"failed": training_error_text(error)}
    sys.stdout.write(f"\n{_MARK}{json.dumps(answer)}\n")


def _loaded(wanted: PreflightRequest) -> PreflightReport:
    from client_sdk.data import load_data
    from client_sdk.learners import catalogue_for

    gpus = _gpus(wanted)
    catalogue = catalogue_for(wanted.learners)
    for name in wanted.learners:
        if not _trains(catalogue.load(name)):
            raise Failure(f"The learner {name} cannot be trained here: only a torch Learner can.")
    learners = {name: version for name, version in catalogue.usable.items() if _trains(catalogue.load(name))}
    if not learners:
        raise Failure("There is no learner here: install a package that has one, or name yours: --learner module:name.")
    examples = {name: len(load_data(source).train) for name, source in wanted.data.items()}
    return PreflightReport(learners=learners, examples=examples, gpus=gpus, gpu_bytes=_gpu_bytes(gpus))


def _trains(learner: Any) -> bool:
    """Whether a datacenter can train it: it is a torch Learner."""
    return hasattr(learner, "initial")


def _gpus(wanted: PreflightRequest) -> int:
    """The number of GPUs. Failure where more are requested than there are."""
    with uncollected():
        import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.device == "cpu":
        return 0
    if wanted.device == "cuda" and there == 0:
        raise Failure("A GPU was asked for, and torch finds none on this machine: use --device cpu.")
    if there and wanted.nproc > there:
        raise Failure(
            f"--nproc {wanted.nproc} asks for more GPUs than this machine has ({there}): one process a GPU, "
            "or use --device cpu."
        )
    return there


def _gpu_bytes(gpus: int) -> tuple[int, ...]:
    with uncollected():
        import torch

    return tuple(torch.cuda.get_device_properties(number).total_memory for number in range(gpus))


def source_of(text: str) -> tuple[str, str]:
    """Name and source of ``proxy=FILE.npz``, ``proxy=FILE.csv:COLUMN``, ``proxy=mnist`` or ``mnist``; a file's path is
    made absolute."""
    from client_sdk.data import is_file

    name, separator, source = text.partition("=")
    source = source if separator else name
    return name, str(Path(source).resolve()) if is_file(source) else source


if __name__ == "__main__":
    main()
