"""The built-in strategies, in closed form. They keep no named tensors, and read what devices report of their training.

``loss`` is the mean over a device's training batches: the papers take the loss of the received model, which would cost
devices a pass over their data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, localcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np

from client_sdk.codecs import get as get_codec
from client_sdk.device import strategies as local
from client_sdk.metrics import Tally
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Float32
from client_sdk.tensors.manifest import is_shared
from coordinator.engine.aggregation.combining import (
    Blocks,
    Combine,
    Combined,
    Computed,
    Float64,
    Needs,
    Sources,
    Updates,
    norms,
)
from coordinator.engine.aggregation.layerwise import whole_power
from coordinator.engine.aggregation.optimizers import Reach
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, Settings
from coordinator.engine.aggregation.robust import whole_weights
from coordinator.engine.aggregation.strategy import Strategy
from coordinator.engine.named_tensors import Small

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan

_POPULATION = Parameter(meaning="how many devices the run has in all", least=1, below=2**31, whole=True)
_TINY = 1e-10
"""What the authors of q-FFL add to a loss, whose powers may be negative."""


class AdaptiveMu(Strategy):
    """FedProx whose mu follows the loss, as in the experiments of Li et al. 2020 (arXiv:1812.06127, section 5.3.2): it
    rises by ``step`` when the loss rises, and falls by ``step``, to 0 at the least, when the loss has fallen in
    ``patience`` rounds in a row; then the count of these begins anew. It begins with ``task.mu``.

    The loss of a round is the mean over its updates by their weights. A round in which nobody reported one changes
    nothing.
    """

    parameters: Mapping[str, Parameter] = {
        "step": Parameter(meaning="by how much mu rises and falls", default=0.1, least=0, below=1000),
        "patience": Parameter(meaning="rounds of a falling loss", default=5, least=1, below=10_000, whole=True),
    }

    def against(self, plan: Plan) -> str:
        if plan.secure is not None:
            return "it reads the losses of single devices, which nobody sees in a masked round"
        return "schedule.mu and it would both set mu" if plan.schedule is not None and plan.schedule.mu else ""

    def decide(
        self, task: Task, version: int, small: Small, settings: Settings, device_class: str
    ) -> Mapping[str, float]:
        return {"mu": min(1000.0, small.get("mu", task.mu))}

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
        usual: Combine,
    ) -> Combined:
        made = usual.combine(parent, sources, tensors, small, settings, seed)
        losses = sources.reported("loss")
        known = np.isfinite(losses)
        if not known.any():
            return made
        reported = zip(losses[known].tolist(), sources.weights[known].tolist(), strict=True)
        loss = Tally.total(({"loss": one}, weight, {}) for one, weight in reported).means()["loss"]
        mu, before = small.get("mu", settings["mu"]), small.get("loss")
        falls = small.get("falls", 0) + 1 if before is not None and loss < before else 0
        if before is not None and loss > before:
            mu += settings["step"]
        elif falls == settings["patience"]:
            mu, falls = max(0.0, mu - settings["step"]), 0
        return made._replace(small={**made.small, "mu": round(mu, 12), "falls": falls, "loss": loss})


class FedNova(Strategy):
    """FedNova (Wang et al. 2020, arXiv:2007.07481, equation 7 with SGD on the devices): the delta is

        tau * sum_k p_k delta_k / tau_k,    tau = sum_k p_k tau_k

    with p_k the weight of a device over that of all, and tau_k its steps; with FedProx's mu and the learning rate eta
    (section 4) tau_k is (1 - (1 - eta mu)^steps) / (eta mu). So devices that make more steps than others do not draw
    the model towards their own minimum. Statistics get the plain mean.
    """

    needs: Needs = "whole"

    def against(self, plan: Plan) -> str:
        if plan.aggregation.rule != "mean":
            return 'it makes the delta itself: leave aggregation.rule at "mean"'
        return ""

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
        usual: Combine,
    ) -> Combined:
        steps = sources.reported("steps")
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise ExtensionError("an update says no number of steps, which fednova needs")
        shrinks = settings["learning_rate"] * settings["mu"]
        if shrinks >= 1:
            raise ExtensionError(f"learning_rate times mu is {shrinks:g}: fednova needs less than 1")
        tau = np.array([_geometric(int(one), shrinks) for one in steps]) if shrinks else steps
        shares = sources.weights / int(sources.weights.sum())
        by_step = shares / tau
        return usual.combine(parent, _Scaled(sources, by_step, math.fsum(shares * tau)), tensors, small, settings, seed)


class QFFL(Strategy):
    """q-FFL by q-FedAvg (Li et al. 2020, arXiv:1905.10497, algorithm 2), for a fairer distribution of losses. With L
    the inverse of the devices' learning rate, F_k a device's loss and delta_k its update, the delta is

        sum_k F_k^q L delta_k / sum_k (q F_k^(q-1) |L delta_k|^2 + L F_k^q)

    Devices count alike, whatever their examples. With ``q`` = 0 this is the mean; the larger it is, the more the
    devices of large losses count. Statistics get the plain mean.
    """

    needs: Needs = "whole"
    parameters: Mapping[str, Parameter] = {
        "q": Parameter(meaning="how much large losses count; 0: the mean", least=0, below=101)
    }

    def against(self, plan: Plan) -> str:
        if plan.aggregation.rule != "mean":
            return 'it makes the delta itself: leave aggregation.rule at "mean"'
        if plan.weighting != "equal":
            return 'it weighs devices by their losses alone: set aggregation.weighting = "equal"'
        if plan.buffered is not None:
            return "it weighs devices by their losses alone, however stale these are: leave [buffered] out"
        return ""

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
        usual: Combine,
    ) -> Combined:
        losses, q, steepness = sources.reported("loss"), settings["q"], 1 / settings["learning_rate"]
        if not (np.isfinite(losses).all() and (losses >= 0).all()):
            raise ExtensionError("an update says no loss from 0 up, which q-ffl needs")
        powers, slopes = _powers(losses + _TINY, q)
        squares = (steepness * norms(sources)) ** 2
        total = math.fsum(q * slopes * squares + steepness * powers)
        return usual.combine(parent, _Scaled(sources, steepness * powers, 1 / total), tensors, small, settings, seed)


# ------------------------------------------------------------ those of which devices run a half


class Scaffold(Strategy):
    """SCAFFOLD: see the device's half. The control variate of all moves by |S| / N times the mean of what the devices
    S of N change theirs by; the model moves by the plan's server optimizer, of which the paper's is *average*."""

    device = local.BUILT_IN["scaffold"]
    parameters: Mapping[str, Parameter] = {"population": _POPULATION}

    def against(self, plan: Plan) -> str:
        return _against_mean(plan) or _against_population(plan)

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
        usual: Combine,
    ) -> Combined:
        places = [place for name, place in sources.tensors.slices().items() if is_shared(name)]
        first, share = min((place.start for place in places), default=0), np.float32(sources.count)
        share /= np.float32(settings["population"])

        def moved(found: Float32, start: int) -> Float32:
            in_shared = start >= first and any(place.start <= start < place.stop for place in places)
            return found * share if in_shared else found

        return usual.combine(parent, _Changed(sources, moved), tensors, small, settings, seed)

    def reach(self, usual: Reach) -> Reach:
        return usual


class FedDyn(Strategy):
    """FedDyn: see the device's half. With m devices in all and the mean change of the devices P of a round,

    h <- h - mu (|P| / m) mean,    model <- model + mean - h / mu
    """

    device = local.BUILT_IN["feddyn"]
    parameters: Mapping[str, Parameter] = {"population": _POPULATION}

    def against(self, plan: Plan) -> str:
        if plan.schedule is not None and plan.schedule.mu:
            return "its alpha, task.mu, is the same in all rounds: leave schedule.mu out"
        if not plan.task.mu:
            return "task.mu is its alpha: set it, to 0.01 for instance"
        return _against_mean(plan) or _against_population(plan)

    def keeps(self, settings: Settings) -> Mapping[str, tuple[float, ...]]:
        return {"h": (0.0,)}

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
        usual: Combine,
    ) -> Combined:
        mean, mu = sources.sum(), np.float32(settings["mu"])
        share = mu * np.float32(sources.count / settings["population"])

        def h(start: int, count: int) -> Float32:
            before = tensors["h"].read(start, count)
            found: Float32 = before - share * mean.read(start, count).reshape(before.shape)
            return found

        def moved(found: Float32, start: int) -> Float32:
            return found - h(start, len(found)).reshape(-1) / mu if start < sources.parameters else found

        rest = {name: one for name, one in tensors.items() if name != "h"}
        made = usual.combine(parent, _Changed(sources, moved), rest, small, settings, seed)
        return made._replace(tensors={**made.tensors, "h": Computed(h)})


class Ditto(Strategy):
    """Ditto: its work is done on devices, and the server's half is as without a strategy."""

    device = local.BUILT_IN["ditto"]
    parameters: Mapping[str, Parameter] = {
        "lambda": Parameter(meaning="how strongly a device's own model is drawn to that of all", least=0, below=1001)
    }


