"""Updates that can be told apart in the model: one lane for each device and round, and a register of what was made.

The model is ``marks`` [devices * ROUNDS + SHARED] float32 and an integer that is not averaged. A device's update for a
round is a mark in lane (device, round mod ROUNDS), so an update that is counted twice, or in another round, is visible
in the model; the shared lanes have values with long fractions, where the sum of many depends on its order unless it is
exact. The register keeps what each body says by its digest, so that a committed checkpoint can be computed again
without reading what the coordinator stored.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Work
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Update, encode_update
from simulation.explorer.round_ending import RoundEnding
from simulation.explorer.shape import Shape

ROUNDS = 8
SHARED = 2
STEPS = 4

Lanes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Made:
    """What one body says. ``lanes``: its values by lane, decoded; the others are zero."""

    run: str
    round: int
    lanes: dict[int, float]


def first_model(devices: int) -> Tensors:
    return {"marks": np.zeros(devices * ROUNDS + SHARED, np.float32), "steps": np.array(7, np.int64)}


class Register:
    """Makes bodies, and remembers what each one says."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.made: dict[str, Made] = {}
        self.results: dict[str, set[tuple[str, int, int]]] = {}
        """What workers made: digest -> (run, round, fence) of every lease that it was made under."""
        self.bodies: dict[tuple[str, int], list[bytes]] = {}
        """What was made for each round: a liar may copy it."""

    def body_of(
        self,
        *,
        number: int,
        run: str,
        round: int,
        attempt: int,
        codec: str,
        examples: int,
        partial: bool,
        variant: int,
        mark: float,
    ) -> bytes:
        """The bytes of an update, and a line in the register."""
        devices = self._shape.devices
        values = np.zeros(devices * ROUNDS + SHARED, np.float32)
        lanes = {number * ROUNDS + round % ROUNDS: mark}
        if self._shape.plan["aggregation"]["clip_norm"] is None:
            for place in range(SHARED):
                value = ((number + 1) * 0.377 + round * 0.113 + variant * 0.0171 + place * 0.59) % 1.7 - 0.8
                lanes[devices * ROUNDS + place] = float(np.float16(value) if "16" in codec else np.float32(value))
        for lane, value in lanes.items():
            values[lane] = value
        steps = 1 + variant % (STEPS - 1) if partial else STEPS
        work = Work(steps=steps, steps_planned=STEPS, epochs=1.0, examples_seen=examples, complete=not partial)
        update = Update({"marks": values}, examples, work=work, metrics={"loss": 1.0 + variant})
        body = encode_update(update, codec, run, round, attempt)
        self.made[hashlib.sha256(body).hexdigest()] = Made(run, round, lanes)
        self.bodies.setdefault((run, round), []).append(body)
        return body

    def result_of(self, run: str, round: int, fence: int, parent: bytes, *, wrong: bool = False) -> bytes:
        """The bytes of a worker's result, and a line in the register: every lane of the parent moves by a step that
        tells the leases apart, or, where the shape trains *alike*, the rounds only. ``wrong``: the bytes are no
        checkpoint of the model.
        """
        step = round % 64 if self._shape.alike else 64 + fence % 64
        values = marks_in(parent) + np.float32(step / 64)
        model = {"marks": values, "steps": np.array(7 + step, np.int64)}
        if wrong:
            return to_bytes(
                {**model, "marks": values[:-1]} if fence % 2 else {**model, "marks": values * np.float32(np.nan)}
            )
        body = to_bytes(model)
        digest = hashlib.sha256(body).hexdigest()
        self.results.setdefault(digest, set()).add((run, round, fence))
        return body


def marks_in(checkpoint: bytes) -> Lanes:
    """The lanes of a checkpoint's bytes, read by hand: this file trusts no reader of the product."""
    (length,) = struct.unpack("<Q", checkpoint[:8])
    begin, end = json.loads(checkpoint[8 : 8 + length])["marks"]["data_offsets"]
    return np.frombuffer(checkpoint[8 + length + begin : 8 + length + end], dtype="<f4")


def next_model(
    model: Lanes, ending: RoundEnding, made: dict[str, Made], rule: dict[str, Any], moments: list[Lanes]
) -> Lanes:
    """What the updates of a round give when they are added up again, each once, in Python's integers.

    ``moments``: the server optimizer's vectors, m and v of FedAdam, brought up to date in place; empty before the first
    round."""
    limit, rate = rule["clip_norm"], np.float32(rule["server_learning_rate"])
    parts: dict[int, list[tuple[float, int]]] = {}
    for digest, weight in ending.reported.values():
        for lane, value in made[digest].lanes.items():
            parts.setdefault(lane, []).append((value if limit is None else min(value, float(limit)), weight))
    total = sum(weight for _, weight in ending.reported.values())
    mean = np.zeros(len(model), np.float32)
    for lane, found in parts.items():
        if rule["rule"] == "mean":
            units = sum(weight * round(value * 2**32) for value, weight in found)
            mean[lane] = np.float32(np.float64(units) * 2.0**-32 / np.float64(total))
        else:
            values = [np.float32(value) for value, _ in found]
            ordered = sorted(values + [np.float32(0)] * (len(ending.reported) - len(values)))
            mean[lane] = _trimmed(ordered, rule["rule_parameters"]) if "trimmed" in rule["rule"] else _median(ordered)
    following: Lanes = model + (mean if rate == 1.0 else rate * mean)
    if rule["server_optimizer"] == "average":
        return following
    return _adam(model, mean, rate, rule["server_optimizer_parameters"], moments)


def _adam(model: Lanes, mean: Lanes, rate: np.float32, given: dict[str, float], moments: list[Lanes]) -> Lanes:
    """FedAdam's lines, with beta2 as it is where a plan does not say."""
    beta1, beta2, tau = (np.float32(value) for value in (given["beta1"], 0.99, given["tau"]))
    if not moments:
        moments += [np.zeros(len(model), np.float32), np.full(len(model), tau * tau, np.float32)]
    moments[0] = moments[0] * beta1 + np.float32(1 - given["beta1"]) * mean
    moments[1] = moments[1] * beta2 + mean * mean * np.float32(1 - 0.99)
    following: Lanes = model + rate * moments[0] / (np.sqrt(moments[1]).astype(np.float32) + tau)
    return following


def _trimmed(ordered: list[np.float32], given: dict[str, float]) -> np.float32:
    count = len(ordered)
    cut = min(int(given["fraction"] * count + 1e-9), (count - 1) // 2)
    middle = ordered[cut : count - cut]
    total = 0.0
    for value in middle:
        total += float(value)
    return np.float32(total / len(middle))


def _median(ordered: list[np.float32]) -> np.float32:
    count = len(ordered)
    middle = count // 2
    return ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / np.float32(2)


def what_went_wrong(model: Lanes, found: Lanes, ending: RoundEnding, made: dict[str, Made]) -> str:
    """Which invariant a wrong sum breaks, judged by the marks: each counted device's own lane should weigh the same."""
    shares = []
    for digest, weight in ending.reported.values():
        lane, mark = next(iter(made[digest].lanes.items()))
        shares.append(float(found[lane] - model[lane]) / (mark * weight))
    expected = {lane for digest, _ in ending.reported.values() for lane in made[digest].lanes}
    if any(int(lane) not in expected for lane in np.flatnonzero(found != model)):
        return "counts-once"
    if not all(shares):
        return "named"
    return "counts-once" if max(shares) > 1.5 * min(shares) else "same-bits"
