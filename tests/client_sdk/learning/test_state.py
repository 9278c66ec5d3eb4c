"""Checkpoints to models and back: names, number types, tied weights, buffers, subsets, mismatches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import CheckpointMismatch, Learner, LearnerFailed, batch_order
from client_sdk.protocol.devices import Task
from client_sdk.tensors import BF16, Manifest, from_bytes, to_bytes, widen

WHO = {"device": "d7", "round": 3}
CROSS_ENTROPY = nn.functional.cross_entropy


class Tied(nn.Module):
    """An encoder and a decoder with one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 3, bias=False)
        self.decoder = nn.Linear(6, 3, bias=False)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(torch.tanh(self.encoder(x)) @ self.encoder.weight))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_checkpoint_names_are_those_of_state_dict_and_survive_bytes(learner):
    start = learner.initial(3)
    assert list(start) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    module = learner.load(from_bytes(to_bytes(start)))
    assert {n: t.numpy().tobytes() for n, t in module.state_dict().items()} == {
        n: a.tobytes() for n, a in start.items()
    }
    again = learner.tensors(module)
    assert {n: a.tobytes() for n, a in again.items()} == {n: a.tobytes() for n, a in start.items()}


def test_initial_is_a_function_of_the_seed(learner):
    first, same, other = learner.initial(1), learner.initial(1), learner.initial(2)
    assert all(np.array_equal(first[n], same[n]) for n in first)
    assert not any(np.array_equal(first[n], other[n]) for n in first)


def test_tied_weights_travel_once_and_load_back_tied(data, task):
    learner = Learner(model=Tied, loss=CROSS_ENTROPY)
    start = learner.initial(0)
    assert list(start) == ["encoder.weight", "head.weight", "head.bias"]
    module = learner.load(start)
    assert module.decoder.weight is module.encoder.weight
    assert np.array_equal(module.decoder.weight.detach().numpy(), start["encoder.weight"])
    update = learner.train(start, data, task(), **WHO)
    assert update.model == Manifest.of(start)
    assert set(update.delta) == set(start)
    assert np.any(update.delta["encoder.weight"])


