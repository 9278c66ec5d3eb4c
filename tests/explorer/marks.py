"""Updates that can be distinguished in the model: one lane for each device and round, and a register of all bodies.

The model is ``marks`` [devices * ROUNDS + EXTRA] float32 and an integer that is not averaged. A device's update for a
round is a mark in lane (device, round mod ROUNDS), so an update that is counted twice, or in another round, is visible
in the model; the shared lanes have values with long fractions, where the sum of many depends on its order unless it is
exact. The last lane has a number from the digest of the checkpoint that the device read. The register stores the
content of each body by its digest, so that a committed checkpoint can be computed again without reading what the
coordinator stored.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.chance import blake2b_word
from client_sdk.protocol.devices import Score, Task, Work
from client_sdk.tensors import Tensors, read_header, to_bytes
from client_sdk.update import Update, encode_update, report_of
from client_sdk.update import body_of as report_body
from tests.explorer.plans import LEARNER, SHORT
from tests.explorer.round_ending import RoundEnding
from tests.explorer.shape import Shape

ROUNDS = 8
SHARED = 2
PARENT = 1
"""The last lane: a number from the digest of the checkpoint that the device read."""
EXTRA = SHARED + PARENT
STEPS = 4

Lanes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Made:
    """The content of one body. ``lanes``: its values by lane, decoded; the others are zero."""

    run: str
    round: int
    lanes: dict[int, float]
    parent: str = ""
    """Digest of the checkpoint that the device had read; empty where it does not say (a lie)."""
    examples: int = 0
    """What its report says: examples it was trained on,"""
    scored: int = 0
    """and held out."""


def first_model(devices: int) -> Tensors:
    return {"marks": np.zeros(devices * ROUNDS + EXTRA, np.float32), "steps": np.array(7, np.int64)}


class Register:
    """Makes bodies and stores the content of each."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.made: dict[str, Made] = {}
        self.results: dict[str, set[tuple[str, int, int]]] = {}
        """Results of workers: digest -> (run, round, fence) of every lease that it was made under."""
        self.bodies: dict[tuple[str, int], list[bytes]] = {}
        """The bodies of each round: a liar may copy one."""

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
        parent: str = "",
    ) -> bytes:
        """Returns the bytes of an update, and adds it to the register. ``parent``: digest of what the device read."""
        values = np.zeros(self.lanes, np.float32)
        lanes = self.marked(number, round, variant, parent, mark=mark, codec=codec)
        for lane, value in lanes.items():
            values[lane] = value
        steps = 1 + variant % (STEPS - 1) if partial else STEPS
        work = Work(steps=steps, steps_planned=STEPS, epochs=1.0, examples_seen=examples, complete=not partial)
        scored = Score(examples=examples + number % 4, metrics={"accuracy": (1 + number % 7) / 8})
        update = Update({"marks": values}, examples, work=work, metrics={"loss": 1.0 + variant}, held_out=scored)
        if self._shape.private:
            report = report_of(update, codec, run, round, attempt, private=True)
            encoded = codecs.get(codec).encode(update.delta, codecs.Origin(seed=0, round=round, device="", plan=""))
            body, said = report_body(encoded, report), (report.examples, 0)
        else:
            body, said = encode_update(update, codec, run, round, attempt), (examples, scored.examples)
        self.made[hashlib.sha256(body).hexdigest()] = Made(run, round, lanes, parent, *said)
        self.bodies.setdefault((run, round), []).append(body)
        return body

    @property
    def lanes(self) -> int:
        """How many lanes the model has."""
        return self._shape.devices * ROUNDS + EXTRA

    def marked(
        self, number: int, round: int, variant: int, parent: str, *, mark: float = 1.0, codec: str = "float32@1"
    ) -> dict[int, float]:
        """The values of an update by lane; the others are zero. ``parent``: digest of what the device read."""
        devices = self._shape.devices
        lanes = {number * ROUNDS + round % ROUNDS: mark}
        plan = self._shape.plan
        if plan["aggregation"]["clip_norm"] is None and plan.get("privacy", {}).get("clip") != SHORT:
            for place in range(SHARED):
                value = ((number + 1) * 0.377 + round * 0.113 + variant * 0.0171 + place * 0.59) % 1.7 - 0.8
                lanes[devices * ROUNDS + place] = float(np.float16(value) if "16" in codec else np.float32(value))
            if parent:
                lanes[devices * ROUNDS + SHARED] = parent_lane(parent)
        return lanes

    def longest(self, codec: str) -> int:
        """Returns the limit of an update's body in bytes."""
        return _longest(self._shape.devices, codec)

    def result_of(self, run: str, round: int, fence: int, parent: bytes, *, wrong: bool = False) -> bytes:
        """Returns the bytes of a worker's result, and adds it to the register: every lane of the parent moves by a step
        that is different for each lease, or, where the shape trains *alike*, for each round only. ``wrong``: the bytes
        are not a checkpoint of the model.
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


@cache
def _longest(devices: int, codec: str) -> int:
    averaged = read_header(to_bytes(first_model(devices))).manifest.select(Task(learner=LEARNER).averaged)
    return codecs.longest_body(codecs.get(codec), averaged)


def parent_lane(digest: str) -> float:
    """A number of 11 bits, which every codec represents exactly."""
    return (blake2b_word(digest.encode()) % 2048 - 1024) / 2048


def marks_in(checkpoint: bytes) -> Lanes:
    """Returns the lanes of a checkpoint's bytes, parsed here without the product's reader."""
    (length,) = struct.unpack("<Q", checkpoint[:8])
    begin, end = json.loads(checkpoint[8 : 8 + length])["marks"]["data_offsets"]
    return np.frombuffer(checkpoint[8 + length + begin : 8 + length + end], dtype="<f4")


def next_model(
    model: Lanes, ending: RoundEnding, made: dict[str, Made], rule: dict[str, Any], moments: list[Lanes]
) -> Lanes:
    """Returns the sum of the updates of a round, each once, in Python's integers.

    ``moments``: the server optimizer's vectors, m and v of FedAdam, brought up to date in place; empty before the first
    round."""
    limit = rule["clip_norm"]
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
            mean[lane] = _of_column(values + [np.float32(0)] * (len(ending.reported) - len(values)), rule)
    return moved(model, mean, rule, moments)


def of_columns(rows: list[Lanes], rule: dict[str, Any]) -> Lanes:
    """The median of each column, or its trimmed mean."""
    return np.array([_of_column(list(column), rule) for column in zip(*rows, strict=True)], np.float32)


def _of_column(values: list[np.float32], rule: dict[str, Any]) -> np.float32:
    ordered = sorted(values)
    return _trimmed(ordered, rule["rule_parameters"]) if "trimmed" in rule["rule"] else _median(ordered)


def moved(model: Lanes, mean: Lanes, rule: dict[str, Any], moments: list[Lanes]) -> Lanes:
    """The model after the server optimizer's step by this mean."""
    rate = np.float32(rule["server_learning_rate"])
    following: Lanes = model + (mean if rate == 1.0 else rate * mean)
    if rule["server_optimizer"] == "average":
        return following
    return _adam(model, mean, rate, rule["server_optimizer_parameters"], moments)


def _adam(model: Lanes, mean: Lanes, rate: np.float32, given: dict[str, float], moments: list[Lanes]) -> Lanes:
    """FedAdam, with the default of beta2."""
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
    """Returns the invariant that a wrong sum breaks, judged by the marks: the lane of each counted device should have
    the same weight."""
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