class FedPer(Strategy):
    """FedPer and FedBN: devices keep the tensors that ``task.averaged`` leaves out."""

    device = local.BUILT_IN["fedper"]

    def against(self, plan: Plan) -> str:
        if plan.task.averaged == ("*",):
            return 'its devices keep what task.averaged leaves out: write averaged = ["!head.*"] for instance'
        return ""


class FedRep(FedPer):
    """FedRep: devices train what they keep first, for ``head_epochs`` passes."""

    device = local.BUILT_IN["fedrep"]
    parameters: Mapping[str, Parameter] = {
        "head_epochs": Parameter(
            meaning="passes in which a device trains its own part alone", default=1, least=1, below=10_000, whole=True
        )
    }


class ErrorFeedback(Strategy):
    """Error feedback: devices add what the codec leaves out of an update to their next one."""

    device = local.BUILT_IN["error-feedback"]
    parameters: Mapping[str, Parameter] = {
        "momentum": Parameter(meaning="of a device's own updates; 0: none", default=0, least=0, below=1)
    }

    def against(self, plan: Plan) -> str:
        if plan.secure is not None:
            return "what the masks' rounding leaves out is known after training alone: leave [secure] out"
        if get_codec(plan.task.codec).lossless:
            return f"the codec {plan.task.codec} leaves nothing out: set task.codec, to top-tenth@1 for instance"
        return ""


