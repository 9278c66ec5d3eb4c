"""A strategy, a whole algorithm in two halves, and the plan's section ``[strategy]`` that names one.

*decide*: from the plan's task and the small state, before a round, the rates and the work of the round's devices.
*combine*: from the round's updates, after it, the next model, named tensors and small state; by the plan's own rule and
server optimizer, or in place of them. Both are functions of their arguments: replicas and audits call them again.

A plan without the section has ``Strategy()``, which changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, ValidationError

from client_sdk.device.strategies import BUILT_IN, NAMES, DeviceStrategy, why_no_half
from client_sdk.protocol.devices import Task, TaskStrategy
from coordinator.engine.aggregation.combining import MEMORY, Blocks, Combine, Combined, Needs, Sources, Updates
from coordinator.engine.aggregation.optimizers import NO_BOUND, Reach
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, Settings, failures
from coordinator.engine.named_tensors import RULE, SERVER_OPTIMIZER, Small
from coordinator.engine.plan_section import Section

if TYPE_CHECKING:
    from coordinator.engine.aggregation.registry import Chosen
    from coordinator.engine.plan import Plan

RATES = ("learning_rate", "mu")
WORK = ("epochs", "steps")


class Strategy:
    """The base of all strategies: each method here changes nothing, and another one has only those that it needs.

    One object serves all runs, replicas and threads, so it has no state of its own: what lasts from round to round is
    the small state and the named tensors.
    """

    version = "1"
    parameters: Mapping[str, Parameter] = {}
    """Numbers that a plan may set, under ``strategy.parameters``."""
    needs: Needs = "sum"
    """Of the sources. *sum* is what the plan's rule needs. *whole*: single updates, ``sources.whole`` and ``blocks``;
    refused for masked rounds."""
    holds = 0
    """How many whole updates ``combine`` holds at once."""
    device: DeviceStrategy | None = None
    """The half that devices run, where they do more than train. Its shared tensors stand in the checkpoint as
    statistics (``client_sdk.tensors.manifest``), and move by the mean of what devices change them by."""

    def against(self, plan: Plan) -> str:
        """Why this plan cannot have the strategy, in a sentence; empty where it can."""
        return ""

    def keeps(self, settings: Settings) -> Mapping[str, tuple[float, ...]]:
        """Named tensors beside those of the server optimizer: name -> what each column begins with. A row for each
        value of a parameter."""
        return {}

    def decide(
        self, task: Task, version: int, small: Small, settings: Settings, device_class: str
    ) -> Mapping[str, float]:
        """What of ``task`` is another in a round that begins with this version: ``learning_rate`` and ``mu``, which
        are rounded to float32, and ``epochs`` or ``steps``, at most those of the task.

        ``small``: what the last ``combine`` left, empty at version 0. ``settings``: the plan's parameters.
        ``device_class``: what the device calls itself, for all devices of a masked round empty; work may hang on it,
        and nothing else should, since it is believed by nobody.
        """
        return {}

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
        """See ``combining.Combine``. ``settings``: the plan's parameters, and the round's ``server_learning_rate``,
        ``learning_rate`` and ``mu`` by the plan's schedule. ``usual``: the plan's rule and server optimizer. What it
        returns holds its own named tensors and small state, which are passed on beside those of the strategy."""
        return usual.combine(parent, sources, tensors, small, settings, seed)

    def reach(self, usual: Reach) -> Reach:
        """How far a round moves the model, where the plan's server optimizer moves it by ``usual``. Of one that
        combines by itself no bound is known."""
        return usual if type(self).combine is Strategy.combine else NO_BOUND


PLAIN = Strategy()


class StrategySection(Section):
    """The algorithm of the run, where it is more than a rule and a server optimizer."""

    name: str = Field(max_length=200)
    """*adaptive-mu*: FedProx whose mu follows the loss (Li et al. 2020, arXiv:1812.06127). *fednova*: each update over
    its number of steps (Wang et al. 2020, arXiv:2007.07481). *q-ffl*: fair, by the devices' losses (Li et al. 2020,
    arXiv:1905.10497). Those of which devices run a half: *scaffold* (arXiv:1910.06378) and *feddyn* (arXiv:2111.04263)
    against drift, *ditto* (arXiv:2012.04221), *fedper*, *fedbn* and *fedrep* for personal models,
    *error-feedback* (arXiv:1901.09847) for codecs that leave much out. Or a package's
    strategy, by ``package:name``. See docs/strategies.md."""
    version: str | None = Field(default=None, max_length=64)
    """Version of a package's strategy: required for one, refused for those that are built in."""
    devices: bool = False
    """Of a package's strategy: whether devices run a half of it, so that they must have the package too."""
    parameters: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers for the strategy. *adaptive-mu*: ``step`` (0.1), ``patience`` (5). *q-ffl*: ``q``.
    *scaffold*, *feddyn*: ``population``, how many devices there are. *ditto*: ``lambda``. *fedrep*: ``head_epochs``.
    *error-feedback*: ``momentum`` (0).
    ``parameters = { q = 1 }``"""

    @property
    def half(self) -> tuple[str, str] | None:
        """Name and version of the half that devices run; None: there is none."""
        if self.name in BUILT_IN:
            return self.name, BUILT_IN[self.name].version
        return (self.name, self.version or "") if self.devices else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a plan names, with every parameter set: a ``Combine``, and the tasks of devices."""

    usual: Chosen
    strategy: Strategy
    settings: Settings
    """The strategy's parameters."""

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the tensors that travel with the model, beside it."""
        return () if self.strategy.device is None else self.strategy.device.shared

    def local(self, section: StrategySection | None) -> TaskStrategy | None:
        """What a task says of the strategy; None where devices train as without one."""
        half = self.strategy.device
        if half is None or section is None or section.half is None:
            return None
        name, version = section.half
        return TaskStrategy(name=name, version=version, parameters=dict(self.settings), keeps=half.keeps)

    @property
    def needs(self) -> Needs:
        return self.usual.needs if self.strategy.needs == "sum" else self.strategy.needs

    @property
    def keeps(self) -> Mapping[str, tuple[float, ...]]:
        return {**self.usual.keeps, **self.strategy.keeps(self.settings)}

    def reason_against(self, goal: int, quorum: int, elements: int = 0) -> str:
        """See ``Chosen.reason_against``."""
        if (taken := 4 * elements * self.strategy.holds) > MEMORY:
            return (
                f"its strategy would take {taken:,} bytes of memory, more than {MEMORY:,}, for {self.strategy.holds} "
                f"whole updates of {elements:,} values"
            )
        return self.usual.reason_against(goal, quorum, elements)

    def task(self, plan: Plan, version: int, small: Small, device_class: str = "") -> Task:
        """The device's part of a round that begins with this version. ExtensionError where the strategy decides what
        it may not."""
        task = plan.task_at(version)
        if self.strategy is PLAIN:
            return task
        if (local := self.local(plan.strategy)) is not None:
            task = task.model_copy(update={"strategy": local})
        return _decided(self.strategy, task, version, small, self.settings, "" if plan.secure else device_class)

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
    ) -> Combined:
        """See ``Combine``."""
        if self.strategy is PLAIN:
            return self.usual.combine(parent, sources, tensors, small, settings, seed)
        if isinstance(sources, Updates):
            sources.holds, sources.sum_alone = self.strategy.holds, self.needs == "sum"
        given = {**self.settings, **settings}
        try:
            with failures("strategy of the plan", self.strategy):
                made = self.strategy.combine(parent, sources, tensors, small, given, seed, self.usual)
        finally:
            if isinstance(sources, Updates) and sources.failed is not None:
                raise sources.failed from None
        if not isinstance(made, Combined):
            raise ExtensionError(f"the strategy of the plan gives {type(made).__name__}, not Combined")
        if not isinstance(made.small, Mapping):
            raise ExtensionError(f"the strategy of the plan gives a small state that is no dict: {made.small!r:.80}")
        if made.tensors.keys() != (keeps := self.keeps).keys():
            gives, says = (", ".join(sorted(names)) or "none" for names in (made.tensors, keeps))
            raise ExtensionError(
                f"the strategy of the plan gives the named tensors {gives}, and keeps {says}: usual.combine() gives "
                "those of the rule and the server optimizer"
            )
        return made


def why_not(strategy: Strategy, plan: Plan, usual: Chosen, numbers: Settings) -> str:
    """Why this object cannot be the plan's strategy, as the end of a sentence; empty where it can."""
    if strategy.needs not in ("sum", "whole"):
        return f"it needs {strategy.needs!r:.80}, not sum or whole"
    if not isinstance(strategy.holds, int) or strategy.holds < 0:
        return f"it holds {strategy.holds!r:.80} whole updates: write a whole number"
    with failures("strategy of the plan", strategy):
        keeps = dict(strategy.keeps(numbers))
        for name, first in keeps.items():
            if not isinstance(name, str) or not re.fullmatch(NAMES, name) or name in (SERVER_OPTIMIZER, RULE):
                taken = f"and is not {SERVER_OPTIMIZER} or {RULE}"
                return f"it keeps {name!r:.80}: a name has small letters, digits and -, {taken}"
            if not isinstance(first, tuple) or not first or not np.isfinite(np.array(first, np.float32)).all():
                return f"its {name} begins with {first!r:.80}: write a tuple of numbers, one for each column"
        if strategy.device is not None and (reason := why_no_half(strategy.device)):
            return reason
        return str(strategy.against(plan))


def _decided(strategy: Strategy, task: Task, version: int, small: Small, settings: Settings, device_class: str) -> Task:
    with failures("strategy of the plan", strategy):
        changes = dict(strategy.decide(task, version, small, settings, device_class))
    if not changes:
        return task
    if unknown := sorted(changes.keys() - {*RATES, *WORK}):
        raise ExtensionError(f"the strategy decides {unknown[0]}: it may decide {', '.join((*RATES, *WORK))}")
    for name in WORK:
        most = getattr(task, name) or (1 if name == "epochs" and task.steps is None else None)
        if name in changes and (most is None or changes[name] > most):
            bound = f"more than the plan's {most}" if most is not None else f"and the plan says no {name}"
            raise ExtensionError(f"the strategy decides {name} = {changes[name]:g}, {bound}")
    rounded = {name: float(np.float32(value)) if name in RATES else value for name, value in changes.items()}
    try:
        return Task.model_validate(task.model_dump() | rounded)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ExtensionError(f"the strategy decides {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
