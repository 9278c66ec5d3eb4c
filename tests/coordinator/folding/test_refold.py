"""Rounds that are folded again: what agrees is passed over, and each difference is one sentence."""

from __future__ import annotations

from typing import Any, BinaryIO

import pytest

from coordinator.blobs import BlobError, MemoryBlobs
from coordinator.engine.aggregation.registry import BUILT_IN
from coordinator.engine.effects import Contribution
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from coordinator.folding.aggregator import NewCheckpoint
from coordinator.folding.refold import Readable, differences, short
from tests.coordinator.folding.test_aggregator import Bench, vector

MOMENTUM = {"server_optimizer": "fedavgm", "server_learning_rate": 0.5}


class Folded:
    """One committed round with a server optimizer, to be folded again."""

    def __init__(self) -> None:
        self.bench = Bench(vector(1, 2), aggregation=MOMENTUM)
        self.items = (self.bench.update("a", vector(1, 0)), self.bench.update("b", vector(3, 4)))
        self.committed = self.bench.aggregator.commit(1, self.bench.parent, self.items)

    def found(self, blobs: Readable | None = None, **changes: Any) -> list[str]:
        items: tuple[Contribution, ...] = changes.pop("items", self.items)
        parent = NewCheckpoint(self.bench.parent, 0)
        return list(
            differences(
                blobs or self.bench.blobs,
                self.bench.plan,
                BUILT_IN,
                run="",
                roles={},
                round=1,
                parent=parent,
                items=items,
                committed=self.committed._replace(**changes),
            )
        )


@pytest.fixture
def folded() -> Folded:
    return Folded()


def test_the_same_updates_give_the_same_round(folded: Folded) -> None:
    before = set(folded.bench.blobs.digests())
    assert folded.found() == []
    assert set(folded.bench.blobs.digests()) == before, "nothing is written"


def test_each_difference_is_one_sentence(folded: Folded) -> None:
    model, state = folded.committed.digest, folded.committed.named_tensors[SERVER_OPTIMIZER]
    assert state is not None
    of_model = f"its updates give {model[:12]}, not ffffffffffff"
    of_state = f"its updates give the server optimizer's state {state[:12]}, not "
    assert folded.found(digest="f" * 64) == [of_model]
    assert folded.found(named_tensors={SERVER_OPTIMIZER: "e" * 64}) == [of_state + "e" * 12]
    assert folded.found(digest="f" * 64, named_tensors={}) == [of_model, of_state + "none"]
    assert len(folded.found(items=folded.items[:1])) == 2


@pytest.mark.parametrize("error", [None, PermissionError("no right to read"), BlobError("a disk that fails")])
def test_updates_that_cannot_be_read_are_one_sentence(
    folded: Folded, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    if error is None:
        folded.bench.blobs.delete(folded.items[0].digest)
    else:

        def fails(digest: str) -> BinaryIO:
            if digest in [item.digest for item in folded.items]:
                raise error
            return real.open(digest)

        real, blobs = folded.bench.blobs, MemoryBlobs()
        monkeypatch.setattr(blobs, "open", fails)
        monkeypatch.setattr(folded.bench, "blobs", blobs)
    (sentence,) = folded.found()
    assert sentence.startswith("its updates cannot be added up again: ")
    assert str(error or folded.items[0].digest[:8]) in sentence


def test_a_digest_is_shown_by_twelve_digits() -> None:
    assert (short("0123456789abcdef" * 4), short(None)) == ("0123456789ab", "none")
