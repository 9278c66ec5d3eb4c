"""A device's part in the secure rounds of a schedule: what its session needs beside that of plain rounds, and what the
checks see of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from client_sdk.credentials.certificate import RevocationList
from client_sdk.device.actions import FetchList, Send, Sketched
from client_sdk.device.contribution import model_digest
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import Signer
from client_sdk.protocol.devices import Assignment, CheckIn, Policy
from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.complaints import Complaint, OpenedPairs
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.memory import Live, Memory
from client_sdk.secagg.nearness import SKETCH_BYTES
from client_sdk.secagg.origin import First
from client_sdk.secagg.parameters import SMALLEST
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.survivors import RevealedShares, Survivors
from client_sdk.tensors import canonical_digest
from tests.client_sdk.bounds import any_work
from tests.explorer.faults import Broken
from tests.explorer.holders import Holder
from tests.explorer.secure.lies import DishonestPart
from tests.explorer.secure.quick_crypto import HashSigner
from tests.explorer.secure.vectors import Signatures, header_of, tensors_of
from tests.explorer.shape import Shape

if TYPE_CHECKING:
    from tests.explorer.world import World

SKETCH = bytes(SKETCH_BYTES)
"""Of all models: no owner bounds how far one is from another."""
STRICT = 3
"""One of so many devices wants a signature, where some do."""
BLOCK_BYTES = 1 << 12
"""Of a mask's key stream: vectors are short here."""


def _masker(bits: int) -> Masker:
    return Masker(bits, BLOCK_BYTES)


def is_strict(shape: Shape, name: str) -> bool:
    """Whether the owner of this device wants a signature under a run's model."""
    return shape.signed and int(name[1:]) % STRICT == 1


