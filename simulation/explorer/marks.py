"""Updates that can be told apart in the model: one lane for each device and round, and a register of what was made.

The model is ``marks`` [devices * ROUNDS] float32 and an integer that is not averaged. A device's update for a round is
a mark in lane (device, round mod ROUNDS) and nothing else, so an update that is counted twice, or in another round, is
visible in the model. The register keeps what each body says by its digest, so that a committed checkpoint can be
computed again without reading what the coordinator stored.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol import Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update, encode_update

if TYPE_CHECKING:
    from simulation.explorer.world import World

ROUNDS = 8
STEPS = 4


@dataclass(frozen=True, slots=True)
class Made:
    """What one body says."""

    device: int
    run: str
    round: int
    lane: int
    mark: float
    examples: int
    steps: int
    complete: bool


def first_model(devices: int) -> Tensors:
    return {"marks": np.zeros(devices * ROUNDS, np.float32), "steps": np.array(7, np.int64)}


def body_of(
    world: World,
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
    lane = number * ROUNDS + round % ROUNDS
    values = np.zeros(world.shape.devices * ROUNDS, np.float32)
    values[lane] = mark
    steps = 1 + variant % (STEPS - 1) if partial else STEPS
    work = Work(steps=steps, steps_planned=STEPS, epochs=1.0, examples_seen=examples, complete=not partial)
    update = Update({"marks": values}, examples, work=work, metrics={"loss": 1.0 + variant})
    body = encode_update(update, codec, run, round, attempt)
    made = Made(number, run, round, lane, mark, examples, steps, not partial)
    world.made[hashlib.sha256(body).hexdigest()] = made
    return body


def marks_in(checkpoint: bytes) -> NDArray[np.float32]:
    """The lanes of a checkpoint's bytes, read by hand: this file trusts no reader of the product."""
    (length,) = struct.unpack("<Q", checkpoint[:8])
    begin, end = json.loads(checkpoint[8 : 8 + length])["marks"]["data_offsets"]
    return np.frombuffer(checkpoint[8 + length + begin : 8 + length + end], dtype="<f4")
