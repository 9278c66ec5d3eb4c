"""The privacy report of a run: what its models may tell of one device, in figures that an officer can sign for.

Route: ``Route.PRIVACY_REPORT``.
"""

from __future__ import annotations

from pydantic import Field

from client_sdk.protocol.names import SIGNATURE_PATTERN, Digest, Message, RunId
from client_sdk.protocol.operators import ShownStatus
from client_sdk.protocol.privacy import ClipSince


class PrivateRound(Message):
    """One round that has ended."""

    round: int
    kind: str
    status: str
    selected: int
    counted: int
    """In the sum."""
    late: int
    dropped: int
    withdrawn: int
    refused: int
    checkpoint: Digest | None
    """SHA-256 of the model that it made."""


class ReportedLedger(Message):
    """The ledger that the run is debited to."""

    name: str
    budget: float
    """The epsilon, at the run's delta, that a device may lose over all runs of the ledger."""
    spent: float
    """That of the device that has lost most."""
    devices: int
    """How many have lost something."""
    near: int
    """How many of them have used nine tenths of the budget, or more."""
    runs: int
    """How many runs they have lost it in."""
    words: int
    """How often an owner has allowed devices that have lost something by another ledger to lose more by this one."""
    said: tuple[str, ...]
    """What these owners gave as their reasons. Empty for a reader who does not see all runs."""


class PrivacyReport(Message):
    """What a run's models tell of one device, whom one has to trust for it, and what it does not cover."""

    run: RunId
    name: str
    status: ShownStatus
    made_at: float
    """Unix time in seconds."""
    simulated: bool
    """Whether a simulation played the run: its noise follows from a seed that is no secret, so it protects nobody."""
    log: str
    """Where the run's log ended, ``RUN:SEQ:LINK``: ``quorate verify --head`` takes it."""
    unit: str
    adjacency: str
    mechanism: str
    clips: tuple[ClipSince, ...]
    noise: float
    """The noise multiplier: the deviation of the noise in a sum, over the clip."""
    delta: float
    epsilon: float
    """Of the device that has counted most often, without amplification by sampling."""
    rho: float
    """zCDP of that device."""
    epsilon_planned: float
    """Of a device that counts as often as the plan allows."""
    most_rounds: int
    """In how many rounds a device may count."""
    rounds_of_a_device: dict[int, int]
    """Rounds -> how many devices have counted in exactly so many, from 1 up."""
    least_apart: int | None
    """The fewest committed rounds from one in which a device counted to the next in which it did; 1: in two successive
    ones. None: no device has counted twice."""
    ledger: ReportedLedger
    trusted: tuple[str, ...]
    not_covered: tuple[str, ...]
    rounds: tuple[PrivateRound, ...]
    refusals: dict[str, int]
    """Kind of problem -> how many updates were refused for it."""
    plan: Digest
    code: Digest
    """SHA-256 over the Python files of the coordinator that made the report: see ``code_digest``."""
    version: str
    """Of this coordinator."""
    first_model: Digest


class SignedReport(Message):
    """A report, and whose it is."""

    report: PrivacyReport
    key: str = Field(pattern="^[0-9a-f]{64}$")
    """The public key that signed it: that of the coordinator's audit."""
    signature: str = Field(pattern=SIGNATURE_PATTERN)
