"""All the shapes in which a device may hold its examples give the same update."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from client_sdk.learning import DataError, Learner, LearnerFailed, NoExamples

WHO = {"device": "d7", "round": 3}


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


class Flagged(Pairs):
    """As torchvision's datasets: ``train`` says which part this is, and is no part."""

    train = True
    test = False


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: [x, y],
        lambda x, y: (x.tolist(), y.tolist()),
        lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
        lambda x, y: (x, y.astype(np.uint8)),
        lambda x, y: (x.astype(">f4"), y.astype(">i4")),
        lambda x, y: (x.astype(np.float64), y.astype(np.int32)),
        lambda x, y: (read_only(x), read_only(y)),
        lambda x, y: (np.asfortranarray(x), y),
        lambda x, y: SimpleNamespace(x=x, y=y),
        lambda x, y: SimpleNamespace(train=SimpleNamespace(x=x, y=y)),
        lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        lambda x, y: Pairs(x, y),
        lambda x, y: Flagged(x, y),
    ],
)
def test_every_form_of_the_same_examples_gives_the_same_bits(learner, data, task, form):
    start = learner.initial(0)
    wanted = learner.train(start, data, task(epochs=2), **WHO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        update = learner.train(start, form(*data), task(epochs=2), **WHO)
    assert {n: a.tobytes() for n, a in update.delta.items()} == {n: a.tobytes() for n, a in wanted.delta.items()}


def test_dictionaries_of_inputs_are_collated(data, task):
    class Dicts(Pairs):
        def __getitem__(self, index):
            return {"a": self.x[index]}, int(self.y[index])

    class Model(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs["a"])

    start = Learner(model=lambda: nn.Linear(6, 3), loss=nn.functional.cross_entropy).initial(0)
    plain = Learner(model=lambda: nn.Linear(6, 3), loss=nn.functional.cross_entropy).train(start, data, task(), **WHO)
    learner = Learner(model=lambda: Model(6, 3), loss=nn.functional.cross_entropy)
    update = learner.train(start, Dicts(*data), task(), **WHO)
    assert all(np.array_equal(update.delta[n], plain.delta[n]) for n in plain.delta)
    assert learner.evaluate(start, Dicts(*data)).examples == 21


def test_regression_targets_of_float64_are_float32_to_the_loss(task):
    seen = []

    def loss(outputs, targets):
        seen.append(targets.dtype)
        return nn.functional.mse_loss(outputs[:, 0], targets)

    learner = Learner(model=lambda: nn.Linear(2, 1), loss=loss)
    learner.train(learner.initial(0), (np.ones((3, 2)), np.ones(3)), task(), **WHO)
    assert seen == [torch.float32]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((np.ones((3, 6)), np.ones(2)), "3 inputs .x. and 2 targets"),
        ((np.array([object()]), np.ones(1)), "x of the training data is no array of numbers"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "x of the training data is no array of numbers"),
        ((np.float32(1), np.ones(1)), "x of the training data is a single number"),
        (np.ones((3, 6)), r"must be \(x, y\).*not a ndarray"),
        ((np.ones(3), np.ones(3), np.ones(3)), "not a tuple of 3"),
        (None, "not a NoneType"),
        (Stream(), "a stream of unknown length"),
    ],
)
def test_data_of_another_kind_is_refused_in_words(learner, task, wrong, words):
    with pytest.raises(DataError, match=words):
        learner.train(learner.initial(0), wrong, task(), **WHO)


@pytest.mark.parametrize("empty", [(np.ones((0, 6)), np.ones(0)), Pairs([], []), SimpleNamespace(x=[], y=[])])
def test_no_examples_is_an_error(learner, task, empty):
    with pytest.raises(NoExamples, match="The training data holds no example"):
        learner.train(learner.initial(0), empty, task(), **WHO)


def test_items_that_are_no_pairs_are_refused(learner, task):
    with pytest.raises(DataError, match=r"pairs \(input, target\), but item \d is a Tensor"):
        learner.train(learner.initial(0), Singles(), task(), **WHO)


@pytest.mark.parametrize("other", [torch.zeros(7), 3])
def test_items_that_make_no_batch_are_refused_with_the_fix(learner, task, other):
    class Uneven(Pairs):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return (other if index % 2 else x), y

    with pytest.raises(DataError, match=r"cannot make a batch \(.*\): they must be of one shape.* pad what is shorter"):
        learner.train(learner.initial(0), Uneven(torch.ones(4, 6), torch.ones(4)), task(), **WHO)


class Singles(Pairs):
    def __init__(self):
        super().__init__(torch.ones(3, 6), torch.ones(3))

    def __getitem__(self, index):
        return self.x[index]


def test_inputs_of_another_width_say_where_it_failed(learner, data, task):
    with pytest.raises(
        LearnerFailed, match="The learner failed at step 1, on a batch of 8: RuntimeError: mat1 and mat2"
    ):
        learner.train(learner.initial(0), (data[0][:, :4], data[1]), task(), **WHO)


def test_batch_norm_on_a_last_batch_of_one_says_so(data, task):
    learner = Learner(model=lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), loss=nn.functional.cross_entropy)
    with pytest.raises(LearnerFailed, match=r"at step 2, on a batch of 1 .*: ValueError: Expected more than 1 value"):
        learner.train(learner.initial(0), data, task(batch_size=20), **WHO)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("place", [0, 1])
def test_whole_numbers_that_torch_does_not_compute_with_are_refused_with_the_fix(learner, data, task, dtype, place):
    given = [side.numpy() if isinstance(side, torch.Tensor) else side for side in data]
    given[place] = np.abs(given[place]).astype(dtype)
    with pytest.raises(DataError, match=rf"is of {dtype.__name__}, .* convert it, as by .astype\('int64'\)"):
        learner.train(learner.initial(0), tuple(given), task(), **WHO)


def test_inputs_of_bytes_that_the_model_does_not_convert_are_named(learner, data, task):
    bytes_of = torch.zeros(data[0].shape, dtype=torch.uint8)
    advice = "The inputs are uint8, and reach the model as they are: give floats"
    with pytest.raises(LearnerFailed, match=advice):
        learner.train(learner.initial(0), (bytes_of, data[1]), task(), **WHO)
    with pytest.raises(LearnerFailed, match=advice):
        learner.evaluate(learner.initial(0), (bytes_of, data[1]))