_FEDPER = FedPer()
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "adaptive-mu": AdaptiveMu(),
        "fednova": FedNova(),
        "q-ffl": QFFL(),
        "scaffold": Scaffold(),
        "feddyn": FedDyn(),
        "ditto": Ditto(),
        "fedper": _FEDPER,
        "fedbn": _FEDPER,
        "fedrep": FedRep(),
        "error-feedback": ErrorFeedback(),
    }
)


# ------------------------------------------------------------ inside


class _Scaled(Sources):
    """Sources whose sum of parameters is ``factor`` * sum_k shares_k update_k. That of statistics stays."""

    def __init__(self, sources: Sources, shares: Float64, factor: float) -> None:
        total = math.fsum(shares)
        parts = shares / total
        updates = cast("Updates", sources)
        by = whole_weights(parts, math.fsum(parts * norms(sources)))
        mean, scale = updates.sum(by, updates.weights), np.float32(factor * total)

        def read(start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            found = mean.read(start, count)
            return found * scale if start < updates.parameters else found

        super().__init__(lambda: Computed(read), updates.tensors, updates.parameters)
        self.weights = updates.weights


class _Changed(Sources):
    """Sources whose sum is changed block by block. ``change``: the block, and where it begins -> the block."""

    def __init__(self, sources: Sources, change: Callable[[Float32, int], Float32]) -> None:
        mean = sources.sum()

        def read(start: int, count: int) -> Float32:
            return change(mean.read(start, count), start)

        super().__init__(lambda: Computed(read), sources.tensors, sources.parameters, sources.count)
        self.weights = sources.weights


def _against_mean(plan: Plan) -> str:
    return "" if plan.aggregation.rule == "mean" else 'it takes the mean of updates: leave aggregation.rule at "mean"'


def _against_population(plan: Plan) -> str:
    said = plan.strategy.parameters.get("population") if plan.strategy is not None else None
    if said is not None and said < plan.cohort.goal:
        return f"its population ({said:g}) is below cohort.goal ({plan.cohort.goal})"
    return ""


def _geometric(steps: int, shrinks: float) -> float:
    """(1 - (1 - shrinks)^steps) / shrinks. A device says any number of steps, so their powers cost its bits alone."""
    return (1 - whole_power(1 - shrinks, steps)) / shrinks


def _powers(losses: Float64, q: float) -> tuple[Float64, Float64]:
    """F^q and F^(q - 1) of each loss, both over the largest F^q, which the delta does not depend on: one device's loss
    of 1e200 is no infinity. In decimal arithmetic of 40 digits, rounded once: the same bits on every machine."""
    with localcontext(Context(prec=40, traps=[])):
        exponent, bases = Decimal(q), [Decimal(one) for one in losses]
        most = max(bases) ** exponent
        found = [[float(base**one / most) for base in bases] for one in (exponent, exponent - 1)]
    return np.array(found[0]), np.array(found[1])
