"""Local SGD against loops written out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Diverged, Learner, LearnerFailed, OutOfTime, PlainSGD, batch_order
from client_sdk.protocol.devices import Task
from client_sdk.tensors import digest, to_bytes

WHO = {"device": "d7", "round": 3}


def bits(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def by_hand(learner, start, data, task, optimizer=None):
    """The loop that a reader would write, with torch's own optimizer."""
    module = learner.load(start)
    module.train()
    x, y = (torch.from_numpy(array) for array in data)
    optimizer = (optimizer or torch.optim.SGD)(module.parameters(), lr=task.learning_rate)
    batches = batch_order(len(x), task.batch_size, seed=task.seed, **WHO)
    steps = task.steps or (task.epochs or 1) * -(-len(x) // task.batch_size)
    losses = []
    for rows in itertools.islice(batches, steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses += [loss.item()] * len(rows)
    after = learner.tensors(module)
    return {name: after[name] - start[name] for name in start}, float(np.mean(losses))


@pytest.mark.parametrize(
    "fields", [{}, {"epochs": 3}, {"steps": 7}, {"epochs": 2, "batch_size": 50}, {"batch_size": 1}]
)
def test_equals_a_loop_written_by_hand_bit_for_bit(learner, data, task, fields):
    start = learner.initial(0)
    wanted, loss = by_hand(learner, start, data, task(**fields))
    update = learner.train(start, data, task(**fields), **WHO)
    assert bits(update.delta) == bits(wanted)
    assert any(np.any(delta) for delta in wanted.values())
    assert update.metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert set(update.metrics) == {"loss"}


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adam, lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9)]
)
def test_any_torch_optimizer_can_be_used(data, task, learner, optimizer):
    other = Learner(model=learner.model, loss=learner.loss, optimizer=optimizer)
    start = learner.initial(0)
    wanted, _ = by_hand(other, start, data, task(epochs=2), optimizer)
    assert bits(other.train(start, data, task(epochs=2), **WHO).delta) == bits(wanted)


def test_mu_zero_is_fedavg_bit_for_bit_and_another_mu_is_not(learner, data, task):
    start = learner.initial(0)
    plain = learner.train(start, data, task(epochs=2), **WHO)
    zero = learner.train(start, data, task(epochs=2, mu=0.0), **WHO)
    pulled = learner.train(start, data, task(epochs=2, mu=1.0), **WHO)
    assert bits(plain.delta) == bits(zero.delta)
    assert bits(plain.delta) != bits(pulled.delta)
    size = {
        name: sum(float((d**2).sum()) for d in u.delta.values()) for name, u in (("plain", plain), ("pulled", pulled))
    }
    assert size["pulled"] < size["plain"]
    assert plain.metrics["loss"] < pulled.metrics["loss"]