def test_a_checkpoint_with_both_names_of_a_tied_weight_is_refused():
    learner = Learner(model=Tied, loss=CROSS_ENTROPY)
    start = learner.initial(0)
    with pytest.raises(CheckpointMismatch, match=r"decoder\.weight, which is tied to encoder\.weight"):
        learner.load({**start, "decoder.weight": start["encoder.weight"]})


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype"),
    [(torch.bfloat16, BF16), (torch.float16, np.dtype(np.float16)), (torch.float64, np.dtype(np.float64))],
)
def test_models_of_other_number_types_send_float32_differences(learner, data, task, dtype, numpy_dtype):
    half = Learner(model=lambda: learner.model().to(dtype), loss=CROSS_ENTROPY)
    start = from_bytes(to_bytes(half.initial(0)))
    assert {a.dtype for a in start.values()} == {numpy_dtype}
    update = half.train(start, data, task(epochs=2), **WHO)
    assert {a.dtype for a in update.delta.values()} == {np.dtype(np.float32)}

    module = half.load(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = torch.from_numpy(data[0]).to(dtype), torch.from_numpy(data[1])
    for rows, _ in zip(batch_order(21, 8, seed=5, **WHO), range(6), strict=False):
        optimizer.zero_grad()
        CROSS_ENTROPY(module(x[rows]), y[rows]).backward()
        optimizer.step()
    for name, tensor in module.state_dict().items():
        received = widen(start[name]) if dtype != torch.float64 else start[name]
        wanted = (tensor.to(torch.promote_types(dtype, torch.float32)).numpy() - received).astype(np.float32)
        assert np.array_equal(update.delta[name], wanted)
        assert np.any(wanted)


def test_batch_norm_sends_running_means_and_keeps_its_counter(data, task):
    learner = Learner(model=normed, loss=CROSS_ENTROPY)
    start = learner.initial(0)
    assert start["1.num_batches_tracked"].dtype == np.int64
    assert start["1.num_batches_tracked"].shape == ()
    update = learner.train(start, data, task(), **WHO)
    assert set(start) - set(update.delta) == {"1.num_batches_tracked"}
    assert np.any(update.delta["1.running_mean"])


def test_a_float_buffer_that_the_plan_does_not_average_is_not_sent(data, task):
    learner = Learner(model=normed, loss=CROSS_ENTROPY)
    update = learner.train(learner.initial(0), data, task(averaged=("*.weight", "*.bias")), **WHO)
    assert sorted(update.delta) == ["0.bias", "0.weight", "1.bias", "1.weight", "2.bias", "2.weight"]


def test_all_but_the_statistics_and_all_but_the_normalization_can_be_said(data, task):
    learner = Learner(model=normed, loss=CROSS_ENTROPY, averaged=("!1.*",))
    start = learner.initial(0)
    assert set(learner.train(start, data, task(averaged=("!1.*",)), **WHO).delta) == {
        "0.bias",
        "0.weight",
        "2.bias",
        "2.weight",
    }
    update = Learner(model=normed, loss=CROSS_ENTROPY).train(start, data, task(averaged=("!*running_*",)), **WHO)
    assert {name for name in start if name not in update.delta} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    with pytest.raises(CheckpointMismatch, match=r'1\.weight, which this .* averaged = \["!1\.\*"\]'):
        learner.train(start, data, task(averaged=("!*running_*",)), **WHO)
    slip = Learner(model=normed, loss=CROSS_ENTROPY, averaged=("0.*", "!nrom.*"))
    with pytest.raises(CheckpointMismatch, match=r"The learner's averaged does not fit its model: .*'nrom\.\*'"):
        slip.train(start, data, task(averaged=("0.*",)), **WHO)


def test_a_subset_is_trained_and_sent_and_the_rest_is_frozen(learner, data, task):
    head = Learner(model=learner.model, loss=CROSS_ENTROPY, averaged=("2.*",))
    start = head.initial(0)
    plan = task(epochs=2, averaged=("2.*",))
    update = head.train(start, data, plan, **WHO)
    assert set(update.delta) == {"2.weight", "2.bias"}

    # By hand: only the head moves, so the features below it are constants.
    module = head.load(start)
    optimizer = torch.optim.SGD(module[2].parameters(), lr=0.1)
    x, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    for rows, _ in zip(batch_order(21, 8, seed=5, **WHO), range(6), strict=False):
        optimizer.zero_grad()
        CROSS_ENTROPY(module(x[rows]), y[rows]).backward()
        optimizer.step()
    assert np.array_equal(update.delta["2.weight"], module[2].weight.detach().numpy() - start["2.weight"])


def test_frozen_parameters_do_not_move_during_training(data, task):
    seen = []

    class Watched(nn.Sequential):
        def forward(self, x):
            seen.append((self[0].weight.detach().clone(), self[0].weight.requires_grad, self[1].weight.requires_grad))
            return super().forward(x)

    learner = Learner(model=lambda: Watched(nn.Linear(6, 4), nn.Linear(4, 3)), loss=CROSS_ENTROPY, averaged=("1.*",))
    start = learner.initial(0)
    learner.train(start, data, task(epochs=3, averaged=("1.*",), mu=0.5), **WHO)
    assert len(seen) == 9
    assert all(np.array_equal(weight.numpy(), start["0.weight"]) and not low and high for weight, low, high in seen)


def test_a_parameter_that_the_model_itself_froze_is_sent_as_zero(data, task):
    def model() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
        module[0].weight.requires_grad_(False)
        return module

    update = Learner(model=model, loss=CROSS_ENTROPY).train(
        Learner(model=model, loss=CROSS_ENTROPY).initial(0), data, task(), **WHO
    )
    assert not np.any(update.delta["0.weight"])
    assert np.any(update.delta["0.bias"])


def test_a_plan_that_averages_more_than_the_learner_trains_says_what_to_write(learner, data, task):
    head = Learner(model=learner.model, loss=CROSS_ENTROPY, averaged=("2.*",))
    with pytest.raises(
        CheckpointMismatch, match=r'0\.bias, 0\.weight, which this learner does not train.*averaged = \["2\.\*"\]'
    ):
        head.train(head.initial(0), data, task(), **WHO)


def test_a_plan_that_averages_nothing_of_the_model_is_refused(learner, data, task):
    with pytest.raises(CheckpointMismatch, match=r"no tensor of the model matches 'decoder\.\*'"):
        learner.train(learner.initial(0), data, task(averaged=("decoder.*",)), **WHO)


def test_a_plan_without_trainable_parameters_is_refused(data, task):
    learner = Learner(model=normed, loss=CROSS_ENTROPY)
    with pytest.raises(LearnerFailed, match="no parameter that can be trained"):
        learner.train(learner.initial(0), data, task(averaged=("*running*",)), **WHO)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("2.bias"), r"it lacks '2\.bias'\.$"),
        (lambda c: c.update(extra=c["2.bias"]), r"it has unexpected 'extra'\.$"),
        (lambda c: c.update({"2.bias": c["0.bias"]}), r"it has '2\.bias' of shape \[5\], expected \[3\]\.$"),
        (lambda c: c.update({"2.bias": c["2.bias"].astype(np.float16)}), r"it has '2\.bias' as F16, expected F32\.$"),
        (lambda c: c.update({"2.bias": np.zeros(3, BF16)}), r"it has '2\.bias' as BF16, expected F32\.$"),
        (lambda c: c.clear(), r"it lacks '0\.bias', '0\.weight', '2\.bias' and 1 more\.$"),
    ],
)
def test_a_mismatch_is_one_plain_sentence(learner, change, words):
    checkpoint = learner.initial(0)
    change(checkpoint)
    with pytest.raises(CheckpointMismatch, match=words) as caught:
        learner.load(checkpoint)
    assert str(caught.value).startswith("The checkpoint does not fit the learner's model: ")


