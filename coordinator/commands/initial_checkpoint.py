"""The initial checkpoint of a run: a file of the user's, or made by a learner that is installed on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from client_sdk.terminal import fail

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan


def check_initial(path: Path) -> None:
    """Check the header of a safetensors file. Failure, with its name, where it is not one."""
    from client_sdk.tensors import TensorError, read_header

    if path.exists() and not path.is_file():  # a named pipe would wait for a writer
        fail(f"{path} is not a file that can start a run: it is a folder, a pipe or a device.")
    try:
        read_header(path)
    except TensorError as error:
        fail(f"{path} is not a safetensors file that can start a run: {error}.")


def given(plan: Plan, path: Path) -> Path | bytes:
    """A safetensors file of the user's as a run begins from it: the file; or, where the plan's learner is installed
    here, and the file has its tied weights under further names, as plain torch does, the bytes without these. Failure
    where it cannot start a run."""
    from client_sdk.learners import LearnerError, catalogue_for, tied_names, untied
    from client_sdk.tensors import from_bytes, read_header, to_bytes

    check_initial(path)
    try:
        learner = catalogue_for([plan.task.learner]).load(plan.task.learner)
        tied = tied_names(learner)
    except Exception:  # noqa: BLE001  (a learner is user code, and need not be installed here)
        return path
    if not tied.keys() & read_header(path).manifest.keys():
        return path
    try:
        return to_bytes(untied(learner, from_bytes(path.read_bytes())))
    except LearnerError as error:
        fail(f"{path} cannot start this run: {error}")


def initial(plan: Plan, learner: str | None, seed: int | None) -> tuple[Plan, bytes, str]:
    """The initial checkpoint that a learner makes: (plan, safetensors bytes, origin for display).

    If the plan averages everything and the learner names a subset (``averaged``), the plan that is returned averages
    that subset. Failure when the learner has another version or makes no initial checkpoint.
    """
    from client_sdk.learners import catalogue_for
    from client_sdk.tensors import to_bytes

    name = learner or plan.task.learner
    initial_seed = plan.task.seed if seed is None else seed
    catalogue = catalogue_for([name])
    made = catalogue.load(name)
    have, wanted = catalogue.versions.get(name, ""), plan.task.learner_version
    if name == plan.task.learner and wanted is not None and have != wanted:
        fail(f"The plan needs {name} {wanted}; this machine has {have}. Install that version, or give --init.")
    if not hasattr(made, "initial"):
        fail(f"The learner {name} has no initial(seed): give the initial checkpoint as a file by --init.")
    averaged = getattr(made, "averaged", ("*",))
    if plan.task.averaged == ("*",) and averaged != ("*",):
        plan = plan.model_copy(update={"task": plan.task.model_copy(update={"averaged": averaged})})
    return plan, to_bytes(made.initial(initial_seed)), f"{name} {have}, seed {initial_seed}"
