"""Seeds: who draws what, and that nobody else notices."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.chance import derive_seed
from client_sdk.learning import Learner, batch_order
from client_sdk.learning.local_sgd import private_chance


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


DROPOUT = Learner(model=dropping, loss=nn.functional.cross_entropy)


GOLDEN = [5, 2, 7, 1, 6, 0, 4, 8, 3, 9]


def bits(update):
    return {name: delta.tobytes() for name, delta in update.delta.items()}


def test_an_epoch_is_a_permutation_and_epochs_differ():
    order = batch_order(21, 8, seed=1, round=2, device="d")
    epochs = [list(itertools.islice(order, 3)) for _ in range(2)]
    assert [[len(b) for b in epoch] for epoch in epochs] == [[8, 8, 5]] * 2
    flat = [torch.cat(epoch).tolist() for epoch in epochs]
    assert [sorted(f) for f in flat] == [list(range(21))] * 2
    assert flat[0] != flat[1]


def test_golden_seed_and_order():
    """Pinned: a change here changes what every device of every running plan would train on."""
    first_bytes = hashlib.sha256(b"quorate shuffle v1\n5\n3\nd7").digest()[:8]
    assert derive_seed("shuffle", 5, 3, "d7") == int.from_bytes(first_bytes, "big") // 2
    assert next(batch_order(10, 10, seed=5, round=3, device="d7")).tolist() == GOLDEN


@pytest.mark.parametrize("other", [{"seed": 2}, {"round": 3}, {"device": "e"}])
def test_seed_round_and_device_each_change_the_order(other):
    who = {"seed": 1, "round": 2, "device": "d"}
    assert next(batch_order(50, 50, **who)).tolist() == next(batch_order(50, 50, **who)).tolist()
    assert next(batch_order(50, 50, **who)).tolist() != next(batch_order(50, 50, **{**who, **other})).tolist()


def test_devices_do_not_depend_on_who_trained_before(data, task):
    start = DROPOUT.initial(0)
    names = ["a", "b", "c"]
    forward = {d: bits(DROPOUT.train(start, data, task(epochs=2), device=d, round=1)) for d in names}
    torch.manual_seed(99)
    backward = {d: bits(DROPOUT.train(start, data, task(epochs=2), device=d, round=1)) for d in reversed(names)}
    torch.manual_seed(20261121)
    assert forward == backward
    assert len({str(b) for b in forward.values()}) == 3


def test_dropout_differs_by_round_and_is_the_same_with_held_out_scoring(data, task):
    start = DROPOUT.initial(0)
    one = bits(DROPOUT.train(start, data, task(steps=1, batch_size=21), device="a", round=1))
    two = bits(DROPOUT.train(start, data, task(steps=1, batch_size=21), device="a", round=2))
    assert one != two
    # A metric that draws, as a bootstrap does, must not shift what dropout draws afterwards.
    metrics = {"drawn": lambda outputs, targets: torch.rand(())}
    drawing = Learner(model=dropping, loss=nn.functional.cross_entropy, metrics=metrics)
    asked = task(steps=1, batch_size=21, score_held_out=True)
    scored = drawing.train(start, data, asked, device="a", round=1, held_out=data)
    assert scored.held_out is not None
    assert bits(scored) == one


def test_threads_of_one_process_give_what_they_give_alone(data, task):
    start = DROPOUT.initial(0)
    alone = {d: bits(DROPOUT.train(start, data, task(epochs=3), device=d, round=1)) for d in "abcd"}
    together: dict[str, object] = {}
    gate = threading.Barrier(4)

    def train(device: str) -> None:
        gate.wait()
        together[device] = bits(DROPOUT.train(start, data, task(epochs=3), device=device, round=1))

    threads = [threading.Thread(target=train, args=(d,)) for d in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_global_generator_comes_back_after_an_error():
    before = torch.random.get_rng_state()
    with contextlib.suppress(KeyError), private_chance(1):
        torch.rand(3)
        raise KeyError
    assert torch.equal(torch.random.get_rng_state(), before)


def test_private_chance_is_seeded():
    with private_chance(1):
        first = torch.rand(3)
    with private_chance(1):
        assert np.array_equal(torch.rand(3), first)
