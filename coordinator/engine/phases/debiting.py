"""What a private round costs each device on its list, as a record for the ledger.

The record belongs to the event that fixes the list, so it is durable in that event's transaction: before anything that
is derived from the sum leaves the process. All mechanisms are zCDP, whose rho adds up exactly, also where each release
is chosen after the one before (Bun, Steinke 2016, arXiv:1605.02065, lemma 7). It is the curve rho a of Renyi
divergences over all orders a, so one number for each device says what a list of orders would.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.engine import effects as fx
from coordinator.engine.event_fields import updates_digest
from coordinator.engine.state import RunState


def debit(state: RunState, counted: Iterable[fx.Contribution], rho: float) -> fx.RecordDebit:
    """The debit of the round under way, of a plan with ``[privacy]``. ``rho``: what it costs each device."""
    privacy, items = state.plan.privacy, tuple(counted)
    if privacy is None:
        raise ValueError("the plan has no [privacy]")
    return fx.RecordDebit(
        ledger=privacy.ledger_of(state.run),
        round=state.round_number,
        counted=updates_digest((item.device, item.digest, item.weight) for item in items),
        rho=rho,
        devices=tuple(sorted(item.device for item in items)),
    )
