"""The package's public names, what a Learner refuses to be, and what can be had without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

import client_sdk.learning as learning
from client_sdk.learning import Learner

LOSS = nn.functional.cross_entropy


def test_every_public_name_is_there():
    for name in learning.__all__:
        assert getattr(learning, name).__doc__, name
    with pytest.raises(AttributeError, match="has no 'Trainer'"):
        learning.Trainer  # noqa: B018


def test_errors_need_no_torch_and_the_rest_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None          # as where it is not installed
import client_sdk, client_sdk.learning
from client_sdk.learning import OutOfTime, LearningError
assert issubclass(OutOfTime, LearningError)
try:
    client_sdk.learning.Learner
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "client_sdk.learning.Learner needs torch: pip install 'quorate[torch]'\n"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": nn.Linear(2, 2)}, "pass a function or class that returns one"),
        ({"model": "resnet"}, "model must be callable, not a str"),
        ({"loss": 1}, "loss must be callable"),
        ({"metrics": {"loss": LOSS}}, "cannot be called 'loss'"),
        ({"metrics": {"top 5": LOSS}}, "cannot be called 'top 5'"),
        ({"metrics": {"top5": 3}}, "'top5' must be a function"),
        ({"metrics": {f"m{i}": LOSS for i in range(64)}}, "at most 63 metrics"),
        ({"averaged": "head.*"}, "must list patterns"),
        ({"averaged": ()}, "must list patterns"),
        ({"averaged": (" ",)}, "must list patterns"),
        ({"averaged": ("!",)}, "must list patterns"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(fields, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Learner(**{"model": lambda: nn.Linear(2, 2), "loss": LOSS, **fields})


def test_a_learner_is_frozen_and_keeps_its_own_metrics():
    metrics = {"a": LOSS}
    learner = Learner(model=lambda: nn.Linear(2, 2), loss=LOSS, metrics=metrics, averaged=["head.*"], version="1.2")
    metrics["b"] = LOSS
    assert set(learner.metrics) == {"a"}
    assert learner.averaged == ("head.*",)
    with pytest.raises(AttributeError):
        learner.version = "2"
