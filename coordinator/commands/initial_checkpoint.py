"""The initial checkpoint of a run: a file of the user's, or made by a learner that is installed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import fail

if TYPE_CHECKING:
    from client_sdk.tensors import Manifest
    from client_sdk.tensors.manifest import StatisticRole
    from coordinator.engine.plan import Plan

Statistics = Annotated[
    list[str] | None,
    typer.Option(
        "--statistic",
        metavar="NAME",
        help="A tensor that is a statistic, such as a running mean, by name or shell pattern; 'NAME>=0': one that is "
        "never below 0; 'none': there are none. May be given several times (default: the learner says, else the names "
        "tell).",
    ),
]


def said_roles(statistics: Sequence[str] | None) -> dict[str, StatisticRole] | None:
    """The roles that the options say, by name or pattern. None: they say nothing."""
    if statistics is None:
        return None
    if list(statistics) == ["none"]:
        return {}
    return {
        one.removesuffix(">=0").strip(): "non-negative" if one.endswith(">=0") else "statistic" for one in statistics
    }


def roles_for(
    model: Manifest, said: dict[str, StatisticRole] | None, learner: object | None
) -> tuple[dict[str, StatisticRole], str]:
    """The statistics of a model: those that the learner knows or that options have ``said``; else those that names
    tell, and a sentence about them. ``learner``: None where it is not here. LearnerError or Failure where what is said
    does not fit the model, or the learner."""
    from client_sdk.learners import roles_of
    from client_sdk.tensors import ManifestMismatch
    from client_sdk.tensors.manifest import by_name, doubted, stated, told

    known = roles_of(learner, model)
    if said is None and known is not None:
        return dict(known), doubted(model, known)
    if said is None:
        found = by_name(model)
        return found, f"{told(found)} --statistic says otherwise." if found else ""
    try:
        found = stated(model, said)
    except ManifestMismatch as error:
        fail(f"--statistic: {error}.")
    if known is not None and found != known:
        fail(
            "--statistic says otherwise than the learner, whose devices would refuse the run. Its statistics are "
            f"{', '.join(sorted(known)) or 'none'}: leave the option out."
        )
    return found, ""


def check_initial(path: Path) -> None:
    """Check the header of a safetensors file. Failure, with its name, where it is not one."""
    from client_sdk.tensors import TensorError, read_header

    if path.exists() and not path.is_file():  # a named pipe would wait for a writer
        fail(f"{path} is not a file that can start a run: it is a folder, a pipe or a device.")
    try:
        read_header(path)
    except TensorError as error:
        fail(f"{path} is not a safetensors file that can start a run: {error}.")


def learner_unknown(plan: Plan, *, modules: bool = True) -> str:
    """A sentence where it is not known here whether the plan's learner exists. Failure where it does not. A plan that
    names a version may mean another one than is installed here."""
    from client_sdk.learners import LearnerError, unknown_here

    try:
        return unknown_here(plan.task.learner, modules=modules)
    except LearnerError as error:
        if plan.task.learner_version is None:
            fail(str(error))
        return f"{error} It is not known of version {plan.task.learner_version}."


def given(plan: Plan, path: Path) -> tuple[Path | bytes, object | None]:
    """A safetensors file of the user's as a run begins from it, and the plan's learner where it is installed here. It
    is the file; or, where it has the learner's tied weights under further names, as
    plain torch does, the bytes without these. Failure where it cannot start a run."""
    from client_sdk.learners import LearnerError, catalogue_for, tied_names, untied
    from client_sdk.tensors import from_bytes, read_header, to_bytes

    check_initial(path)
    try:
        learner = catalogue_for([plan.task.learner]).load(plan.task.learner)
        tied = tied_names(learner)
    except Exception:  # noqa: BLE001  (a learner is user code, and need not be installed here)
        return path, None
    _check_learner(plan, learner)
    if not tied.keys() & read_header(path).manifest.keys():
        return path, learner
    try:
        return to_bytes(untied(learner, from_bytes(path.read_bytes()))), learner
    except LearnerError as error:
        fail(f"{path} cannot start this run: {error}")


def _check_learner(plan: Plan, learner: object) -> None:
    """Failure where the learner trains nothing that the plan averages, or devices shall score a metric whose states
    cannot be added up."""
    if callable(untrainable := getattr(learner, "untrainable", None)) and (reason := untrainable(plan.task.averaged)):
        fail(reason)
    if plan.task.score_held_out and callable(unaddable := getattr(learner, "unaddable", None)) and unaddable():
        fail(f"{unaddable()} The plan asks devices for it: task.score_held_out = true.")


def initial(plan: Plan, learner: str | None, seed: int | None) -> tuple[Plan, bytes, str, object]:
    """The initial checkpoint that a learner makes: (plan, safetensors bytes, origin for display, the learner).

    If the plan averages everything and the learner names a subset (``averaged``), the plan that is returned averages
    that subset. A secure plan says the seed, so that devices can make the same.
    Failure when the learner has another version or makes no initial checkpoint.
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
    if plan.secure is not None and name == plan.task.learner:
        said = plan.secure.model_copy(update={"first_seed": initial_seed})
        plan = plan.model_copy(update={"secure": said})
    _check_learner(plan, made)
    return plan, to_bytes(made.initial(initial_seed)), f"{name} {have}, seed {initial_seed}", made
