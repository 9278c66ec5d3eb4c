"""What a device trained for a secure round, before any mask: saved on the device, and never sent.

It is not encoded yet: that is done when an attempt begins. Besides the change of the model it holds what the exchanges
need: on how many examples the device trained, and the digest of the tensors from which it did. It has no metrics:
nothing else of a secure round leaves the device.

It waits unencoded: an encoded copy would be a second form of what must be erased. It is erased in the step that signs
a list, since another attempt may need it until then, and overwritten with zeros. Only the coordinator's word or the
clock ends an attempt: a device that deleted its secrets at each lost connection would cost the round a device each
time. Its secret, for rounding and for the order of batches, is drawn once and not derived from its key, which is
rotated. ``Client`` has no parameter for entropy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.chance import labelled
from client_sdk.codecs.port import require_encodable
from client_sdk.device.record import TrainedWork
from client_sdk.protocol.devices import Assignment, Task
from client_sdk.protocol.secure import SecureTask
from client_sdk.protocol.wire import canonical
from client_sdk.secagg.actions import DeviceContribution
from client_sdk.secagg.agreement import derive
from client_sdk.secagg.header import agreed_digest
from client_sdk.secagg.nearness import KIND_BYTES, sketch_of
from client_sdk.secagg.origin import CLOSE, First
from client_sdk.tensors import (
    FLOATING,
    Array,
    Float32,
    Layout,
    Manifest,
    Tensors,
    canonical_digest,
    flatten,
    from_bytes,
    read_header,
    to_bytes,
    widen,
)
from client_sdk.tensors.manifest import by_name, is_shared, of_model
from client_sdk.update import Update

KEY = "quorate.contribution"
"""The only key of the metadata."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClearContribution:
    """A device's own change in a secure round. Its ``repr`` shows nothing of it."""

    delta: Tensors
    """Local minus global weights by name, float32."""
    examples: int
    """Training examples behind it."""
    tensors: str
    """``canonical_digest`` of the checkpoint from which the device trained."""

    @classmethod
    def of(cls, update: Update, checkpoint: bytes, task: Task) -> ClearContribution:
        """What ``update``, trained from this checkpoint, contributes. ManifestMismatch where it does not have the names
        and shapes of the tensors that are averaged, or the checkpoint is not exactly the learner's model. NotFinite and
        OutOfRange for values that no sum can take: in a secure round nobody else could see that.

        A tensor that the learner ignores would make another checkpoint of the same model, and a device that is spent on
        one would train on the other."""
        whole = read_header(checkpoint).manifest
        whole.select(task.averaged).as_float32().require(update.manifest)
        update.model.require(whole, "the checkpoint of this secure round")
        for name, array in update.delta.items():
            require_encodable(name, array, task.codec)
        return cls(delta=update.delta, examples=update.examples, tensors=canonical_digest(checkpoint))

    @property
    def encoded(self) -> bytes:
        """The bytes to save."""
        about = {"examples": self.examples, "tensors": self.tensors}
        return to_bytes(self.delta, {KEY: json.dumps(about)})

    @classmethod
    def parse(cls, body: bytes) -> ClearContribution:
        """Decode the bytes of ``encoded``, which were checked against their digest."""
        about: dict[str, Any] = json.loads(read_header(body).metadata[KEY])
        return cls(delta=from_bytes(body), examples=about["examples"], tensors=about["tensors"])

    def dimension(self, assignment: Assignment) -> int:
        """The length of ``values`` in this round. UnknownCodec where encodings of its codec cannot be added."""
        return codecs.linear(assignment.task.codec).count(self._layout(assignment).parameters.elements)

    def values(self, assignment: Assignment) -> Float32:
        """What is masked of the parameters in this round: their delta as one vector, encoded. A new array.
        UnknownCodec."""
        parameters = self._layout(assignment).parameters
        flat = flatten({name: self.delta[name] for name in parameters}, parameters)
        return codecs.linear(assignment.task.codec).forward(flat, codec_seed(assignment))

    def put_in(self, assignment: Assignment, secure: SecureTask, rounding_secret: bytes) -> DeviceContribution:
        """All that is masked in this round, under these terms."""
        layout = self._layout(assignment)
        statistics = layout.statistics
        return DeviceContribution(
            values=self.values(assignment),
            weight=weight_of(self.examples, secure),
            rounding_secret=rounding_secret,
            statistics=flatten({name: self.delta[name] for name in statistics}, statistics),
            tensors=tuple((spec.elements, name in layout.non_negative) for name, spec in statistics.items()),
        )

    def _layout(self, assignment: Assignment) -> Layout:
        return Layout.of_delta(Manifest.of(self.delta), assignment.roles)


def codec_seed(assignment: Assignment) -> bytes:
    """The seed by which all devices of this round encode: the header must name it."""
    return codecs.seed_for(assignment.task.codec, assignment.plan_digest, assignment.round)


