"""Scores of a checkpoint: on a central test set, on clients' own held-out examples, and by class of device.

The coordinator receives them like an evaluator's scores, so a plan's ``finish`` may use them. Each has a source:

=============== ====================================================================================================
evaluator       the central test set
clients         mean over the held-out examples of all scored clients
clients.p10     the 10th percentile over those clients, each counting once: a tenth of them is below. For a metric that
                should be high, such as accuracy, it describes the clients with the worst results
clients.p90     the 90th percentile: the same for a metric that should be low, such as the loss
class.<name>    mean over the held-out examples of the clients of one class
=============== ====================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from client_sdk.protocol.devices import Score

CENTRAL = "evaluator"
CLIENTS = "clients"
LOW, HIGH = "clients.p10", "clients.p90"
BY_CLASS = "class."
DEVICES = "devices"
"""The source of scores that devices report themselves, where the plan's task requires it."""


def by_source(
    devices: Sequence[str], scores: Sequence[Score | None], class_of: Callable[[str], str]
) -> dict[str, Score]:
    """The scores of clients, by source. Clients without held-out examples do not count; empty without any."""
    scored = [(device, score) for device, score in zip(devices, scores, strict=True) if score is not None]
    if not scored:
        return {}
    known = [score for _, score in scored]
    found = {CLIENTS: _mean(known), LOW: _percentile(known, 10.0), HIGH: _percentile(known, 90.0)}
    classes: dict[str, list[Score]] = {}
    for device, score in scored:
        classes.setdefault(class_of(device), []).append(score)
    if set(classes) != {""}:
        found |= {class_source(name): _mean(members) for name, members in sorted(classes.items())}
    return found


def class_source(name: str) -> str:
    """The source of a class's scores: its name, with the characters replaced that a source may not have."""
    return BY_CLASS + (re.sub(r"[^a-z0-9._-]+", "-", name.lower()) or "none")[:58]


def _mean(scores: Sequence[Score]) -> Score:
    """The mean over all examples of all these scores."""
    examples = sum(score.examples for score in scores)
    return Score(examples=examples, metrics={name: _weighted(scores, name) for name in _common(scores)})


def _weighted(scores: Sequence[Score], name: str) -> float:
    return sum(score.metrics[name] * score.examples for score in scores) / sum(score.examples for score in scores)


def _percentile(scores: Sequence[Score], percent: float) -> Score:
    """The percentile of each metric over the clients, interpolated linearly."""
    metrics: Mapping[str, float] = {
        name: float(np.percentile([score.metrics[name] for score in scores], percent)) for name in _common(scores)
    }
    return Score(examples=sum(score.examples for score in scores), metrics=dict(metrics))


def _common(scores: Sequence[Score]) -> list[str]:
    return sorted(set.intersection(*(set(score.metrics) for score in scores)))
