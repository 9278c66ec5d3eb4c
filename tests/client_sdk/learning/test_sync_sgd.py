"""What needs no second process: layers that see their batch, and a group of one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Diverged, LearnerFailed
from client_sdk.learning.data import as_examples
from client_sdk.learning.group import Group, NoDevice, RankFailed, joined
from client_sdk.learning.sync_sgd import GlobalGradient, for_group, own_buffers

pytestmark = pytest.mark.datacenter

ALONE = Group()
TWO_CPUS = Group(rank=0, world=2)
TWO_GPUS = Group(rank=0, world=2, device=torch.device("cuda", 0))


@pytest.fixture(autouse=True)
def chance_untouched() -> Iterator[None]:
    """These tests make modules of their own, which draw."""
    with torch.random.fork_rng(devices=[]):
        yield


def normalized(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), layer, nn.Linear(4, 3))


def test_batch_norm_becomes_synchronous_on_gpus() -> None:
    module = normalized(nn.BatchNorm1d(4))
    names, weights = list(module.state_dict()), list(module.parameters())
    changed = for_group(module, TWO_GPUS, smallest=2)
    assert isinstance(changed[1], nn.SyncBatchNorm)  # type: ignore[index]
    assert list(changed.state_dict()) == names
    assert all(mine is before for mine, before in zip(changed.parameters(), weights, strict=True))
    assert changed.training
    assert own_buffers(changed) == {}, "those of SyncBatchNorm see the whole batch"


@pytest.mark.parametrize(
    ("layer", "group", "options", "words"),
    [
        (nn.BatchNorm1d(4), TWO_CPUS, {}, "each of the 2 ranks has others: use GroupNorm"),
        (nn.BatchNorm1d(4), ALONE, {"accumulate": 2}, "each part of a batch has others"),
        (nn.BatchNorm1d(4), TWO_GPUS, {"accumulate": 2}, "each part of a batch has others"),
        (nn.BatchNorm1d(4), TWO_GPUS, {"smallest": 1}, "needs an example of every batch; the smallest has 1"),
        (nn.InstanceNorm1d(4, track_running_stats=True), TWO_GPUS, {}, "layer 1 is a InstanceNorm1d"),
    ],
)
def test_statistics_that_would_differ_are_refused(
    layer: nn.Module, group: Group, options: dict[str, int], words: str
) -> None:
    with pytest.raises(LearnerFailed, match=words):
        for_group(normalized(layer), group, **options)


@pytest.mark.parametrize(
    "layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4)], ids=lambda layer: type(layer).__name__
)
def test_layers_that_see_single_examples_are_welcome(layer: nn.Module) -> None:
    module = normalized(layer)
    assert for_group(module, TWO_CPUS, accumulate=3) is module


def test_one_process_may_keep_its_batch_norm() -> None:
    module = normalized(nn.BatchNorm1d(4))
    assert for_group(module, ALONE) is module


def gradient_of(loss: object) -> tuple[GlobalGradient, nn.Module]:
    module = nn.Linear(6, 3).double()
    found = GlobalGradient(module, list(module.parameters()), loss, ALONE, floating=torch.float64)  # type: ignore[arg-type]
    return found, module


EXAMPLES = as_examples((np.eye(6), np.arange(6) % 3))


def test_a_group_of_one_gives_the_mean_gradient_and_its_loss() -> None:
    gradient, module = gradient_of(nn.functional.cross_entropy)
    batch = torch.tensor([4, 0, 3])
    total, weight = gradient.compute(EXAMPLES, batch, 0)
    got = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(torch.eye(6).double()[batch]), batch % 3)
    loss.backward()
    assert (total / weight, weight) == (pytest.approx(loss.item(), rel=1e-12), 3)
    for weight, mine in zip(module.parameters(), got, strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, mine, rtol=1e-12, atol=0)
    assert gradient.communication_s() is None


def test_seconds_of_communication_are_of_the_steps_since_the_last_call_and_never_negative() -> None:
    gradient, _ = gradient_of(nn.functional.cross_entropy)
    measured = {"iteration": 2, "avg_backward_comm_time": 5e9, "avg_backward_compute_comm_overlap_time": 2e9}
    gradient._ddp = SimpleNamespace(_get_ddp_logging_data=lambda: measured)  # type: ignore[assignment]
    assert gradient.communication_s() == 3.0
    assert gradient.communication_s() is None
    measured.update(iteration=4, avg_backward_comm_time=6e9)
    assert gradient.communication_s() == 5.0  # 4 * 4 s - 2 * 3 s, over two steps
    measured.update(iteration=5, avg_backward_comm_time=2e9)
    assert gradient.communication_s() == 0.0


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda outputs, targets: outputs.sum() * float("nan"), Diverged, "The loss at step 8 is not finite"),
        (lambda outputs, targets: outputs, LearnerFailed, r"loss gave a tensor of shape \[2, 3\]"),
        (lambda outputs, targets: 0.5, LearnerFailed, "loss gave a float"),
        (lambda outputs, targets: torch.tensor(1.0), LearnerFailed, "does not depend on any trained tensor"),
        (lambda outputs, targets: [][0], LearnerFailed, "at step 8, on a batch of 2: IndexError"),
    ],
)
def test_the_error_names_what_a_loss_gets_wrong(loss: object, kind: type[Exception], words: str) -> None:
    gradient, module = gradient_of(loss)
    before = [weight.detach().clone() for weight in module.parameters()]
    with pytest.raises(kind, match=words):
        gradient.compute(EXAMPLES, torch.tensor([1, 2]), 7)
    assert all(torch.equal(mine, weight) for mine, weight in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("backend", "rank", "kind", "words"),
    [
        ("mpi", "0", NoDevice, "The torch that is installed here has no backend 'mpi': take auto"),
        ("ccl", "0", NoDevice, "The torch that is installed here has no backend 'ccl': take auto"),
        ("ccl", "1", RankFailed, "The torch that is installed here has no backend 'ccl': take auto"),
        ("ucx", "0", NoDevice, "backend is auto or one of gloo, nccl, mpi, ccl, not 'ucx'"),
    ],
)
def test_a_backend_that_torch_has_not_is_refused(
    backend: str, rank: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(kind, match=words), joined("cpu", backend=backend):
        pass


def test_a_device_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(NoDevice, match="'tpu' is no device"), joined("tpu"):
        pass
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(NoDevice, match="2 ranks or more were asked for on a machine with 1 GPUs"), joined("cuda"):
        pass
    monkeypatch.setenv("LOCAL_RANK", "0")
    with joined("auto") as group:
        assert group.device == torch.device("cuda", 0)