class SecurePart:
    """Of one device, whose key is ``holder``'s."""

    def __init__(self, world: World, name: str, holder: Holder, also: Callable[[Send, bytes], None]) -> None:
        self._world, self._id = world, holder.id
        self.signer: Signer = holder.key if world.shape.real_crypto else HashSigner(holder.key.public_hex)
        self.lies = DishonestPart(world, holder.id, self.signer, also)
        self.entropy = world.chance.entropy(f"entropy {name}")
        strict: dict[str, Any] = {"origins": "signed"} if is_strict(world.shape, name) else {}
        if strict:
            world.strict.add(holder.id)
        self._bounds = Policy(secure=any_work(smallest_cohort=SMALLEST, **strict))

    @property
    def is_honest(self) -> bool:
        return self._id not in self._world.dishonest

    @property
    def primitives(self) -> Primitives:
        """Of this device: a dishonest one may split another secret than its own."""
        return (
            Primitives(masker=_masker)
            if self.is_honest
            else Primitives(masker=_masker, split=self.lies.split, seal=self.lies.seal, unseal=self.lies.unseal)
        )

    def offer(self, plain: CheckIn, memory: Memory) -> CheckIn:
        """What the device offers: secure rounds of small cohorts, and no plain ones of a learner that has had any."""
        return plain.changed(
            policy=self._bounds.changed(plain=None if memory.plain is None else tuple(sorted(memory.plain)))
        )

    def listed(self, action: FetchList) -> RevocationList:
        """The list of this digest, where the authority has made one, else its newest."""
        lists = self._world.authority.lists
        return next((one for one in lists if one.digest == action.digest), lists[-1])

    def sketched(self, assignment: Assignment, models: Mapping[str, bytes], at: float, *, first: bool) -> Sketched:
        """What the device finds out of this round's model, and with ``first`` of the signed one. Worlds of which no
        device wants a signature keep no account of models."""
        if not self._world.shape.signed:
            return Sketched(b"", b"", at)
        signed, found = None if assignment.secure is None else assignment.secure.signed, First()
        if first and signed is not None:
            found = First(version=signed.version, sketch=SKETCH, signed=model_digest(models[signed.digest]))
        tensors = canonical_digest(models[assignment.checkpoint.digest])
        return Sketched(SKETCH, bytes.fromhex(tensors), at, self._world.register.lanes, found)

    def trained(
        self, assignment: Assignment, number: int, examples: int, checkpoint: bytes, variant: int, invalid: bool
    ) -> bytes:
        """A contribution: a mark in the lane of this device and round. ``invalid``: the last value is not a number."""
        world = self._world
        values = np.zeros(world.register.lanes, np.float32)
        parent = assignment.checkpoint.digest
        for lane, value in world.register.marked(number, assignment.round, variant, parent).items():
            values[lane] = value
        if invalid:
            values[-1] = np.nan
        tensors = canonical_digest(checkpoint)
        world.vectors.models[bytes.fromhex(tensors)] = tensors_of(checkpoint)
        return world.vectors.contribution(values, examples, tensors, parent)

    # ------------------------------------------------------------ what the checks see

    def kept(self, storage: MemoryStorage, before: Memory) -> None:
        """The device has stored a change of its memory of secure rounds."""
        record, memory = storage.load(), storage.load_secure()
        if record is None or memory is before:
            return
        for tensors, live in memory.live.items():
            if before.live.get(tensors) is not live:
                rounding = bytes.fromhex(record.secret)
                plan = self._world.shape.plan
                self._world.vectors.kept(self._id, live, record.update_digest, rounding, plan)

    def sent(self, send: Send, memory: Memory) -> Send:
        """What the device sends for this message of a secure round: the same, unless it lies. An honest device signs
        one list on a checkpoint, for ever, and reveals one kind of share of each dealer."""
        stage, live = str(send.path.get("stage", "")), self._live(send, memory)
        if live is None or stage == "advertise" or (self.is_honest and stage in ("share", "mask")):
            return send
        cohort = self._world.vectors.group_of(self._id, live)
        if self.is_honest:
            self._signs(send, stage, cohort, live.survivors, self._world.vectors.models[self._tensors_of(live, memory)])
            return send
        return self.lies.altered(send, stage, cohort, live.survivors)  # type: ignore[arg-type]

    def attempt_of(self, send: Send, memory: Memory) -> str:
        """What tells the answer to this attempt from others; empty: the device knows it no more."""
        live = self._live(send, memory)
        return "" if live is None else hashlib.sha256(live.header).hexdigest()

    def _live(self, send: Send, memory: Memory) -> Live | None:
        """The attempt of this message."""
        place = tuple(send.path.get(name) for name in ("run", "round", "attempt"))
        for live in memory.live.values():
            header = header_of(live.header)
            if (header.run, header.round, header.attempt) == place:
                return live
        return None

    @staticmethod
    def _tensors_of(live: Live, memory: Memory) -> bytes:
        return next(tensors for tensors, one in memory.live.items() if one is live)

    def _disputes(self, send: Send, stage: str, cohort: MaskingCohort) -> None:
        """An honest device complains only of a liar, and opens its pair only for a liar, which has it."""
        octets, dishonest = send.octets or b"", self._world.dishonest
        if stage == "open":
            others, why = list(OpenedPairs.parse(octets, cohort.n).pairs), "opens a pair of shares for"
        else:
            others, why = [dealer for dealer, _ in Complaint.parse(octets, cohort.n).rows], "complains of"
        for name in map(cohort.device, others):
            if name not in dishonest or (stage == "open" and name not in self._world.vectors.accusers):
                raise Broken("unmasked", f"{self._id} {why} {name}, which does not lie, in {send.path}")

    def _signs(self, send: Send, stage: str, cohort: MaskingCohort, survivors: bytes, model: bytes) -> None:
        if stage in ("complain", "open"):
            self._disputes(send, stage, cohort)
            return
        mine = self._world.vectors.signed.setdefault((self._id, model), Signatures())
        octets = send.octets or b""
        if stage == "survivors":
            mine.lists.add(cohort.h + octets)
            if len(mine.lists) > 1:
                raise Broken("spent", f"{self._id} signs a second list on one checkpoint, in {send.path}")
            return
        if cohort.h + survivors not in mine.lists:
            raise Broken("spent", f"{self._id} reveals shares for a list that it has not signed, in {send.path}")
        shown = RevealedShares.parse(octets, Survivors.parse(survivors, cohort.n), cohort.n)
        for dealer, kind, _ in shown.shares:
            if mine.kinds.setdefault((cohort.h, dealer), kind) != kind:
                raise Broken("spent", f"{self._id} reveals both shares of one dealer, in {send.path}")
