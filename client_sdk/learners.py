"""Finds the learners on a device, by ``package:name`` and version, and calls them.

Where learners come from:

- installed packages, by entry points of the group ``quorate.learners``: entry ``risk`` of distribution ``clinic`` is
  ``clinic:risk``, and its version is the distribution's;
- what the owner names: ``module:attribute``, whose version is the object's ``version``, else the module's
  ``__version__``;
- objects handed over by the app that embeds the SDK.

What a learner may be: an object with ``train(model, data, task, *, device, round, deadline, held_out) -> Update`` such
as ``client_sdk.learning.Learner``; a callable without arguments that gives one; or a plain function ``train(model,
data, task) -> Update`` on numpy arrays. Who names a learner means that one alone: installed ones are there beside it
only where the owner allows them. Installed ones are imported when they are offered, or needed.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Protocol

from client_sdk import codecs
from client_sdk.data import count, held_out_part, training_part
from client_sdk.device import strategies
from client_sdk.device.strategies import DeviceStrategy, Local
from client_sdk.extensions import extensions
from client_sdk.imports import Shadowed, check, uncollected
from client_sdk.isolation import generator, private, reads_only, seeded
from client_sdk.metrics import pooled, undefined
from client_sdk.protocol.devices import Assignment, Score, Task
from client_sdk.protocol.names import LEARNER_PATTERN, did_you_mean
from client_sdk.tensors import FLOATING, Layout, Manifest, Roles, TensorError, Tensors
from client_sdk.tensors.manifest import as_roles, digest_of, is_shared, of_model
from client_sdk.update import Update

GROUP = "quorate.learners"
EVERY = "*"
"""Allows all installed learners."""
log = logging.getLogger("quorate.device.learners")


class LearnerError(Exception):
    """A learner cannot be found, loaded or used: the message is one sentence."""


class Trainer(Protocol):
    """The port through which a device trains. ``LearnerTrainer`` implements it; an app may supply another. One that has
    ``roles``, ``first_model``, or ``strategies`` and ``train_by`` too, as that has them, can say which tensors its
    learners call statistics, knows where first models of secure rounds come from, or takes part in runs whose strategy
    has a device's half."""

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
    """Learners by name: all that an owner's device may train."""

    def __init__(
        self,
        explicit: Iterable[str] | Mapping[str, Any] | None = None,
        *,
        allow: Iterable[str] | None = None,
        installed: Iterable[EntryPoint] | None = None,
    ) -> None:
        """``explicit``: what the owner names: a mapping name -> object, or one or more names, of which one that is not
        installed is imported as ``module:attribute``. ``allow``: installed learners beside it, ``*`` for all of them.
        Where neither is given, all installed ones are there; an empty list names none. ``installed``: entry points to
        use; None: those of the group ``quorate.learners``.

        Raises LearnerError for a learner that is named and cannot be had.
        """
        self._loaded: dict[str, Any] = {}
        self._versions: dict[str, str] = {}
        if isinstance(explicit, str):  # one name, not its letters
            explicit = (explicit,)
        found, allowed = extensions(GROUP, installed), {allow} if isinstance(allow, str) else set(allow or ())
        every = EVERY in allowed or (explicit is None and allow is None)
        names = () if explicit is None or isinstance(explicit, Mapping) else tuple(explicit)
        self._entries = {name: entry for name, entry in found.items() if every or name in allowed or name in names}
        self._versions |= {name: entry.version for name, entry in self._entries.items()}
        if isinstance(explicit, Mapping):
            for name, learner in explicit.items():
                self._add(name, learner, "0")
        for name in names:
            if name in self._entries:
                self.load(name)
            else:
                if _is_lacking(name, found):
                    raise LearnerError(f"There is no learner {name}{did_you_mean(name, found) or '.'}")
                learner, module_version = _import(name)
                self._add(name, learner, module_version)
        for name in sorted(allowed - {EVERY} - set(self._versions)):
            raise LearnerError(f"There is no learner {name} here to allow{did_you_mean(name, found) or '.'}")

    @property
    def versions(self) -> dict[str, str]:
        """Name -> version of all learners, without those that failed to load. Nothing is imported for it."""
        return dict(self._versions)

    @property
    def usable(self) -> dict[str, str]:
        """Name -> version of the learners that can be imported: what a device offers. Each is imported once."""
        for name in [name for name in self._versions if name not in self._loaded]:
            try:
                self.load(name)
            except LearnerError as error:
                log.warning("The learner %s is not offered. %s", name, error)
        return self.versions

    def load(self, name: str) -> Any:
        """The learner: an object with ``train``, or a plain function. LearnerError where it cannot be loaded."""
        if name in self._loaded:
            return self._loaded[name]
        entry = self._entries.get(name)
        if entry is None or name not in self._versions:
            have = ", ".join(f"{known} {version}" for known, version in sorted(self._versions.items())) or "none"
            raise LearnerError(
                f"This device has not got the learner {name}; it may train: {have}. "
                f"Install its package, or name it: --learner {name}."
            )
        try:
            self._loaded[name] = _guarded(name, lambda: _unwrap(name, entry.entry.load()))
        except LearnerError:
            del self._versions[name]
            raise
        return self._loaded[name]

    def _add(self, name: str, learner: Any, module_version: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(LEARNER_PATTERN, name):
            raise LearnerError(f"{name!r} is not a learner's name; it looks like package:name.")
        self._loaded[name] = _guarded(name, lambda: _unwrap(name, learner))
        self._versions[name] = str(getattr(self._loaded[name], "version", None) or module_version)


def unknown_here(name: str, *, modules: bool = True) -> str:
    """Why it is not known here whether there is a learner of this name, in a sentence; empty where there is one.
    LearnerError where there is none: its package is installed and has no such learner, or, with ``modules``, its module
    has no such attribute. Without, a package of the module's name may have it elsewhere."""
    found = extensions(GROUP)
    if name in found:
        return ""
    try:
        catalogue_for([name])
    except LearnerError as error:
        if error.__cause__ is None and (modules or _is_lacking(name, found)):
            raise
        package = name.partition(":")[0].partition(".")[0]
        cause = error.__cause__
        if cause is not None and not (isinstance(cause, ModuleNotFoundError) and cause.name == package):
            return ""  # it is there, and cannot be loaded here
    else:
        return ""
    near = did_you_mean(name, found)
    return f"Whether there is a learner {name} is not known: its package is not installed here{near or '.'}"


def _is_lacking(name: str, found: Iterable[str]) -> bool:
    """Whether the package of this name is installed, has learners, and none of this name."""
    package = name.partition(":")[0]
    return name not in found and any(known.partition(":")[0] == package for known in found)


def catalogue_for(names: Iterable[str] = (), allow: Iterable[str] = ()) -> Catalogue:
    """The learners that a command line names, and the installed ones that it allows; all installed ones where it does
    neither.

    Modules in the working directory are found too. Raises LearnerError.
    """
    named = list(names)
    if any(name not in extensions(GROUP) for name in named):
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            check()
        except Shadowed as hidden:
            raise LearnerError(str(hidden)) from None
    return Catalogue(named or None, allow=list(allow) or None)


class LearnerTrainer:
    """Trains with a catalogue's learners on one device's data.

    ``data``: whatever the learners take: ``(x, y)``, an object with ``.x`` and ``.y``, or one with parts ``.train`` and
    ``.test`` (or ``.held_out``). ``examples``: how many there are, where ``data`` cannot say. ``seeds``: whether the
    global generators of Python, numpy and torch are seeded while a learner trains, and restored afterwards: for a
    process that does nothing else.
    """

    def __init__(self, catalogue: Catalogue, data: Any, *, examples: int | None = None, seeds: bool = False) -> None:
        self._seeds = seeds
        self.catalogue = catalogue
        self._data = data
        self._examples = examples

    @property
    def learners(self) -> dict[str, str]:
        return self.catalogue.usable

    @property
    def examples(self) -> int:
        return self._examples if self._examples is not None else count(self._data)

    def first_model(self, learner: str) -> Callable[[int], Tensors] | None:
        """The ``initial`` of this learner: seed -> the tensors of a first model. None: it makes none."""
        made: Callable[[int], Tensors] | None = getattr(self.catalogue.load(learner), "initial", None)
        return made

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        learner = self.catalogue.load(assignment.task.learner)
        require_roles(learner, checkpoint, assignment)
        return train(
            learner, checkpoint, self._data, assignment.task, device=device, round=assignment.round, deadline=deadline,
            seeds=self._seeds,
        )  # fmt: skip

    def roles(self, learner: str, model: Manifest) -> Roles | None:
        """See ``roles_of``."""
        return roles_of(self.catalogue.load(learner), model)

    @property
    def strategies(self) -> Mapping[str, str]:
        """Name -> version of each half that is here."""
        return strategies.installed()

    def train_by(
        self,
        half: DeviceStrategy,
        assignment: Assignment,
        checkpoint: Tensors,
        state: Tensors,
        device: str,
        deadline: Callable[[], float],
    ) -> Local:
        """Train by this half, from what the device keeps: see ``train``, and ``strategies.train_by``."""
        learner = self.catalogue.load(assignment.task.learner)
        require_roles(learner, checkpoint, assignment)

        def learn(model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
            return train(
                learner, model, self._data, task, device=device, round=assignment.round, deadline=deadline,
                seeds=self._seeds, offset=offset,
            )  # fmt: skip

        codec = codecs.beside(assignment.task.codec, assignment.roles)

        def coded(delta: Tensors) -> Tensors:
            return codecs.as_decoded(codec, delta, codecs.Origin.of(assignment))

        return strategies.train_by(half, strategies.Learn(learn, coded), checkpoint, state, assignment.task)


def train(
    learner: Any,
    model: Tensors,
    data: Any,
    task: Task,
    *,
    device: str,
    round: int,
    deadline: Callable[[], float] | None,
    seeds: bool = False,
    with_rng: bool | None = None,
    offset: Tensors | None = None,
    loop: Callable[..., Any] | None = None,
) -> Update:
    """The update of a loaded learner, see ``Trainer.train``. LearnerError where it gives something else.

    ``offset``: what is added to each gradient, where the task's strategy wants that. LearnerError where the learner
    cannot: its ``train`` then has a parameter ``offset``.

    The learner gets private arrays of model and data, and, where it has a parameter ``rng``, a numpy Generator that
    (seed, round, device) seeds. ``seeds``: while it trains, the global generators are seeded by the same three.
    ``loop``: how a ``Learner`` makes its steps (``Learner.train``); None: as it does.
    ``with_rng``: what ``wants_rng`` says of the learner, where the caller knows that.
    """

    def call() -> Any:
        kept, part, held_out = model, training_part(data), held_out_part(data)
        more: dict[str, Any] = {}
        if not reads_only(learner, "train"):
            kept, part, held_out = private(dict(model)), private(part), private(held_out)
            if wants_rng(learner) if with_rng is None else with_rng:
                more["rng"] = generator(task.seed, round, device)
        if offset is not None:
            if not takes(learner, "offset"):
                raise LearnerError(
                    f"The plan's strategy corrects gradients, which the learner {task.learner} does not let it: an "
                    "object with train(..., offset=) does."
                )
            more["offset"] = offset
        if loop is not None:
            more["loop"] = loop
        if not hasattr(learner, "train"):
            return learner(kept, part, task, **more)
        return learner.train(kept, part, task, device=device, round=round, deadline=deadline, held_out=held_out, **more)

    had_torch = "torch" in sys.modules
    with seeded(task.seed, round, device) if seeds else nullcontext():
        update = call()
    if seeds and not had_torch and "torch" in sys.modules:  # it came with the learner, and was not seeded
        with seeded(task.seed, round, device):
            update = call()
    if not isinstance(update, Update):
        raise LearnerError(f"The learner {task.learner} gave a {type(update).__name__}, not an Update.")
    return update


def wants_rng(learner: Any) -> bool:
    """Whether the learner trains with a parameter ``rng``. To ask takes some 15 microseconds."""
    return takes(learner, "rng")


def takes(learner: Any, parameter: str) -> bool:
    """Whether the learner trains with a parameter of this name."""
    with suppress(TypeError, ValueError):  # of what has no signature
        return parameter in inspect.signature(getattr(learner, "train", learner)).parameters
    return False


def tied_names(learner: Any) -> dict[str, str]:
    """Further name -> first name of each tied weight of the learner's model; empty where it knows of none."""
    found: dict[str, str] = learner.tied() if hasattr(learner, "tied") else {}
    return found


def untied(learner: Any, tensors: Tensors) -> Tensors:
    """A model's tensors, as plain torch names them, under the names that travel: of tied weights the first one.

    The same tensors where the learner knows of no tied weights. LearnerError where tied names have different values.
    """
    found = dict(tensors)
    for name, first in tied_names(learner).items():
        if name not in found:
            continue
        value = found.pop(name)
        other = found.setdefault(first, value)
        if (value.dtype, value.shape, value.tobytes()) != (other.dtype, other.shape, other.tobytes()):
            raise LearnerError(
                f"{name} and {first} are one tensor in the learner's model, and have different values here: "
                "tie them before they are written, or train a model in which they are not tied."
            )
    return found


def roles_of(learner: Any, model: Manifest) -> Roles | None:
    """Which tensors of ``model`` are statistics, where the learner knows: by its method ``roles``. None: it says
    nothing, as a function does. LearnerError for what says no roles of these tensors."""
    if not hasattr(learner, "roles"):
        return None
    if not callable(learner.roles):
        raise LearnerError(
            f"The learner's roles is a {type(learner.roles).__name__}: make it a method roles() that gives it."
        )
    try:
        found = as_roles(learner.roles())
    except TensorError as error:
        raise LearnerError(f"roles() of the learner: {error}.") from None
    except Exception as error:
        raise LearnerError(
            f"roles() of the learner failed: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
    floating = [name for name, spec in model.items() if spec.dtype in FLOATING]
    if unknown := sorted(found.keys() - floating):
        raise LearnerError(
            f"roles() of the learner names what is no floating-point tensor of the model: {', '.join(unknown[:3])}"
            f"{did_you_mean(unknown[0], floating) or '.'}"
        )
    return found


def require_roles(learner: Any, checkpoint: Tensors, assignment: Assignment) -> None:
    """LearnerError unless the assignment gives the checkpoint's tensors the roles that they have in the learner's
    model, where it knows them, and names the digest of what it says."""
    model = Manifest.of(checkpoint)
    known = roles_of(learner, Manifest.of(of_model(checkpoint)))
    if known is not None:
        known = {**known, **{name: "statistic" for name in model if is_shared(name)}}
    mine = None if known is None else Layout.of(model, assignment.task.averaged, known).roles
    said = digest_of(model, assignment.roles)
    if said != assignment.roles_digest or (mine is not None and digest_of(model, mine) != said):
        raise LearnerError(
            f"The run gives other tensors the role of statistics than the learner {assignment.task.learner} does: "
            f"{_listed(assignment.roles)}, and not {_listed(mine or {})}."
        )


def _listed(roles: Roles) -> str:
    names = [f"{name} ({role})" for name, role in sorted(roles.items())]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


def evaluate(learner: Any, name: str, model: Tensors, data: Any, *, device: str = "") -> Score:
    """``learner.evaluate(model, data)``, with ``device=`` where it takes it: the client whose data it is, empty for
    nobody's. LearnerError where it has none, or does not return a Score."""
    if not hasattr(learner, "evaluate"):
        raise LearnerError(f"The learner {name} cannot score a model: it has no evaluate(model, data).")
    model = of_model(model)
    if not reads_only(learner, "evaluate"):
        model, data = private(dict(model)), private(data)
    taken = inspect.signature(learner.evaluate).parameters.values()
    told = any(one.kind is one.VAR_KEYWORD or one.name == "device" for one in taken)
    score = learner.evaluate(model, data, device=device) if told else learner.evaluate(model, data)
    if not isinstance(score, Score):
        raise LearnerError(f"The learner {name} gave a {type(score).__name__}, not a Score.")
    return score


def pooled_by(learner: Any, scores: Sequence[Score]) -> Score:
    """The score of the examples of all ``scores``, where the learner has computed the values of added states. Raises
    LearnerError where a metric's state is lacking."""
    for name in getattr(learner, "stateful", ()):
        if any(name not in score.states for score in scores):
            reason = learner.unaddable() or (
                f"The metric {name} cannot be added up over clients: its state must be numbers of a fixed size, which "
                "its merge(other) adds."
            )
            raise LearnerError(reason)
    found = pooled(scores)
    return found.model_copy(update={"metrics": found.metrics | values_of(learner, found.states), "states": {}})


def values_of(learner: Any, states: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The values of metrics by their added states; one that is undefined is named as such."""
    found = {name: learner.computed(name, state) for name, state in states.items() if hasattr(learner, "computed")}
    return {
        (name if math.isfinite(one) else undefined(name)): (one if math.isfinite(one) else 1.0)
        for name, one in found.items()
    }


def _import(name: str) -> tuple[Any, str]:
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise LearnerError(f"{name!r} does not name a learner; write module:attribute.")
    module = _guarded(name, lambda: import_module(module_name))
    learner = module
    for part in attribute.split("."):
        if not hasattr(learner, part):
            near = did_you_mean(part, (one for one in dir(learner) if not one.startswith("_")))
            raise LearnerError(f"The module {module_name} has no {attribute}{near or '.'}")
        learner = getattr(learner, part)
    return learner, str(getattr(module, "__version__", "0"))


def _guarded(name: str, load: Callable[[], Any]) -> Any:
    """The result of ``load``; any error becomes a LearnerError."""
    try:
        with uncollected():
            return load()
    except LearnerError:
        raise
    except ModuleNotFoundError as error:
        fix = " (pip install 'quorate[torch]')" if error.name == "torch" else ""
        raise LearnerError(f"The learner {name} needs the module {error.name}, which is not installed{fix}.") from error
    except Exception as error:
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise LearnerError(f"The learner {name} cannot be imported: {kind}{str(error).rstrip('.')}.") from error


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
