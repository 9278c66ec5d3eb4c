"""The messages about privacy ledgers: what devices have lost over runs, and how much they may.

A ledger with a name is created by an owner, with its budget, and plans name it (``privacy.ledger``). The ledger of a
run whose plan names none is called ``run:`` and the run's id. Routes: ``names.Route``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from client_sdk.protocol.names import LEDGER_PATTERN, NAME_PATTERN, Message, RunId

LedgerId = Annotated[str, Field(pattern=LEDGER_PATTERN)]


class CreateLedger(Message):
    """Makes a ledger with a budget, which stays as it is."""

    ledger: str = Field(pattern=NAME_PATTERN)
    """The name that plans give."""
    epsilon: float = Field(gt=0, le=1000, allow_inf_nan=False)
    """The most that a device may lose over all runs of the ledger, at ``delta``."""
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False)


class AllowSpending(Message):
    """Lets devices that have lost something by another ledger lose more by this one. It stands in the ledger."""

    spent_in: LedgerId
    """The other ledger."""
    because: str = Field(min_length=1, max_length=300)
    """Why, for the audit and for who reads the ledger."""


class Allowance(Message):
    """An owner's word that devices that have lost something by the ``other`` ledger may lose more by this one."""

    other: LedgerId
    because: str
    at: float
    by: str
    """The id of the operator."""


class LedgerRun(Message):
    """What a run has cost."""

    run: RunId
    devices: int
    """How many have lost something in it."""
    rounds: int
    """How often the device that was debited most often was."""
    rho: float
    """What the device that has lost most in it has lost, as zCDP."""
    epsilon: float
    """What that device has lost, as epsilon at the ledger's delta."""


class LedgerView(Message):
    """A ledger in figures. None of them names a device."""

    ledger: LedgerId
    epsilon: float
    """The most that a device may lose, at ``delta``."""
    delta: float
    budget: float
    """The most that a device may lose, as zCDP, which adds up."""
    rho: float
    """What the device that has lost most has lost over all runs, as zCDP."""
    spent: float
    """What that device has lost, as epsilon at ``delta``."""
    devices: int
    """How many have lost something."""
    near: int
    """How many of them have used nine tenths of the budget, or more."""
    tenths: list[int]
    """How many have used up to one tenth of the budget, up to two tenths, and so on: ten numbers."""
    runs: list[LedgerRun]
    allowed: list[Allowance]


class SpentRound(Message):
    """What a round has cost. A round whose list changed after it was debited has a row for each."""

    round: int
    at: float
    devices: int
    """How many were debited."""
    rho: float
    """What it cost each of them, as zCDP."""
    most: float
    """What the device that had lost most in this run had lost in it by then."""
    epsilon: float
    """What that device had lost, as epsilon at the plan's delta."""


class ExpectedRound(Message):
    """What the device that has lost most will have lost in a round to come, if it goes on as so far."""

    round: int
    epsilon: float


class ClipSince(Message):
    """The most that one update counts, from a round on."""

    round: int
    clip: float


class RunPrivacy(Message):
    """What a run's rounds have cost, and the ledger that they are debited to."""

    ledger: LedgerView
    epsilon_planned: float
    """What a device loses that counts as often as the plan allows."""
    rounds_planned: int
    """How many rounds the run has."""
    cost: float
    """What one round costs a device that counts, as zCDP."""
    rounds: list[SpentRound]
    clips: list[ClipSince]
    """The first one is the plan's; it has more where the clip adapts."""
    expected: list[ExpectedRound]
    """Rounds to come, some of them where they are many, up to the run's last one. Empty before the first round has cost
    anything, and after the last."""
    no_room_from: int | None
    """The round from which on that device has no room in the ledger, if it goes on as so far; None: it has room up to
    the last round."""
