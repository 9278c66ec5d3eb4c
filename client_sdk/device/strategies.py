"""The device's half of a strategy: how a device trains for it, and which tensors it keeps from round to round.

A device trains by ``DeviceStrategy.train``, which calls the learner as often as the algorithm asks, through ``Learn``.
Besides the model it gets the *shared* tensors of the checkpoint (``client_sdk.tensors.manifest``), and its *state*: the
tensors that it returned before. What it returns is an update, changes of the shared tensors, and the next state. Of the
built-in ones each takes plain SGD steps on the device, as its paper does; arithmetic is elementwise in float32.

Packages bring halves by entry points of the group ``quorate.device_strategies``, under the name of the strategy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Literal, Protocol, cast, get_args

import numpy as np

from client_sdk.extensions import CannotLoad, extensions, provided_now
from client_sdk.protocol.devices import Task, TaskStrategy
from client_sdk.tensors import Manifest, TensorError, Tensors
from client_sdk.tensors.manifest import NotFinite, OutOfRange, is_shared, of_model, shared_name
from client_sdk.update import Update

GROUP = "quorate.device_strategies"
Keeps = Literal["nothing", "trained", "committed"]
NAMES = r"[a-z0-9][a-z0-9-]{0,63}"
"""Of shared tensors, and of those that a strategy keeps beside the checkpoint."""
Shared = Mapping[str, Tensors]
"""Name of a shared tensor -> parameter -> its values, float32 of the parameter's shape."""


class StrategyError(Exception):
    """A device's half of a strategy is missing, or does not fit this task or learner: one sentence."""


class BadNumbers(StrategyError):
    """What was trained cannot be counted or kept, as after a training that has diverged: this device's alone."""