class WithState(nn.Linear):
    def get_extra_state(self):
        return {"a": 1}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.ParameterList([torch.zeros(2, dtype=torch.complex64)]), "0 is complex64, which cannot travel"),
        (lambda: nn.LazyLinear(2), "weight has no shape yet"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight lies on meta"),
        (lambda: WithState(2, 2), "_extra_state in the model's state is a dict"),
        (lambda: nn.Linear(-1, 2), "The learner failed while it made the model: RuntimeError"),
        (lambda: "a model", "gave a str, not a torch module"),
    ],
)
def test_models_that_cannot_travel_say_why(model, words):
    with pytest.raises(LearnerFailed, match=words):
        Learner(model=model, loss=CROSS_ENTROPY).initial(0)


def test_a_learner_takes_a_state_dict_of_torch() -> None:
    one = Learner(model=lambda: nn.Linear(4, 2), loss=nn.functional.cross_entropy)
    of_torch, task = {"weight": torch.arange(8.0).reshape(2, 4), "bias": torch.ones(2)}, Task(learner="a:b")
    data = (torch.arange(24.0).reshape(6, 4) / 24, torch.arange(6) % 2)
    of_numpy = {name: tensor.numpy().copy() for name, tensor in of_torch.items()}
    assert one.load(of_torch).state_dict()["weight"].tolist() == of_torch["weight"].tolist()
    assert one.evaluate(of_torch, data) == one.evaluate(of_numpy, data)
    found = [one.train(model, data, task).delta["weight"].tolist() for model in (of_torch, of_numpy)]
    assert found[0] == found[1]
    assert of_torch["weight"].tolist() == of_numpy["weight"].tolist(), "the caller's tensors stay"
    with pytest.raises(CheckpointMismatch):
        one.load({**of_torch, "bias": torch.zeros(3)})
