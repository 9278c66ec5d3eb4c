"""Strategies: what devices are told, what becomes of their updates, and what is refused before the first round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk.device.strategies import BUILT_IN, DeviceStrategy
from client_sdk.protocol.devices import Task
from coordinator.engine.aggregation.combining import Combined, Sources, Updates, flat
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter
from coordinator.engine.aggregation.registry import Installed, Registry
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.aggregation.strategy import Algorithm, Strategy
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from quorate.testing import DeviceStrategyContract, StrategyContract

GIVEN: Mapping[str, Mapping[str, float]] = {
    "q-ffl": {"q": 1.5},
    "scaffold": {"population": 9},
    "feddyn": {"population": 9},
    "ditto": {"lambda": 0.5},
    "fedrep": {"head_epochs": 2},
    "error-feedback": {"momentum": 0.9},
}
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "q-ffl": {"aggregation": {"weighting": "equal"}},
    "feddyn": {"task": {"mu": 0.1}},
    **{name: {"task": {"averaged": ["!head.*"]}} for name in ("fedper", "fedbn", "fedrep")},
    "error-feedback": {"task": {"codec": "sign@1"}},
}
for _name, _strategy in STRATEGIES.items():  # a new one is among them by itself
    _fields: dict[str, Any] = {"given": GIVEN.get(_name, {}), "__module__": __name__}
    _class = f"Test_{_name.replace('-', '_')}"
    _its = {**_fields, "strategy": _strategy, "sections": SECTIONS.get(_name, {})}
    globals()[_class] = type(_class, (StrategyContract,), _its)
    if (_half := _strategy.device) is not None:
        globals()[f"{_class}_half"] = type(f"{_class}_half", (DeviceStrategyContract,), {**_fields, "half": _half})


def test_each_half_of_a_device_belongs_to_a_strategy_of_its_name() -> None:
    halves = {name: one.device for name, one in STRATEGIES.items() if one.device is not None}
    assert {name: type(one) for name, one in halves.items()} == {name: type(one) for name, one in BUILT_IN.items()}


NUMBERS = {"server_learning_rate": 1.0, "learning_rate": 0.1, "mu": 0.0}
RNG = np.random.default_rng(7)
ROWS = RNG.standard_normal((5, 40), np.float32)
WEIGHTS = np.array([10, 3, 7, 1, 20], np.int64)
STEPS = (4.0, 9.0, 1.0, 2.0, 30.0)


def plan(strategy: Mapping[str, Any] | None = None, **sections: Any) -> Plan:
    named = {} if strategy is None else {"strategy": strategy}
    task = {"learner": "quorate:mnist-mlp", "learning_rate": 0.1, **sections.pop("task", {})}
    size = 100 if "secure" in sections else 5
    return Plan.parse({"name": "own", "task": task, "cohort": {"select": size, "goal": size}, **named, **sections})


def made_of(chosen: Algorithm, reports: list[dict[str, float]], small: Any = None, **numbers: float) -> Combined:
    """From a model of zeros, with 8 statistics behind 32 parameters."""
    updates = Updates.of(ROWS, 16, 32, WEIGHTS)
    updates.reports = reports
    before = np.zeros(40, np.float32)
    return chosen.combine(flat(before), updates, {}, small or {}, {**NUMBERS, **numbers}, b"seed")


def delta(made: Combined) -> Any:
    return np.concatenate([made.model.read(0, 32), made.model.read(32, 8)])


def mean_of_statistics() -> Any:
    return (WEIGHTS[:, None] * ROWS[:, 32:].astype(np.float64)).sum(0) / WEIGHTS.sum()


def test_a_plan_without_a_strategy_has_the_digest_of_before() -> None:
    assert "strategy" not in plan().written_out
    assert plan({"name": "fednova"}).digest != plan().digest


def test_fednova_is_equation_7() -> None:
    found = delta(made_of(algorithm(plan({"name": "fednova"})), [{"steps": one} for one in STEPS]))
    p, tau = WEIGHTS / WEIGHTS.sum(), np.array(STEPS)
    wanted = (p * tau).sum() * (p[:, None] * ROWS[:, :32].astype(np.float64) / tau[:, None]).sum(0)
    np.testing.assert_allclose(found[:32], wanted, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found[32:], mean_of_statistics(), rtol=1e-6)


def test_fednova_with_mu_counts_steps_as_the_papers_section_4() -> None:
    chosen = algorithm(plan({"name": "fednova"}, task={"mu": 0.5}))
    found = delta(made_of(chosen, [{"steps": one} for one in STEPS], mu=0.5))
    p, shrinks = WEIGHTS / WEIGHTS.sum(), 0.1 * 0.5
    tau = np.array([sum((1 - shrinks) ** k for k in range(int(one))) for one in STEPS])
    wanted = (p * tau).sum() * (p[:, None] * ROWS[:, :32].astype(np.float64) / tau[:, None]).sum(0)
    np.testing.assert_allclose(found[:32], wanted, rtol=2e-6, atol=1e-7)


def test_repro_steps_that_a_device_made_up_cost_fednova_no_time() -> None:
    chosen = algorithm(plan({"name": "fednova"}, task={"mu": 0.5}))
    found = delta(made_of(chosen, [{"steps": one} for one in (2.0**53, 4.0, 4.0, 4.0, 4.0)], mu=0.5))
    p, tau = WEIGHTS / WEIGHTS.sum(), np.array([20.0, *[sum(0.95**k for k in range(4))] * 4])
    wanted = (p * tau).sum() * (p[:, None] * ROWS[:, :32].astype(np.float64) / tau[:, None]).sum(0)
    np.testing.assert_allclose(found[:32], wanted, rtol=2e-6, atol=1e-7)


def test_fednova_of_equal_steps_is_the_mean() -> None:
    found = delta(made_of(algorithm(plan({"name": "fednova"})), [{"steps": 6.0}] * 5))
    usual = delta(made_of(algorithm(plan()), [{}] * 5))
    np.testing.assert_allclose(found, usual, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
def test_q_ffl_is_algorithm_2(q: float) -> None:
    losses = np.array([0.2, 1.5, 3.0, 0.01, 0.7])
    chosen = algorithm(plan({"name": "q-ffl", "parameters": {"q": q}}, aggregation={"weighting": "equal"}))
    found = delta(made_of(chosen, [{"loss": one} for one in losses]))
    steepness, own = 1 / 0.1, ROWS[:, :32].astype(np.float64)
    squares = (steepness**2) * (own**2).sum(1)
    h = q * losses ** (q - 1) * squares + steepness * losses**q
    wanted = ((losses**q)[:, None] * steepness * own).sum(0) / h.sum()
    np.testing.assert_allclose(found[:32], wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[32:], mean_of_statistics(), rtol=1e-6)


@pytest.mark.parametrize("q", [2.0, 100.0])
def test_repro_a_huge_loss_is_no_infinity_for_q_ffl(q: float) -> None:
    """The other devices hardly count beside it, but no round is lost to it."""
    chosen = algorithm(plan({"name": "q-ffl", "parameters": {"q": q}}, aggregation={"weighting": "equal"}))
    found = delta(made_of(chosen, [{"loss": one} for one in (1e308, 1.0, 0.0, 2.0, 3.0)]))
    np.testing.assert_allclose(found[:32], ROWS[0, :32], rtol=1e-5, atol=1e-5)


def test_the_order_of_updates_and_the_width_of_blocks_change_no_bit() -> None:
    for name, given, more in (("fednova", {}, {}), ("q-ffl", {"q": 1.5}, {"aggregation": {"weighting": "equal"}})):
        chosen = algorithm(plan({"name": name, "parameters": given}, **more))
        reports = [{"steps": steps, "loss": 0.1 * steps} for steps in STEPS]
        found = set()
        for width, order in ((1, [0, 1, 2, 3, 4]), (7, [4, 2, 0, 3, 1]), (40, [3, 1, 4, 0, 2])):
            updates = Updates.of(ROWS[order], width, 32, WEIGHTS[order])
            updates.reports = [reports[place] for place in order]
            made = chosen.combine(flat(np.zeros(40, np.float32)), updates, {}, {}, NUMBERS, b"")
            found.add(delta(made).tobytes())
        assert len(found) == 1, name


def test_adaptive_mu_rises_with_the_loss_and_falls_after_five_falls() -> None:
    """Li et al. 2020, section 5.3.2: by 0.1 up when the loss rises, and down after five falls in a row."""
    whole = plan({"name": "adaptive-mu"}, task={"mu": 0.1})
    chosen, small, told = algorithm(whole), {}, []
    losses = [2.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4]
    for version, loss in enumerate(losses):
        told.append(round(chosen.task(whole, version, small).mu, 6))
        small = dict(made_of(chosen, [{"loss": loss}] * 5, small, mu=0.1).small)
    assert told == [0.1, 0.1, *[0.2] * 5, 0.1, 0.1, *[0.2] * 5, *[0.1] * 5, 0.0]


@pytest.mark.parametrize(
    ("first", "losses", "wanted"),
    [
        (0.0, [9, 8, 7, 6, 5, 4, 3, 4], [0.0] * 8 + [0.1]),
        (0.3, [9, 8, 7, 6, 5, 5, 4, 3], [0.3] * 9),
        (0.05, [9, 8, 7, 6, 5, 4, 5], [0.05] * 6 + [0.0, 0.1]),
    ],
)
def test_adaptive_mu_is_never_below_0_and_a_loss_that_stays_is_no_fall(
    first: float, losses: list[float], wanted: list[float]
) -> None:
    """What would be below 0 is not owed: the next rise is by a whole step."""
    whole = plan({"name": "adaptive-mu"}, task={"mu": first})
    chosen, small, told = algorithm(whole), {}, [first]
    for version, loss in enumerate(losses, 1):
        small = dict(made_of(chosen, [{"loss": float(loss)}] * 5, small, mu=first).small)
        told.append(round(chosen.task(whole, version, small).mu, 6))
    assert told == wanted


def test_feddyns_server_counts_the_devices_of_a_round_among_all() -> None:
    """Algorithm 1 with 5 of 20 devices: h <- h - alpha / m sum_k (w_k - w), and w <- mean_k w_k - h / alpha."""
    given = {"name": "feddyn", "parameters": {"population": 20}}
    chosen = algorithm(plan(given, task={"mu": 0.25}, aggregation={"weighting": "equal"}))
    before = np.linspace(-1, 1, 32, dtype=np.float32)
    updates = Updates.of(ROWS, 16, 32)
    made = chosen.combine(
        flat(np.zeros(40, np.float32)), updates, {"h": flat(before[:, None])}, {}, {**NUMBERS, "mu": 0.25}, b"seed"
    )
    own = ROWS[:, :32].astype(np.float64)
    h = before - 0.25 / 20 * own.sum(0)
    np.testing.assert_allclose(made.tensors["h"].read(0, 32)[:, 0], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(delta(made)[:32], own.mean(0) - h / 0.25, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(delta(made)[32:], ROWS[:, 32:].astype(np.float64).mean(0), rtol=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_q_ffl_of_a_loss_of_0_is_that_of_the_authors_code(q: float) -> None:
    """They add 1e-10 to each loss, of which powers may be negative."""
    losses = np.array([0.0, 1.5, 0.0, 0.01, 0.7])
    chosen = algorithm(plan({"name": "q-ffl", "parameters": {"q": q}}, aggregation={"weighting": "equal"}))
    found = delta(made_of(chosen, [{"loss": one} for one in losses]))
    own, losses = ROWS[:, :32].astype(np.float64), losses + 1e-10
    h = q * losses ** (q - 1) * 100 * (own**2).sum(1) + 10 * losses**q
    np.testing.assert_allclose(found[:32], ((losses**q)[:, None] * 10 * own).sum(0) / h.sum(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("rate", "refused"), [(0.5, False), (1.0, True), (1.5, True)])
def test_fednova_refuses_a_mu_by_which_no_step_would_count(rate: float, refused: bool) -> None:
    chosen = algorithm(plan({"name": "fednova"}, task={"mu": 1.0}))
    reports = [{"steps": one} for one in STEPS]
    if refused:
        with pytest.raises(ExtensionError, match="fednova needs less than 1"):
            made_of(chosen, reports, mu=1.0, learning_rate=rate)
    else:
        assert np.isfinite(delta(made_of(chosen, reports, mu=1.0, learning_rate=rate))).all()


def test_adaptive_mu_takes_the_mean_by_weights_and_skips_a_round_without_losses() -> None:
    chosen = algorithm(plan({"name": "adaptive-mu"}))
    made = made_of(chosen, [{"loss": 1.0}, {"loss": 2.0}, {}, {"loss": 4.0}, {}])
    assert made.small["loss"] == (10 * 1.0 + 3 * 2.0 + 1 * 4.0) / 14
    assert made_of(chosen, [{}] * 5, made.small).small == made.small


def test_repro_a_huge_loss_is_no_infinity_for_adaptive_mu() -> None:
    made = made_of(algorithm(plan({"name": "adaptive-mu"})), [{"loss": 1e308}] * 2 + [{}] * 3)
    assert made.small["loss"] == 1e308


class Own(Strategy):
    """Half the rate for phones, and as many epochs as its parameter says; counts its rounds; keeps the last mean."""

    version = "3"
    parameters: Mapping[str, Parameter] = {"work": Parameter(meaning="epochs", default=1, least=0, below=100)}

    def keeps(self, settings: Any) -> Mapping[str, tuple[float, ...]]:
        return {"last": (0.0,)}

    def decide(self, task: Task, version: int, small: Any, settings: Any, device_class: str) -> Mapping[str, float]:
        rate = task.learning_rate / (2 if device_class == "phone" else 1)
        return {"learning_rate": rate, "epochs": settings["work"]}

    def combine(
        self, parent: Any, sources: Sources, tensors: Any, small: Any, settings: Any, seed: bytes, usual: Any
    ) -> Combined:
        made = usual.combine(parent, sources, tensors, small, settings, seed)
        return made._replace(small={**made.small, "rounds": small.get("rounds", 0) + 1})


OWN = Registry(strategies={"lab:own": Installed("3", Own())})


def own(work: float = 1, **sections: Any) -> Plan:
    named = {"name": "lab:own", "version": "3", "parameters": {"work": work}}
    return plan(named, task={"epochs": 3}, **sections)


def test_a_package_decides_rates_and_less_work_by_class() -> None:
    whole = own(2)
    chosen = algorithm(whole, OWN)
    phone, other = chosen.task(whole, 0, {}, "phone"), chosen.task(whole, 0, {}, "server")
    assert (phone.learning_rate, phone.epochs) == (float(np.float32(0.05)), 2)
    assert (other.learning_rate, other.epochs) == (float(np.float32(0.1)), 2)
    assert phone.model_copy(update={"learning_rate": other.learning_rate}) == other
    assert chosen.keeps == {"last": (0.0,)}


@pytest.mark.parametrize(
    ("task", "decides"), [({"epochs": 3}, {"epochs": 3}), ({"steps": 7}, {"steps": 7}), ({}, {"epochs": 1})]
)
def test_all_of_the_plans_work_may_be_decided(task: dict[str, int], decides: dict[str, int]) -> None:
    class All(Strategy):
        def decide(self, *_: Any) -> Mapping[str, float]:
            return decides

    registry = Registry(strategies={"lab:all": Installed("1", All())})
    whole = plan({"name": "lab:all", "version": "1"}, task=task)
    found = algorithm(whole, registry).task(whole, 0, {})
    assert {name: getattr(found, name) for name in decides} == decides


def test_the_devices_of_a_masked_round_have_one_task() -> None:
    whole = own(secure={"max_norm": 1.0, "max_abs": 0.25}, aggregation={"partial": "refuse", "weighting": "equal"})
    chosen = algorithm(whole, OWN)
    assert chosen.task(whole, 0, {}, "phone") == chosen.task(whole, 0, {}, "server")


@pytest.mark.parametrize(
    ("changes", "against"),
    [
        ({"epochs": 4}, "the strategy decides epochs = 4, more than the plan's 3"),
        ({"steps": 4}, "the strategy decides steps = 4, and the plan says no steps"),
        ({"epochs": 0}, "the strategy decides epochs: Input should be greater than or equal to 1"),
        ({"epochs": 1.5}, "the strategy decides epochs: Input should be a valid integer"),
        ({"mu": math.nan}, "the strategy decides mu: Input should be a finite number"),
        ({"learning_rate": 0}, "the strategy decides learning_rate: Input should be greater than 0"),
        ({"seed": 1}, "the strategy decides seed: it may decide learning_rate, mu, epochs, steps"),
    ],
)
def test_a_strategy_stays_inside_the_plan(changes: dict[str, float], against: str) -> None:
    class Wrong(Strategy):
        def decide(self, *_: Any) -> Mapping[str, float]:
            return changes

    registry = Registry(strategies={"lab:wrong": Installed("1", Wrong())})
    named = {"name": "lab:wrong", "version": "1"}
    with pytest.raises(PlanError, match="lab:wrong does not go with this plan: " + against):
        algorithm(plan(named, task={"epochs": 3}), registry)


@pytest.mark.parametrize(
    ("sections", "against"),
    [
        ({"strategy": {"name": "no-such"}}, "there is no strategy 'no-such'; there are adaptive-mu, fednova, q-ffl"),
        ({"strategy": {"name": "lab:none", "version": "1"}}, "the strategy lab:none 1 is not installed here"),
        ({"strategy": {"name": "lab:own"}}, 'set version = "3"'),
        ({"strategy": {"name": "lab:own", "version": "2"}}, "is installed in version 3, not 2"),
        ({"strategy": {"name": "fednova", "version": "1"}}, "fednova is built in: leave its version out"),
        ({"strategy": {"name": "q-ffl"}}, "q-ffl needs q, a number from 0"),
        ({"strategy": {"name": "q-ffl", "parameters": {"q": 1}}}, 'set aggregation.weighting = "equal"'),
        ({"strategy": {"name": "fednova"}, "aggregation": {"rule": "median", "weighting": "equal"}}, "makes the delta"),
        ({"strategy": {"name": "fedbn"}}, 'write averaged = ["!head.*"] for instance'),
        ({"strategy": {"name": "error-feedback"}}, "the codec float32@1 leaves nothing out: set task.codec"),
        (
            {
                "strategy": {"name": "error-feedback"},
                "secure": {"max_norm": 1.0, "max_abs": 0.25},
                "aggregation": {"partial": "refuse"},
                "task": {"codec": "rotated@1"},
            },
            "leave [secure] out",
        ),
        (
            {"strategy": {"name": "adaptive-mu"}, "schedule": {"mu": {"shape": "linear"}}, "task": {"mu": 1.0}},
            "schedule.mu and it would both set mu",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence_before_the_first_round(
    sections: dict[str, Any], against: str
) -> None:
    with pytest.raises(PlanError) as error:
        algorithm(plan(sections.pop("strategy"), **sections), OWN)
    assert against in str(error.value)


@pytest.mark.parametrize("name", ["adaptive-mu", "fednova"])
def test_a_masked_round_gives_no_single_updates(name: str) -> None:
    masked = {"secure": {"max_norm": 1.0, "max_abs": 0.25}, "aggregation": {"partial": "refuse"}}
    with pytest.raises(PlanError, match="which nobody sees in a masked round"):
        algorithm(plan({"name": name}, **masked))


def test_a_strategy_that_fails_says_so_and_what_a_report_lacks_is_named() -> None:
    class Failing(Strategy):
        def combine(self, *_: Any) -> Combined:
            raise KeyError("mine")

    registry = Registry(strategies={"lab:fails": Installed("1", Failing())})
    with pytest.raises(ExtensionError, match="the strategy of the plan failed: KeyError: 'mine'"):
        made_of(algorithm(plan({"name": "lab:fails", "version": "1"}), registry), [{}] * 5)
    with pytest.raises(ExtensionError, match="says no number of steps"):
        made_of(algorithm(plan({"name": "fednova"})), [{}] * 5)


def test_a_strategy_that_holds_too_much_for_a_model_is_refused() -> None:
    class Large(Strategy):
        needs = "whole"
        holds = 40

    registry = Registry(strategies={"lab:large": Installed("1", Large())})
    chosen = algorithm(plan({"name": "lab:large", "version": "1"}), registry)
    assert "for 40 whole updates of 10,000,000 values" in chosen.reason_against(5, 4, 10_000_000)
    assert not chosen.reason_against(5, 4, 1_000_000)


class Half(DeviceStrategy):
    """One that a test changes."""


def object_of(**parts: Any) -> Strategy:
    made = type("Own", (Strategy,), parts)()
    assert isinstance(made, Strategy)
    return made


def half(**parts: Any) -> DeviceStrategy:
    made = type("OwnHalf", (DeviceStrategy,), parts)()
    assert isinstance(made, DeviceStrategy)
    return made


def keeping(names: Any) -> Any:
    return lambda self, settings: names


@pytest.mark.parametrize(
    ("strategy", "against"),
    [
        (object_of(needs="everything"), "it needs 'everything', not sum or whole"),
        (object_of(holds=-1), "it holds -1 whole updates: write a whole number"),
        (object_of(keeps=keeping({"server-optimizer": (0.0,)})), "it keeps 'server-optimizer': a name has small"),
        (object_of(keeps=keeping({"rule": (0.0,)})), "it keeps 'rule': a name has small letters"),
        (object_of(keeps=keeping({"m/../x": (0.0,)})), "it keeps 'm/../x': a name has small letters"),
        (object_of(keeps=keeping({"m": 0.0})), "its m begins with 0.0: write a tuple of numbers, one for each column"),
        (object_of(keeps=keeping({"m": ()})), "its m begins with (): write a tuple"),
        (object_of(keeps=keeping({"m": (math.inf,)})), "its m begins with (inf,): write a tuple"),
        (object_of(keeps=keeping(None)), "the strategy of the plan failed: TypeError: 'NoneType' object is not"),
        (object_of(against=lambda self, plan: 1 / 0), "the strategy of the plan failed: ZeroDivisionError"),
        (object_of(device=Half), "its device is no object of a DeviceStrategy"),
        (object_of(device=half(keeps="always")), "its half keeps 'always', not nothing, trained, committed"),
        (object_of(device=half(shared="cd")), "its half has shared = 'cd': write a tuple of names"),
        (object_of(device=half(shared=("c/d",))), "its half has shared = ('c/d',): write a tuple of names"),
        (object_of(device=half(shared=("c", "c"))), "its half has shared = ('c', 'c'): write a tuple of names"),
    ],
)
def test_an_object_that_is_no_strategy_is_refused_in_a_sentence_before_the_first_round(
    strategy: Strategy, against: str
) -> None:
    named = {"name": "lab:own", "version": "1", "devices": strategy.device is not None}
    with pytest.raises(PlanError) as error:
        algorithm(plan(named), Registry(strategies={"lab:own": Installed("1", strategy)}))
    assert str(error.value).startswith(f"strategy.name: lab:own does not go with this plan: {against}")
    assert "\n" not in str(error.value)


def usually(change: Callable[[Combined], Any]) -> Any:
    """A ``combine`` that changes what the usual one gives."""
    return lambda self, parent, sources, tensors, small, settings, seed, usual: change(
        usual.combine(parent, sources, tensors, small, settings, seed)
    )


class Counting(Strategy):
    def __init__(self) -> None:
        self.rounds = 0

    def combine(self, *given: Any) -> Combined:
        self.rounds += 1
        return super().combine(*given)


def reading(read: Callable[[Updates], Any]) -> Any:
    def combine(self: Any, parent: Any, sources: Any, *more: Any) -> Any:
        return read(sources)

    return combine


@pytest.mark.parametrize(
    ("strategy", "against"),
    [
        (object_of(combine=usually(lambda made: None)), "gives NoneType, not Combined"),
        (
            object_of(combine=usually(lambda made: made._replace(tensors={"m": made.model}))),
            "tensors m, and keeps none",
        ),
        (object_of(keeps=keeping({"m": (0.0,)})), "gives the named tensors none, and keeps m"),
        (object_of(combine=usually(lambda made: made._replace(small=[1]))), r"a small state that is no dict: \[1\]"),
        (Counting(), "has changed its own rounds: it must keep nothing itself"),
        (object_of(combine=reading(lambda one: next(one.blocks()))), 'single updates: it must say needs = "whole"'),
        (object_of(combine=reading(lambda one: one.whole(0))), 'single updates: it must say needs = "whole"'),
        (object_of(combine=reading(lambda one: one.sum([1] * 5))), 'single updates: it must say needs = "whole"'),
        (
            object_of(needs="whole", holds=1, combine=reading(lambda one: [one.whole(0), one.whole(1)])),
            "more whole updates are held at once than is said, holds = 1",
        ),
    ],
)
def test_a_strategy_that_gives_what_is_no_round_is_named(strategy: Strategy, against: str) -> None:
    chosen = algorithm(
        plan({"name": "lab:own", "version": "1"}), Registry(strategies={"lab:own": Installed("1", strategy)})
    )
    with pytest.raises(ExtensionError, match=against):
        made_of(chosen, [{}] * 5)
