"""``accuracy`` of each shape that it takes, and a sentence for the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from client_sdk.learning import LearnerFailed, accuracy
from client_sdk.learning.classification import AccuracyBeside, right_and_counted
from client_sdk.learning.measures import Measurement

N, C, T = 40, 3, 5


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


LABELS = (drawn(N) * 10).long().abs() % C
POSITIONS = (drawn(N, T) * 10).long().abs() % C


def sure(labels: torch.Tensor, dim: int) -> torch.Tensor:
    """Outputs that give each label, but for the first example's."""
    wrong = labels.clone()
    wrong[0] = (wrong[0] + 1) % C
    return torch.nn.functional.one_hot(wrong, C).float().movedim(-1, dim) * 3 - 1


def logit(labels: torch.Tensor) -> torch.Tensor:
    right = labels.float() * 4 - 2
    right[0] *= -1
    return right


one_hot = torch.nn.functional.one_hot
BITS = LABELS % 2


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (sure(LABELS, 1), LABELS),
        (sure(LABELS, 1), LABELS.to(torch.uint8)),
        (sure(LABELS, 1), LABELS.float()),
        (sure(LABELS, 1), LABELS[:, None]),
        (sure(LABELS, 1), one_hot(LABELS, C)),
        (sure(LABELS, 1), one_hot(LABELS, C).double()),
        (sure(LABELS, 1), one_hot(LABELS, C).bool()),
        (sure(LABELS, 1).bfloat16(), LABELS),
        (sure(POSITIONS, 1), POSITIONS),
        (sure(POSITIONS, 2), POSITIONS),
        (sure(POSITIONS, 1), POSITIONS[:, None]),
        (sure(POSITIONS, 1), one_hot(POSITIONS, C).movedim(-1, 1)),
        (sure(POSITIONS, 2), one_hot(POSITIONS, C)),
        (logit(BITS), BITS),
        (logit(BITS), BITS.float()),
        (logit(BITS), BITS[:, None]),
        (logit(BITS), BITS.bool()),
        (logit(BITS)[:, None], BITS),
        (logit(BITS)[:, None], BITS[:, None].float()),
        (logit(POSITIONS % 2)[:, None], POSITIONS % 2),
        (logit(POSITIONS % 2)[:, :, None], POSITIONS % 2),
        (logit(POSITIONS % 2)[:, :, None], (POSITIONS % 2)[:, :, None]),
    ],
)
def test_each_shape_has_one_example_wrong(outputs: torch.Tensor, targets: torch.Tensor) -> None:
    assert float(accuracy(outputs, targets)) == pytest.approx(1 - 1 / N)


def test_a_square_shape_is_read_as_cross_entropy_reads_it() -> None:
    labels = (drawn(N, C) * 10).long().abs() % C
    with pytest.warns(UserWarning, match="it may be the last one"):
        assert float(accuracy(sure(labels, 1), labels)) == pytest.approx(1 - 1 / N)


def test_what_cross_entropy_ignores_does_not_count() -> None:
    labels = POSITIONS.clone()
    labels[0], labels[1, 2:] = -100, -100
    assert float(accuracy(sure(POSITIONS, 1), labels)) == 1.0
    assert torch.isnan(accuracy(sure(POSITIONS, 1), torch.full_like(POSITIONS, -100)))


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (drawn(N, C), drawn(N), "no whole numbers: use integers"),
        (drawn(N, C), drawn(N, C), r"outputs of shape \[40, 3\] with targets of shape \[40, 3\]"),
        (drawn(N, C), (drawn(N, C) > -9).long(), "one-hot"),
        (drawn(2, C, C), torch.eye(C).repeat(2, 1, 1), "one-hot along both"),
        (drawn(N, C), POSITIONS, r"targets of shape \[40, 5\]"),
        (drawn(N, C), LABELS[:9], r"targets of shape \[9\]"),
        (drawn(N, C), LABELS + 1, "labels from 1 to 3 and 3 classes: use integers from 0 to 2"),
        (drawn(N, C), LABELS - 1, "labels from -1 to 1"),
        (drawn(N, 1), LABELS, "one logit takes targets 0 and 1"),
        (drawn(N, 1), BITS * 2 - 1, "one logit takes targets 0 and 1"),
        (drawn(N, 1), BITS[None].float(), r"targets of shape \[1, 40\]"),
        (LABELS, LABELS, "the model's outputs are int64"),
        (drawn(1, 1).squeeze(), BITS[:1], r"squeeze\(-1\)"),
        ({"logits": drawn(N, C)}, LABELS, "not a dict and a Tensor"),
    ],
)
def test_what_it_does_not_know_is_refused_in_a_sentence(outputs: object, targets: torch.Tensor, words: str) -> None:
    with pytest.raises(LearnerFailed, match=words):
        accuracy(outputs, targets)  # type: ignore[arg-type]