def in_private_order(assignment: Assignment, secret: bytes, checkpoint: bytes) -> Assignment:
    """What the device trains by in a secure round: the same task under a seed of its own, of 63 bits, by HKDF-SHA256
    from its secret, the run, the round, and the canonical digest of the checkpoint's tensors. So it trains alike after
    a restart, and on another model, however near, in an order that nobody else knows: two sums of nearly equal models
    do not differ by one device's update alone. The plan's seed is public."""
    seed = private_seed(secret, assignment.run, assignment.round, canonical_digest(checkpoint))
    return assignment.changed(task=assignment.task.model_copy(update={"seed": seed}))


def sketch_for(
    secret: bytes, checkpoint: bytes, said: Callable[[Manifest], Collection[str]] = lambda model: ()
) -> bytes:
    """What the device remembers of a checkpoint, to know a near one again: of its parameters alone, since other
    statistics of a normalization change next to nothing of what is trained. Which tensors are statistics is told by
    their names in the learner's model, and by the learner, of which ``said`` gives those that it names: by the roles
    and the averaged tensors of a plan, which a coordinator chooses, it could make the same model another one."""
    model = of_model(from_bytes(checkpoint))
    manifest = Manifest.of(model)
    statistics = {*by_name(manifest), *said(manifest)}
    names = sorted(name for name, spec in manifest.items() if spec.dtype in FLOATING and name not in statistics)
    kind = sha256(canonical([[name, list(model[name].shape)] for name in names])).digest()[:KIND_BYTES]
    return sketch_of((_as_floats(model[name]) for name in names), kind, secret)


def run_key(coordinator: str, assignment: Assignment) -> bytes:
    """By what a device tells runs apart whose models it knows (``Memory.known``)."""
    return sha256(canonical([coordinator, assignment.run, assignment.plan_digest])).digest()


def model_digest(checkpoint: bytes) -> bytes:
    """``canonical_digest`` of a checkpoint's model alone, without what a strategy shares beside it."""
    return bytes.fromhex(canonical_digest(to_bytes(of_model(from_bytes(checkpoint)))))


def first_made(made: Tensors, checkpoint: bytes, version: int, sketch: bytes) -> First:
    """What a device finds out by the first model that it has ``made`` of the run's seed; of version 0, which is the
    ``checkpoint``, also whether it is that one. ``sketch``: of the one that it has made."""
    differs = _difference(made, from_bytes(checkpoint)) if version == 0 else ""
    return First(sketch=sketch, made=True, differs=differs, can_make=True)


def _difference(made: Tensors, received: Tensors) -> str:
    """The first tensor that is another than in ``made``; what a strategy shares begins with zeros. Empty: none."""
    for name in sorted(made.keys() | received.keys()):
        one, other = made.get(name), received.get(name)
        if other is not None and is_shared(name):
            same = not other.any()
        elif one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            same = False
        elif Manifest.of({name: one})[name].dtype in FLOATING:
            mine, theirs = _as_floats(one).astype(np.float64), _as_floats(other).astype(np.float64)
            same = bool(np.linalg.norm(mine - theirs) <= CLOSE * np.linalg.norm(mine))
        else:
            same = one.tobytes() == other.tobytes()
        if not same:
            return name
    return ""


def _as_floats(array: Array) -> NDArray[np.floating]:
    return array if array.dtype.kind == "f" else widen(array)  # bfloat16 is no number to numpy


def private_seed(secret: bytes, run: str, round: int, tensors: str) -> int:
    """The seed of ``in_private_order``. ``tensors``: ``canonical_digest`` of the checkpoint."""
    drawn = derive(secret, salt=bytes.fromhex(tensors), info=labelled("private order", run, round), length=8)
    return int.from_bytes(drawn, "big") >> 1


def agreed(assignment: Assignment) -> bytes:
    """``terms.agreed_digest`` of a secure round's assignment. ValueError where the round is plain."""
    if assignment.secure is None:
        raise ValueError("a plain round has no terms of secure rounds")
    secure = assignment.secure
    moves = secure.move, secure.move_each
    return agreed_digest(assignment.plan_digest, assignment.task, secure.weighting, assignment.roles_digest, moves)


def work_for(
    assignment: Assignment, body: bytes, left: int = -1, *, sketch: bytes = b"", near: bool = False
) -> TrainedWork:
    """What the record says about a contribution of these bytes. ``left``, ``sketch``, ``near``: see ``TrainedWork``."""
    contribution = ClearContribution.parse(body)
    return TrainedWork(
        agreed=agreed(assignment).hex(),
        tensors=contribution.tensors,
        dimension=contribution.dimension(assignment),
        left=left,
        sketch=sketch.hex(),
        near=near,
    )


def weight_of(examples: int, secure: SecureTask) -> int:
    """What a device with so many training examples weighs by the plan, which travels in its lanes alone. One cap holds
    for all devices of a sum: with one for each (``Registered.examples_cap``), a coordinator could let one weigh more
    than all others together."""
    return secure.weight_cap if secure.weighting == "equal" else min(examples, secure.weight_cap)
