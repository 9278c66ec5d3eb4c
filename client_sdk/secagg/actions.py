"""What the device's part of an attempt asks of its driver, and what it is given: see ``device``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from client_sdk.protocol.secure import Stage
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.masks import Masker, pair_seed
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.quantize import NOTHING
from client_sdk.secagg.roster import MaskingCohort, Roster, Vouching, join
from client_sdk.secagg.shamir import split
from client_sdk.secagg.shares import SharePair, seal_pair, unseal_pair
from client_sdk.secagg.survivors import Proof, Survivors
from client_sdk.tensors.floats import Float32


@dataclass(frozen=True, slots=True)
class Keep:
    """Apply a change to the newest stored memory, and make the result durable.

    Who drives an attempt calls the storage's ``keep``, which holds a lock meanwhile, and sends the memory back. Where
    ``change`` raises (Superseded, Refusal) nothing is stored: the error is let out, and the generator is not continued.
    A session passes the same action on to its own driver, whose reply says which of both it was
    (``device.actions.MemoryKept``, ``MemoryNotKept``).
    """

    change: Callable[[Memory], Memory]
    """Returns the same object where nothing is to be stored. It is called once."""


@dataclass(frozen=True, slots=True)
class Transmit:
    """One message of the device: the same bytes each time that it is sent."""

    stage: Stage
    body: bytes
    signature: bytes
    """Over the header's digest (advertise) or h, the stage and the body."""
    blob: bytes = b""
    """With *advertise* the certificate, with *mask* the packed vector."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The coordinator's answer and its time (Unix seconds, device's clock)."""

    at: float
    body: bytes


AttemptAction = Keep | Transmit
AttemptReply = Memory | ServerAnswer | None
DevicePart = Generator[AttemptAction, AttemptReply, Memory]
"""Sends actions: the reply to a Keep is the memory as it was stored, to a Transmit the coordinator's answer. Returns
the memory after the attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceContribution:
    """What a device contributes: encoded values and statistics (1-d float32), its weight, and its own rounding secret
    (32 bytes).

    The values are not changed here, since another attempt may need them: the driver overwrites them when the checkpoint
    is spent or the round is over."""

    values: Float32
    weight: int
    rounding_secret: bytes
    statistics: Float32 = field(default_factory=lambda: NOTHING)
    tensors: tuple[tuple[int, bool], ...] = ()
    """(values, whether it is non-negative) of each tensor of statistics, in the order of their names."""

    def erase(self) -> None:
        """Overwrites the values."""
        self.values.fill(0)
        if self.statistics.size:
            self.statistics.fill(0)


def _agree(key: AgreementKey, public: bytes) -> bytes:
    return key.agree(public)


def _roster(data: bytes) -> Roster:
    return Roster.parse(data)


def _join(header: AttemptHeader, roster: Roster, vouched: Vouching, near: str) -> MaskingCohort:
    return join(header, roster, vouched, near=near)


def _prove(proof: Proof, cohort: MaskingCohort, place: int, survivors: Survivors) -> None:
    proof.require(cohort, place, survivors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Primitives:
    """The expensive and the secret steps, so that tests and simulations can observe or replace them. Nothing that comes
    over a wire, from a plan or from the environment chooses them."""

    split: Callable[..., list[bytes]] = split
    seal: Callable[..., bytes] = seal_pair
    unseal: Callable[..., SharePair] = unseal_pair
    masker: Callable[[int], Masker] = Masker
    agree: Callable[[AgreementKey, bytes], bytes] = _agree
    pair_seed: Callable[[bytes, bytes, int, int], bytes] = pair_seed
    roster: Callable[[bytes], Roster] = _roster
    join: Callable[[AttemptHeader, Roster, Vouching, str], MaskingCohort] = _join
    prove: Callable[[Proof, MaskingCohort, int, Survivors], None] = _prove
