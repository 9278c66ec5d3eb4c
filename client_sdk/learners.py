"""Finds the learners on a device, by ``package:name`` and version, and calls them.

Where learners come from:

- installed packages, by entry points of the group ``quorate.learners``: entry ``risk`` of distribution ``clinic`` is
  ``clinic:risk``, and its version is the distribution's;
- what the owner names: ``module:attribute``, whose version is the object's ``version``, else the module's
  ``__version__``;
- objects handed over by the app that embeds the SDK.

What a learner may be: an object with ``train(model, data, task, *, device, round, deadline, held_out) -> Update`` such
as ``client_sdk.learning.Learner``; a callable without arguments that gives one; or a plain function ``train(model,
data, task) -> Update`` on numpy arrays. Nothing is imported before it is needed, except what the owner named.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Protocol

from client_sdk.data import count, held_out_part, training_part
from client_sdk.extensions import extensions
from client_sdk.imports.shadowing import Shadowed, check
from client_sdk.protocol.devices import Assignment, Score, Task
from client_sdk.protocol.names import LEARNER_PATTERN
from client_sdk.tensors import Tensors
from client_sdk.update import Update

GROUP = "quorate.learners"


class LearnerError(Exception):
    """A learner cannot be found, loaded or used: the message is one sentence."""


class Trainer(Protocol):
    """The port through which a device trains. ``LearnerTrainer`` implements it; an app may supply another."""

    @property
    def learners(self) -> dict[str, str]:
        """Name -> version of each learner that can be trained here."""

    @property
    def examples(self) -> int:
        """Training examples on the device."""

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        """Train as ``assignment.task`` says, from ``checkpoint``. ``deadline()`` gives the seconds left; 0 or less:
        stop now.

        The text of any exception becomes the reason of a withdrawal.
        """


class Catalogue:
    """Learners by name. ``explicit``: names given by the owner, or a mapping name -> object."""

    def __init__(
        self, explicit: Iterable[str] | Mapping[str, Any] = (), *, installed: Iterable[EntryPoint] | None = None
    ) -> None:
        """``installed``: entry points to use; None: those of the group ``quorate.learners``.

        Raises LearnerError for an explicit learner that cannot be loaded.
        """
        self._loaded: dict[str, Any] = {}
        self._versions: dict[str, str] = {}
        self._entries = extensions(GROUP, installed)
        self._versions |= {name: entry.version for name, entry in self._entries.items()}
        if isinstance(explicit, Mapping):
            for name, learner in explicit.items():
                self._add(name, learner, "0")
        else:
            for name in explicit:
                learner, module_version = _import(name)
                self._add(name, learner, module_version)

    @property
    def versions(self) -> dict[str, str]:
        """Name -> version of all learners, without those that failed to load."""
        return dict(self._versions)

    def load(self, name: str) -> Any:
        """The learner: an object with ``train``, or a plain function. LearnerError where it cannot be loaded."""
        if name in self._loaded:
            return self._loaded[name]
        entry = self._entries.get(name)
        if entry is None or name not in self._versions:
            have = ", ".join(f"{known} {version}" for known, version in sorted(self._versions.items())) or "none"
            raise LearnerError(
                f"This device has not got the learner {name}; installed: {have}. "
                f"Install its package, or name a module of your own: --learner {name}."
            )
        try:
            self._loaded[name] = _unwrap(name, _guarded(name, entry.entry.load))
        except LearnerError:
            del self._versions[name]
            raise
        return self._loaded[name]

    def _add(self, name: str, learner: Any, module_version: str) -> None:
        if not re.fullmatch(LEARNER_PATTERN, name):
            raise LearnerError(f"{name!r} is not a learner's name; it looks like package:name.")
        self._loaded[name] = _unwrap(name, learner)
        self._versions[name] = str(getattr(self._loaded[name], "version", None) or module_version)


def catalogue_for(names: Iterable[str]) -> Catalogue:
    """A catalogue that has these learners: installed ones as they are, others imported as ``module:attribute``.

    For command lines: modules in the working directory are found too. Raises LearnerError.
    """
    installed = Catalogue()
    others = [name for name in names if name not in installed.versions]
    if not others:
        return installed
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        check()
    except Shadowed as hidden:
        raise LearnerError(str(hidden)) from None
    return Catalogue(others)


class LearnerTrainer:
    """Trains with a catalogue's learners on one device's data.

    ``data``: whatever the learners take: ``(x, y)``, an object with ``.x`` and ``.y``, or one with parts ``.train`` and
    ``.test`` (or ``.held_out``). ``examples``: how many there are, where ``data`` cannot say.
    """

    def __init__(self, catalogue: Catalogue, data: Any, *, examples: int | None = None) -> None:
        self.catalogue = catalogue
        self._data = data
        self._examples = examples

    @property
    def learners(self) -> dict[str, str]:
        return self.catalogue.versions

    @property
    def examples(self) -> int:
        return self._examples if self._examples is not None else count(self._data)

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        learner = self.catalogue.load(assignment.task.learner)
        return train(
            learner, checkpoint, self._data, assignment.task, device=device, round=assignment.round, deadline=deadline
        )


def train(
    learner: Any,
    model: Tensors,
    data: Any,
    task: Task,
    *,
    device: str,
    round: int,
    deadline: Callable[[], float] | None,
) -> Update:
    """The update of a loaded learner, see ``Trainer.train``. LearnerError where it gives something else."""
    if hasattr(learner, "train"):
        update = learner.train(
            model,
            training_part(data),
            task,
            device=device,
            round=round,
            deadline=deadline,
            held_out=held_out_part(data),
        )
    else:
        update = learner(model, training_part(data), task)
    if not isinstance(update, Update):
        raise LearnerError(f"The learner {task.learner} gave a {type(update).__name__}, not an Update.")
    return update


def evaluate(learner: Any, name: str, model: Tensors, data: Any) -> Score:
    """``learner.evaluate(model, data)``. LearnerError where it has none, or does not return a Score."""
    if not hasattr(learner, "evaluate"):
        raise LearnerError(f"The learner {name} cannot score a model: it has no evaluate(model, data).")
    score = learner.evaluate(model, data)
    if not isinstance(score, Score):
        raise LearnerError(f"The learner {name} gave a {type(score).__name__}, not a Score.")
    return score


def _import(name: str) -> tuple[Any, str]:
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise LearnerError(f"{name!r} does not name a learner; write module:attribute.")
    module = _guarded(name, lambda: import_module(module_name))
    learner = module
    for part in attribute.split("."):
        if not hasattr(learner, part):
            raise LearnerError(f"The module {module_name} has no {attribute}.")
        learner = getattr(learner, part)
    return learner, str(getattr(module, "__version__", "0"))


def _guarded(name: str, load: Callable[[], Any]) -> Any:
    """The result of ``load``; an import error becomes a LearnerError."""
    try:
        return load()
    except ModuleNotFoundError as error:
        fix = " (pip install 'quorate[torch]')" if error.name == "torch" else ""
        raise LearnerError(f"The learner {name} needs the module {error.name}, which is not installed{fix}.") from error
    except ImportError as error:
        raise LearnerError(f"The learner {name} cannot be imported: {error}.") from error


def _unwrap(name: str, found: Any) -> Any:
    """The learner: the result of a callable without arguments, else the object itself."""
    if hasattr(found, "train") and not inspect.isclass(found):
        return found
    if not callable(found):
        raise LearnerError(f"{name} is no learner: it has no train, and it is no function train(model, data, task).")
    required = [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) == 3:
        return found
    if not required:
        made = found()
        if hasattr(made, "train"):
            return made
        raise LearnerError(f"{name} gave a {type(made).__name__}, which has no train.")
    raise LearnerError(f"{name} is no learner: as a function it must take (model, data, task).")