class Training(Protocol):
    """See ``Learn``."""

    def __call__(self, model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update: ...


@dataclass(frozen=True, slots=True)
class Learn:
    """Trains with the task's learner on the device's data."""

    training: Training
    coded: Callable[[Tensors], Tensors]

    def __call__(self, model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
        """The update of a training from ``model`` by ``task``. ``offset``: what is added to each gradient, by the
        name of the parameter, float32 of its shape; for learners whose ``train`` takes ``offset``. LearnerError where
        this one does not."""
        return self.training(model, task, offset=None if offset is None else arrays(offset))

    def sent(self, delta: Tensors) -> Tensors:
        """What the coordinator decodes of these deltas, if they are this round's: all that the task averages. Of a
        plain round: what a mask hides is rounded later. BadNumbers."""
        try:
            return self.coded(arrays(delta))
        except (NotFinite, OutOfRange) as error:
            raise BadNumbers(f"The update cannot be counted: {error}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What a device's half makes of a task."""

    update: Update
    """The deltas of exactly the tensors that the task averages."""
    shared: Shared = field(default_factory=dict)
    """The change of each shared tensor."""
    state: Tensors = field(default_factory=dict)
    """What the device keeps: it replaces what it kept before."""


def arrays(tensors: Tensors) -> Tensors:
    """With arrays in place of numpy's numbers, which arithmetic of tensors without dimensions gives."""
    return {name: np.asarray(one) for name, one in tensors.items()}


class DeviceStrategy:
    """The base of devices' halves: this one trains as without a strategy. An object has no state of its own."""

    version = "1"
    shared: tuple[str, ...] = ()
    """Names of tensors that travel with the model: one for each parameter that the plan averages, zeros at first. What
    devices change them by is averaged as the statistics of a model are."""
    keeps: Keeps = "nothing"
    """Whether devices keep a state, and which: *committed*: that of the last training whose update is in a checkpoint.
    *trained*: that of the last training."""
    corrects = False
    """Whether it needs a learner that takes ``offset``."""

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        """``model``: the received one, without shared tensors. ``state``: what the device keeps, empty at first.
        ``settings``: the strategy's parameters in the plan. Arrays that are given must not be changed."""
        return Local(update=learn(model, task))

    def own(self, model: Tensors, state: Tensors, task: Task) -> Tensors:
        """The model that this device uses itself: what its own held-out examples are scored by."""
        return model

    def state_bytes(self, model: Manifest, task: Task) -> int:
        """How many bytes its state takes for this model, without shared tensors."""
        return 0 if self.keeps == "nothing" else 4 * model.select(task.averaged).elements


# ------------------------------------------------------------ drift


class Scaffold(DeviceStrategy):
    """SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378, algorithm 1 with option II). With the control variates c of
    all and c_i of this device, K steps y <- y - eta (g(y) + c - c_i) from the model x, and then

        c_i+ = c_i - c + (x - y) / (K eta),    dc_i = c_i+ - c_i

    A device that has trained no steps before has c_i = 0."""

    shared = ("c",)
    keeps: Keeps = "committed"
    corrects = True

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        of_all = shared["c"]
        before = {name: state.get(name, np.zeros_like(array)) for name, array in of_all.items()}
        update = learn(model, task, offset={name: array - before[name] for name, array in of_all.items()})
        distance = np.float32(update.work.steps * task.learning_rate)
        delta = update.delta
        after = {name: before[name] - of_all[name] - delta[name] / distance for name in of_all}
        return Local(update=update, shared={"c": {name: after[name] - before[name] for name in after}}, state=after)


class FedDyn(DeviceStrategy):
    """FedDyn (Acar et al. 2021, arXiv:2111.04263, algorithm 1). A device minimises

        f(w) - <h_i, w> + (mu / 2) |w - x|^2

    from the model x, with the paper's alpha as ``task.mu``, and then keeps h_i+ = h_i - mu (w - x). The device's h_i is
    the gradient of f at the w that it has reached, where that is a minimum."""

    keeps: Keeps = "committed"
    corrects = True

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        update = learn(model, task, offset={name: -array for name, array in state.items()} or None)
        alpha, after = np.float32(task.mu), {}
        for name, change in update.delta.items():
            after[name] = state.get(name, np.zeros_like(change)) - alpha * change
        return Local(update=update, state=after)


# ------------------------------------------------------------ personal parts


class Ditto(DeviceStrategy):
    """Ditto (Li et al. 2021, arXiv:2012.04221, algorithm 1): beside the update of the model x, as without a strategy, a
    device trains a model v of its own by as much work, which minimises f(v) + (lambda / 2) |v - x|^2; it begins as x.
    Its statistics move as they do in training. That model is scored, not x."""

    keeps: Keeps = "committed"
    corrects = True

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        plain = task.model_copy(update={"score_held_out": False})
        update, mine, pull = learn(model, plain), self.own(model, state, task), settings["lambda"]
        towards = task.model_copy(update={"mu": pull})
        offset = {name: np.float32(pull) * (mine[name] - model[name]) for name in update.delta} if state else None
        moved = learn(mine, towards, offset=offset)
        after = {name: mine[name].astype(np.float32) + change for name, change in moved.delta.items()}
        return Local(update=with_score(update, moved), state=after)

    def own(self, model: Tensors, state: Tensors, task: Task) -> Tensors:
        return {**model, **{name: array.astype(model[name].dtype) for name, array in state.items()}}


class FedPer(DeviceStrategy):
    """FedPer (Arivazhagan et al. 2019, arXiv:1912.00818), and FedBN (Li et al. 2021, arXiv:2102.07623): all tensors are
    trained together, those that ``task.averaged`` chooses are sent, and the device keeps its own values of the others:
    the last layers, or those that normalize."""

    keeps: Keeps = "committed"

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        mine, sent = self.own(model, state, task), Manifest.of(model).select(task.averaged)
        update = learn(mine, task.model_copy(update={"averaged": ("*",)}))
        return Local(update=only(update, sent), state=_moved(mine, update, sent))

    def own(self, model: Tensors, state: Tensors, task: Task) -> Tensors:
        return {**model, **{name: array.astype(model[name].dtype) for name, array in state.items()}}

    def state_bytes(self, model: Manifest, task: Task) -> int:
        return 4 * (model.select(("*",)).elements - model.select(task.averaged).elements)


class FedRep(FedPer):
    """FedRep (Collins et al. 2021, arXiv:2102.07078, algorithm 1): first the tensors that the device keeps are trained
    alone, for ``head_epochs`` passes, then those that are sent, for the task's work."""

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        mine, whole = self.own(model, state, task), Manifest.of(model)
        sent = whole.select(task.averaged)
        own = tuple(name for name in whole.select(("*",)) if name not in sent)
        if not own:
            raise StrategyError("fedrep has nothing to train first: task.averaged chooses all tensors of the model.")
        work = {"averaged": own, "epochs": int(settings["head_epochs"]), "steps": None}
        first = learn(mine, task.model_copy(update=work))
        mine = {**mine, **_moved(mine, first, sent)}
        update = learn(mine, task.model_copy(update={"score_held_out": False}))
        return Local(update=with_score(update, first), state={name: mine[name] for name in own})


# ------------------------------------------------------------ what a codec leaves out


class ErrorFeedback(DeviceStrategy):
    """Error feedback (Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2): what the codec leaves out of an update,
    a device adds to its next one. With ``momentum`` m above 0 it is the momentum correction of Lin et al. 2018
    (arXiv:1712.01887, section 3): u <- m u + delta, v <- v + u, of v is sent what the codec takes, and where that is
    not 0, u begins anew at 0."""

    keeps: Keeps = "committed"

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        update, momentum = learn(model, task), np.float32(settings["momentum"])
        moved = {
            name: change + momentum * state.get(f"momentum/{name}", np.zeros_like(change))
            for name, change in update.delta.items()
        }
        whole = {name: change + state.get(f"error/{name}", np.zeros_like(change)) for name, change in moved.items()}
        sent = learn.sent(whole)
        after = {f"error/{name}": change - sent[name] for name, change in whole.items()}
        if momentum:
            goes_on = {name: np.where(sent[name] == 0, change, np.float32(0)) for name, change in moved.items()}
            after |= {f"momentum/{name}": change for name, change in goes_on.items()}
        return Local(update=_remade(update, whole), state=after)

    def state_bytes(self, model: Manifest, task: Task) -> int:
        return 8 * model.select(task.averaged).elements


def _trained(half: DeviceStrategy, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task) -> Local:
    """What the half returns. An error of its own becomes a StrategyError; those of the learner pass."""
    passed = list[Exception]()

    def training(model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
        try:
            return learn.training(model, task, offset=offset)
        except Exception as error:
            passed.append(error)
            raise

    name, numbers = (task.strategy.name, task.strategy.parameters) if task.strategy is not None else ("", {})
    try:
        made = half.train(Learn(training, learn.coded), model, shared, state, task, numbers)
    except (StrategyError, TensorError, MemoryError):
        raise
    except Exception as error:
        if any(error is one for one in passed):
            raise
        raise StrategyError(f"The strategy {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Local):
        raise StrategyError(f"The strategy {name} returns {type(made).__name__} from train(), not Local.")
    return made


def _moved(before: Tensors, update: Update, sent: Mapping[str, object]) -> Tensors:
    """The values after ``update`` of the tensors that are not sent, float32."""
    return {name: before[name].astype(np.float32) + change for name, change in update.delta.items() if name not in sent}


def only(update: Update, sent: Mapping[str, object]) -> Update:
    """The update without what is not sent."""
    return _remade(update, {name: change for name, change in update.delta.items() if name in sent})


def with_score(update: Update, other: Update) -> Update:
    """The update with the other one's score on held-out data."""
    return update if other.held_out is None else _remade(update, update.delta, held_out=other)


def _remade(update: Update, delta: Tensors, *, held_out: Update | None = None, model: Manifest | None = None) -> Update:
    return Update(
        delta,
        update.examples,
        work=update.work,
        metrics=update.metrics,
        held_out=(held_out or update).held_out,
        model=model or update.model,
        copy=False,
    )


# ------------------------------------------------------------ which there are, and how a device trains by one


BUILT_IN: Mapping[str, DeviceStrategy] = MappingProxyType(
    {
        "scaffold": Scaffold(),
        "feddyn": FedDyn(),
        "ditto": Ditto(),
        "fedper": FedPer(),
        "fedbn": FedPer(),
        "fedrep": FedRep(),
        "error-feedback": ErrorFeedback(),
    }
)


@cache
def installed() -> Mapping[str, str]:
    """Strategies of which this device has its half: name -> version. Those of packages are imported."""
    found = {name: made.version for name, made in BUILT_IN.items()}
    for name, extension in extensions(GROUP).items():
        try:
            made = extension.load()
        except CannotLoad:
            continue
        found[name] = str(getattr(made, "version", extension.version))
    return MappingProxyType(found)


def half_of(strategy: TaskStrategy) -> DeviceStrategy:
    """The half that a task names. StrategyError where it is not here in that version."""
    made = BUILT_IN.get(strategy.name)
    if made is None:
        entry = provided_now(GROUP).get(strategy.name) or extensions(GROUP).get(strategy.name)
        try:
            made = None if entry is None else cast("DeviceStrategy", entry.load())
        except CannotLoad as error:
            raise StrategyError(f"The strategy {error}.") from None
        if made is not None and str(getattr(made, "version", entry.version if entry else "")) != strategy.version:
            made = None
    elif made.version != strategy.version:
        made = None
    if made is None:
        raise StrategyError(f"This device has no half of the strategy {strategy.name} {strategy.version}.")
    if reason := why_no_half(made):
        raise StrategyError(f"The strategy {strategy.name} cannot be used: {reason}.")
    return made


def keeps_of(name: str) -> Keeps:
    """What devices keep for the built-in strategy of this name; *nothing* where it is of a package."""
    made = BUILT_IN.get(name)
    return "nothing" if made is None else made.keeps


def lacks_half(name: str, version: str, have: Mapping[str, str]) -> str:
    """Why a device with these halves (name -> version) takes no part in a run with another one."""
    listed = ", ".join(f"{one} {its}" for one, its in sorted(have.items())) or "none"
    return f"the plan's strategy is {name} {version}, of which this device has no half (it has: {listed})"


def why_no_half(half: object) -> str:
    """Why an object is no device's half, as the end of a sentence; empty where it is one."""
    if not isinstance(half, DeviceStrategy):
        return f"its device is no object of a DeviceStrategy: {half!r:.80}"
    if half.keeps not in get_args(Keeps):
        return f"its half keeps {half.keeps!r}, not {', '.join(get_args(Keeps))}"
    names = half.shared if isinstance(half.shared, tuple) else (None,)
    if len(set(names)) < len(names) or not all(isinstance(one, str) and re.fullmatch(NAMES, one) for one in names):
        return f"its half has shared = {half.shared!r:.80}: write a tuple of names of small letters, digits and -"
    return ""


def train_by(half: DeviceStrategy, learn: Learn, checkpoint: Tensors, state: Tensors, task: Task) -> Local:
    """The half's training from ``checkpoint``, which has its shared tensors. The update that is returned has their
    changes too, and says that the model consists of all of these. StrategyError where it does not fit the task."""
    strategy = task.strategy
    if strategy is None:
        raise StrategyError("This task has no strategy.")
    model = of_model(checkpoint)
    sent = Manifest.of(model).select(task.averaged)
    have = {name for name in checkpoint if is_shared(name)}
    shared: dict[str, Tensors] = {}
    for name in half.shared:
        places = {shared_name(name, one): one for one in sent if shared_name(name, one) in have}
        shared[name] = {one: checkpoint[place] for place, one in places.items()}
        have -= places.keys()
    if have or not all(shared.values()):
        raise StrategyError(f"The checkpoint has other shared tensors than the strategy {strategy.name}.")
    made, it = _trained(half, learn, model, shared, state, task), f"The strategy {strategy.name}"
    sent.require(made.update.manifest, f"the update of the strategy {strategy.name}")
    if {name: one.keys() for name, one in made.shared.items()} != {name: one.keys() for name, one in shared.items()}:
        wanted = ", ".join(half.shared) or "none"
        raise StrategyError(f"{it} does not return a change of each of its shared tensors (it has: {wanted}).")
    changes = arrays({shared_name(name, one): made.shared[name][one] for name in half.shared for one in shared[name]})
    state = arrays(made.state)
    for name, array in {**changes, **state}.items():
        if array.dtype.kind not in "biuf":
            raise StrategyError(f"{it} gives {name}, which is no array of numbers.")
        if not np.isfinite(array).all():
            raise BadNumbers(f"{it} gives numbers in {name} that are not finite.")
    if half.keeps == "nothing" and state:
        raise StrategyError(f"{it} returns a state, and says that it keeps nothing.")
    size, most = sum(array.nbytes for array in state.values()), half.state_bytes(Manifest.of(model), task)
    if size > most:
        raise StrategyError(f"{it} has made {size:,} bytes to keep, and its state_bytes() says {most:,}.")
    whole = {**made.update.model, **{name: spec for name, spec in Manifest.of(checkpoint).items() if is_shared(name)}}
    update = _remade(made.update, {**made.update.delta, **changes}, model=Manifest(whole).in_file_order())
    return Local(update=update, state=state)