class Number(nn.Module):
    """One weight w; its loss against targets t is the mean of (w - t)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x))


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).mean() / 2


QUADRATIC = Learner(model=Number, loss=half_square)
ONE = (np.zeros((1, 1), np.float32), np.full(1, 8.0, np.float32))


def test_proximal_gradient_on_a_quadratic_by_hand(task):
    # w0 = 0, t = 8, lr 1/4, mu 2.  Step 1: g = -8 + 2*0 = -8, w = 2.  Step 2: g = (2-8) + 2*2 = -2, w = 2.5.
    # Step 3: g = (2.5-8) + 2*2.5 = -0.5, w = 2.625.  It tends to t/(1+mu) = 8/3.
    received = {"w": np.float32(0.0).reshape(())}
    for steps, w in ((1, 2.0), (2, 2.5), (3, 2.625)):
        update = QUADRATIC.train(received, ONE, task(steps=steps, learning_rate=0.25, mu=2.0))
        assert update.delta["w"] == np.float32(w)
    assert QUADRATIC.train(received, ONE, task(steps=60, learning_rate=0.25, mu=2.0)).delta["w"] == pytest.approx(
        8 / 3, rel=1e-6
    )


def test_the_pull_is_towards_the_received_weights_not_towards_zero(task):
    received = {"w": np.float32(4.0).reshape(())}
    # Step 1: g = 4-8 = -4, w = 5.  Step 2: g = (5-8) + 2*(5-4) = -1, w = 5.25.
    assert QUADRATIC.train(received, ONE, task(steps=2, learning_rate=0.25, mu=2.0)).delta["w"] == np.float32(1.25)


def test_clipping_includes_the_proximal_term(task):
    received = {"w": np.float32(0.0).reshape(())}
    # As above, clipped to norm 3: step 1: g = -8 -> -3, w = 0.75. Step 2: g = -7.25 + 1.5 = -5.75 -> -3, w = 1.5.
    # Step 3: g = -6.5 + 3 = -3.5 -> -3, w = 2.25. Step 4: g = -5.75 + 4.5 = -1.25, not clipped, w = 2.5625.
    # Clipped before the term is added, step 2 would be g = -3 + 1.5.
    for steps, w in ((1, 0.75), (2, 1.5), (3, 2.25), (4, 2.5625)):
        update = QUADRATIC.train(received, ONE, task(steps=steps, learning_rate=0.25, mu=2.0, max_grad_norm=3.0))
        assert update.delta["w"] == np.float32(w)


def test_clipping_takes_models_of_float64():
    learner = Learner(model=lambda: nn.Linear(6, 3).double(), loss=nn.functional.cross_entropy)
    data = (np.ones((4, 6)), np.zeros(4, np.int64))
    start = learner.initial(0)
    update = learner.train(
        start, data, Task(learner="tests:wide", steps=1, learning_rate=1.0, max_grad_norm=0.01), **WHO
    )
    norm = np.sqrt(sum((delta.astype(np.float64) ** 2).sum() for delta in update.delta.values()))
    assert norm == pytest.approx(0.01, rel=1e-6)


def test_gradients_are_clipped_by_their_joint_norm(learner, data, task):
    start = learner.initial(0)
    update = learner.train(start, data, task(steps=1, max_grad_norm=0.01, learning_rate=1.0), **WHO)
    norm = np.sqrt(sum(float((d.astype(np.float64) ** 2).sum()) for d in update.delta.values()))
    assert norm == pytest.approx(0.01, rel=1e-4)
    free = learner.train(start, data, task(steps=1), **WHO)
    wide = learner.train(start, data, task(steps=1, max_grad_norm=1e6), **WHO)
    assert bits(free.delta) == bits(wide.delta)


class TwoRoads(nn.Module):
    """Only one of two weights takes part in a step: a in the first, b afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.a if self.calls == 1 else self.b).expand(len(x))


def test_a_weight_without_gradient_still_feels_the_proximal_term(task):
    received = {name: np.zeros((), np.float32) for name in "ab"}
    update = Learner(model=TwoRoads, loss=half_square).train(received, ONE, task(steps=2, learning_rate=0.25, mu=2.0))
    assert update.delta == {"a": np.float32(2 - 0.25 * 2 * 2), "b": np.float32(2)}


def test_steps_and_epochs_count_the_same_work(learner, data, task):
    start = learner.initial(0)
    epochs, steps = (learner.train(start, data, task(**fields), **WHO) for fields in ({"epochs": 2}, {"steps": 6}))
    assert bits(epochs.delta) == bits(steps.delta)
    assert epochs.work == steps.work
    assert epochs.work.model_dump() == {
        "steps": 6,
        "steps_planned": 6,
        "epochs": 2.0,
        "examples_seen": 42,
        "complete": True,
    }
    assert epochs.examples == 21
    cycled = learner.train(start, data, task(steps=4), **WHO).work
    assert (cycled.examples_seen, cycled.epochs) == (29, 29 / 21)
    assert learner.train(start, data, task(), **WHO).work.steps == 3