def test_a_logit_that_looks_like_a_probability_is_said() -> None:
    with pytest.warns(UserWarning, match="probabilities of a sigmoid"):
        accuracy(torch.sigmoid(logit(BITS)), BITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accuracy(torch.zeros(N), BITS)
        accuracy(logit(BITS), BITS)
        accuracy(torch.linspace(0, 1, 31), torch.ones(31))
    for values in (torch.linspace(0, 1, 32), torch.linspace(0.1, 1, 32)):
        with pytest.warns(UserWarning, match="probabilities of a sigmoid"):
            accuracy(values, torch.ones(32))


def test_several_outputs_of_one_logit_each_are_no_one_hot_labels() -> None:
    labels = torch.eye(3)[[0, 2]].unsqueeze(-1)
    right, counted = right_and_counted(torch.ones(2, 3, 1), labels)
    assert (int(right), int(counted)) == (2, 6)


def beside(loss: Callable[[torch.Tensor, torch.Tensor], object], outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """accuracy as a learner's metric, in batches of 7."""
    measures = Measurement({"accuracy": accuracy}, loss)
    for rows in torch.arange(len(outputs)).split(7):
        measures.update(outputs[rows], targets[rows], len(rows))
    return measures.results()["accuracy"].value


of_torch = torch.nn.functional
SIGNS = BITS.float() * 2 - 1


@pytest.mark.parametrize(
    "loss",
    [
        of_torch.binary_cross_entropy,
        torch.nn.BCELoss(),
        of_torch.mse_loss,
        lambda o, t: (of_torch.binary_cross_entropy(o, t, reduction="sum"), len(t)),
        lambda o, t: -(t * o.log() + (1 - t) * (1 - o).log()).mean(),
        lambda o, t: -(t * (o + 1e-7).log() + (1 - t) * (1 - o + 1e-7).log()).mean(),
        lambda o, t: of_torch.binary_cross_entropy(o.clamp(0, 1), t),
        lambda o, t: -(t * o.clamp(1e-6).log() + (1 - t) * (1 - o).clamp(1e-6).log()).mean(),
    ],
)
def test_one_output_is_a_probability_where_the_loss_takes_one(loss: Callable[..., object]) -> None:
    assert beside(loss, torch.sigmoid(logit(BITS)), BITS.float()) == pytest.approx(1 - 1 / N)


@pytest.mark.parametrize(
    "loss",
    [
        of_torch.binary_cross_entropy_with_logits,
        torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(20.0)),
        lambda o, t: of_torch.binary_cross_entropy_with_logits(o, t * 0.8 + 0.1),
        lambda o, t: (1 - (2 * t - 1) * o).clamp(min=0).mean(),
        lambda o, t: (o - (2 * t - 1)).pow(2).mean(),
        lambda o, t: (o * 0).sum(),
        lambda o, t: 1 / 0,
    ],
)
def test_one_output_is_a_logit_else(loss: Callable[..., object]) -> None:
    assert beside(loss, logit(BITS) / 10, BITS.float()) == pytest.approx(1 - 1 / N)  # some are between 0 and 0.5


def test_a_square_shape_is_read_as_the_loss_reads_it() -> None:
    labels = (drawn(N, C) * 10).long().abs() % C
    assert beside(of_torch.cross_entropy, sure(labels, 1), labels) == pytest.approx(1 - 1 / N)
    of_last = beside(lambda o, t: of_torch.cross_entropy(o.transpose(1, 2), t), sure(labels, 2), labels)
    assert of_last == pytest.approx(1 - 1 / N)


SHIFTS = torch.arange(C) * 10.0
"""Of positions: they change no class, and what is highest along the other dimension."""
LOSSES_OF_LAST = [
    lambda o, t: of_torch.cross_entropy(o.transpose(1, 2), t.transpose(1, 2)),
    lambda o, t: of_torch.cross_entropy(o.flatten(0, 1), t.flatten(0, 1), weight=torch.tensor([0.0, 1, 1])),
    of_torch.mse_loss,  # it does not tell: the targets do
    lambda o, t: 1 / 0,
]


@pytest.mark.parametrize("batch", [1, 7, N])
@pytest.mark.parametrize("loss", LOSSES_OF_LAST)
def test_square_one_hot_targets_are_read_alike_in_batches_of_any_size(
    loss: Callable[[torch.Tensor, torch.Tensor], object], batch: int
) -> None:
    labels = (drawn(N, C) * 10).long().abs() % C
    labels[0], labels[-1] = torch.tensor([0, 0, 1]), torch.tensor([2, 0, 1])  # the last one is one-hot along both
    one = AccuracyBeside(loss)
    outputs, targets = sure(labels, 2) + SHIFTS[:, None], one_hot(labels, C).float()
    parts = [one(outputs[at : at + batch], targets[at : at + batch]) for at in range(0, N, batch)]
    assert [sum(int(part[place]) for part in parts) for place in (0, 1)] == [C * (N - 1), C * N]


@pytest.mark.parametrize("batch", [1, 7, N])
def test_square_one_hot_targets_of_cross_entropy_have_the_classes_first(batch: int) -> None:
    labels = (drawn(N, C) * 10).long().abs() % C
    labels[1] = torch.tensor([2, 0, 1])
    one = AccuracyBeside(of_torch.cross_entropy)
    outputs, targets = sure(labels, 1) + SHIFTS, one_hot(labels, C).float().movedim(-1, 1)
    parts = [one(outputs[at : at + batch], targets[at : at + batch]) for at in range(0, N, batch)]
    assert [sum(int(part[place]) for part in parts) for place in (0, 1)] == [C * (N - 1), C * N]


def test_a_square_batch_whose_labels_are_all_different_is_read_as_the_loss_reads_it() -> None:
    labels = torch.tensor([[2, 0, 1]])
    one = AccuracyBeside(lambda o, t: of_torch.cross_entropy(o.transpose(1, 2), t))
    assert [int(part) for part in one(one_hot(labels, C) + SHIFTS[:, None], labels)] == [C, C]
