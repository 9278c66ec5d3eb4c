"""Each kind of metric passes the contract of metrics."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC, MulticlassF1Score

from client_sdk.learning import accuracy
from quorate.testing import MetricContract
from tests.client_sdk.learning.metrics import F1, auc, f1, weighted

_CHANCE = torch.Generator().manual_seed(3)
LOGITS = torch.randn((30, 2), generator=_CHANCE)
LABELS = torch.arange(30) // 20


class Two(MetricContract):
    outputs = LOGITS
    targets = LABELS


class TestFunction(Two):
    metric = staticmethod(f1)


class TestFunctionOfPairs(Two):
    metric = staticmethod(auc)


class TestAccuracy(Two):
    metric = staticmethod(accuracy)


class TestCrossEntropy(Two):
    metric = staticmethod(torch.nn.functional.cross_entropy)


class TestWeightedLoss(Two):
    metric = staticmethod(weighted(torch.tensor([1.0, 20.0])))


class TestOwnObject(Two):
    metric = F1()


class TestCounts(Two):
    metric = MulticlassF1Score(2, average="macro")


class TestBins(Two):
    metric = MulticlassAUROC(2, thresholds=20)
    outputs = LOGITS.softmax(1)


class TestArithmetic(Two):
    metric = MulticlassF1Score(2) + MulticlassF1Score(2, average="micro")


class TestAllScores(Two):
    metric = BinaryAUROC()
    outputs = LOGITS.softmax(1)[:, 1]
    on_devices = False


class TestSumsOfSquares(Two):
    metric = torchmetrics.regression.MeanSquaredError(num_outputs=1)
    outputs = LOGITS[:, 0].contiguous()
    targets = LOGITS[:, 1].contiguous()


class Farthest:
    """Fixed in size, and no sum."""

    def __init__(self) -> None:
        self.most = 0.0

    def update(self, outputs: Any, targets: Any) -> None:
        self.most = max(self.most, float(outputs.abs().max()))

    def merge(self, other: Farthest) -> None:
        self.most = max(self.most, other.most)

    def compute(self) -> float:
        return self.most


class TestFarthest(Two):
    metric = Farthest()
    on_devices = False