class Slow(nn.Module):
    """A model whose every step takes as many seconds of a made-up clock as it is told."""

    def __init__(self, clock: list[float], seconds: list[float]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.clock, self.seconds = clock, iter(seconds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock[0] += next(self.seconds)
        return self.layer(x)


def slow(seconds: list[float]) -> tuple[Learner, list[float]]:
    clock = [100.0]
    return Learner(model=lambda: Slow(clock, seconds), loss=nn.functional.cross_entropy), clock


@pytest.mark.parametrize(
    ("seconds", "budget_s", "steps"),
    [
        ([1.0] * 6, 3.5, 3),  # a fourth step would end at 4
        ([1.0] * 6, 4.0, 4),  # ends in time to the second
        ([1.0] * 6, 0.5, 1),  # nothing is known of the first step: it may begin
        ([1.0, 1.0, 3.0, 1.0, 1.0, 1.0], 7.0, 3),  # after a step of 3 s the 2 s left are too few
        ([2.0, 0.5, 0.5, 0.5, 0.5, 0.5], 4.0, 4),  # 0.5 s left at 3.5 s, and steps took 0.875 s on average
    ],
)
def test_stops_before_the_step_that_would_take_too_long(data, task, seconds, budget_s, steps):
    learner, clock = slow(seconds)
    update = learner.train(
        learner.initial(0), data, task(epochs=2, time_budget_s=budget_s), clock=lambda: clock[0], **WHO
    )
    assert update.work.steps == steps
    assert update.work.complete is False
    assert update.work.steps_planned == 6
    assert update.work.examples_seen == [0, 8, 16, 21, 29, 37, 42][steps]
    assert update.examples == 21


def test_partial_work_is_the_whole_work_cut_short(data, task):
    learner, clock = slow([1.0] * 12)
    start = learner.initial(0)
    cut = learner.train(start, data, task(epochs=2, time_budget_s=4.0), clock=lambda: clock[0], **WHO)
    learner, _ = slow([1.0] * 12)
    four = learner.train(start, data, task(steps=4), **WHO)
    assert bits(cut.delta) == bits(four.delta)
    assert four.work.complete
    assert not cut.work.complete


def test_deadline_is_asked_before_every_step(data, task):
    learner, clock = slow([1.0] * 6)
    update = learner.train(
        learner.initial(0), data, task(epochs=2), deadline=lambda: 102.5 - clock[0], clock=lambda: clock[0], **WHO
    )
    assert (update.work.steps, update.work.complete) == (2, False)


def test_no_time_for_one_step_is_an_error_not_a_zero_update(learner, data, task):
    with pytest.raises(OutOfTime, match="before one step"):
        learner.train(learner.initial(0), data, task(), deadline=lambda: -0.1, **WHO)


def test_enough_time_changes_nothing(learner, data, task):
    start = learner.initial(0)
    free = learner.train(start, data, task(epochs=2), **WHO)
    timed = learner.train(start, data, task(epochs=2, time_budget_s=3600.0), deadline=lambda: 3600.0, **WHO)
    assert bits(free.delta) == bits(timed.delta)
    assert timed.work.complete


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (1, "the data, or the model that was received, hold values that are not finite or too large.$"),
        (2, "try a smaller learning rate than 0.1"),
    ],
)
def test_loss_that_is_not_finite_names_step_and_loss(learner, data, task, step, says):
    """Before the first step no learning rate has done anything."""
    x, y = data
    x = x.copy()
    x[batch_row(task(), step)] = np.nan
    with pytest.raises(Diverged, match=f"^The loss at step {step} is nan: {says}"):
        learner.train(learner.initial(0), (x, y), task(), **WHO)


def batch_row(task, step):
    """A row that comes in that step of the first epoch."""
    return int(next(itertools.islice(batch_order(21, task.batch_size, seed=task.seed, **WHO), step - 1, None))[0])


def test_weights_that_overflow_in_the_last_step_are_refused(task):
    received = {"w": np.zeros((), np.float32)}
    steep = Learner(model=Number, loss=lambda outputs, targets: outputs.mean() * -1e36)
    with pytest.raises(Diverged, match="w holds numbers that are not finite"):
        steep.train(received, ONE, task(steps=1, learning_rate=1000.0), **WHO)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none"),
            r"shape \[8\].*one number",
        ),
        (lambda outputs, targets: 1.5, "a float: it must give a tensor"),
        (lambda outputs, targets: torch.tensor(1.0), "does not depend on any trained"),
        (lambda outputs, targets: outputs @ outputs, "at step 1, on a batch of 8: RuntimeError: "),
    ],
)
def test_what_a_loss_may_not_do(learner, data, task, loss, words):
    wrong = Learner(model=learner.model, loss=loss)
    with pytest.raises(LearnerFailed, match=words) as caught:
        wrong.train(wrong.initial(0), data, task(), **WHO)
    assert "\n" not in str(caught.value)


def test_plain_sgd_forgets_gradients_and_skips_untouched_weights():
    touched, untouched = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = PlainSGD([touched, untouched], lr=0.5)
    touched.grad = torch.tensor([2.0, 4.0])
    optimizer.step()
    optimizer.zero_grad()
    assert touched.tolist() == [0.0, -1.0]
    assert untouched.tolist() == [1.0, 1.0]
    assert touched.grad is None


def test_the_received_checkpoint_is_left_as_it_was(learner, data, task):
    start = learner.initial(0)
    before = digest(to_bytes(start))
    learner.train(start, data, task(epochs=2, mu=0.5), **WHO)
    assert digest(to_bytes(start)) == before


def test_a_read_only_checkpoint_will_do(learner, data, task):
    start = learner.initial(0)
    frozen = {name: array.copy() for name, array in start.items()}
    for array in frozen.values():
        array.setflags(write=False)
    assert bits(learner.train(frozen, data, task(), **WHO).delta) == bits(
        learner.train(start, data, task(), **WHO).delta
    )
