"""Trains one update on this device, and encodes it for its round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from client_sdk import codecs
from client_sdk.device.actions import Failed, Train, Trained
from client_sdk.device.contribution import ClearContribution
from client_sdk.http.transport import Interrupted
from client_sdk.learners import Trainer
from client_sdk.protocol.devices import Assignment
from client_sdk.tensors import Array, Tensors, from_bytes
from client_sdk.update import Seconds, Update, encode_update

log = logging.getLogger("quorate.device")

SPARE = 0.05
"""Share of the time left that is reserved for encoding and sending, at most SPARE_MOST_S."""
SPARE_MOST_S = 10.0


def train(
    trainer: Trainer,
    action: Train,
    checkpoint: bytes | None,
    *,
    fetch_s: float,
    now: Callable[[], float],
    stopped: Callable[[], bool],
) -> tuple[Trained | Failed, str]:
    """The reply to ``action``, and a sentence for people where there is an update. ``fetch_s``: how long the download
    took. Interrupted where the device is to stop before the work is done."""
    assignment = action.assignment
    if checkpoint is None:
        return Failed("The checkpoint was lost from this device's storage before training.", now()), ""
    started = time.monotonic()
    try:
        left = _time_left(action.due_at, now, stopped)
        update = trainer.train(assignment, from_bytes(checkpoint), assignment.device, left)
        if stopped() and not update.work.complete:
            raise Interrupted
        train_s = time.monotonic() - started
        body = _encoded(assignment, update, checkpoint, fetch_s, train_s)
    except Exception as error:
        if stopped():
            raise Interrupted from error
        log.exception("training failed in run %s, round %s", assignment.run, assignment.round)
        return Failed(_sentence(error), now()), ""
    text = f"Trained in {train_s:.1f} s; the update has {len(body)} bytes."
    return Trained(body, update.work.complete, now()), text


def _encoded(assignment: Assignment, update: Update, checkpoint: bytes, fetch_s: float, train_s: float) -> bytes:
    """What is saved: the body to send, or of a secure round what goes under masks, with no metrics and no times."""
    if assignment.secure is not None:
        return ClearContribution.of(update, checkpoint, assignment.task).encoded
    codec, started = codecs.beside(assignment.task.codec, assignment.roles), time.monotonic()
    encoded = _Encoded(codec.name, codec.encode(update.delta, codecs.Origin.of(assignment)))
    return encode_update(
        update,
        cast("codecs.Codec", encoded),
        run=assignment.run,
        round=assignment.round,
        attempt=assignment.attempt,
        seconds=Seconds(fetch_s=fetch_s, train_s=train_s, encode_s=time.monotonic() - started),
    )


def _time_left(due_at: float, now: Callable[[], float], stopped: Callable[[], bool]) -> Callable[[], float]:
    """Seconds left for training, read before each step; 0 once the device is to stop."""
    due_at -= min(SPARE_MOST_S, SPARE * max(0.0, due_at - now()))
    return lambda: 0.0 if stopped() else due_at - now()


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A codec with the result of its encoding, so that the report inside the body can hold the time that it took."""

    name: str
    tensors: Tensors

    def encode(self, delta: Mapping[str, Array], origin: codecs.Origin) -> Tensors:
        return self.tensors


def _sentence(error: Exception) -> str:
    """``ValueError: the loss is not finite``: an error's type and text on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
