"""Privacy ledgers: who has nothing left to lose, and which plans may use a ledger.

A ledger's budget bounds what its devices lose over all runs that name it. It holds three times: a device without room
for one more round is not drawn; one that was drawn for another run at the same moment is on no list of a secure round
that is shown, and the plain round that it has reported in fails before anything is made of its sum; and a plan that a
ledger does not fit is refused.

A device that has lost something by one ledger takes part by no other: two ledgers with a budget each would be twice the
budget for that device. An owner may allow it for a pair of ledgers; that stands in the ledger and in the audit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from client_sdk.privacy.accounting import epsilon_of, rho_for
from client_sdk.protocol.names import did_you_mean
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.event_fields import updates_digest
from coordinator.engine.plan import Plan
from coordinator.engine.privacy import Privacy
from coordinator.engine.state import RunState
from coordinator.store.port import LedgerRow, Reader, RunRow, Transaction

if TYPE_CHECKING:
    from coordinator.runtime.core import Core

ROUNDING = 1 + 2.0**-40
"""What adding up floats may add, which is not held against a device. Noise that is computed from a target has as much
to spare."""


def budget(reader: Reader, plan: Plan, privacy: Privacy, run: str) -> float:
    """The zCDP that the run's ledger allows each device; 0 where somebody has deleted the ledger."""
    if privacy.ledger is None:
        return privacy.rho(plan)
    row = reader.privacy_ledger(privacy.ledger)
    return 0.0 if row is None else rho_for(row.epsilon, row.delta)


def kept_out(reader: Reader, state: RunState, devices: Collection[str] | None) -> dict[str, str]:
    """Those of these devices that no round of this run may have, each with the reason in a sentence. None: of all that
    have lost something, and where nobody may take part, of all in the pool."""
    privacy = state.plan.privacy
    if privacy is None:
        return {}
    ledger, most = privacy.ledger_of(state.run), budget(reader, state.plan, privacy, state.run) * ROUNDING
    allowed = {row.other for row in reader.privacy_allowances(ledger)}
    spent, found, cost = defaultdict[str, float](float), dict[str, str](), privacy.cost(state.plan)
    for row in reader.privacy_spending(devices):
        if row.ledger == ledger:
            spent[row.device] += row.rho
        elif row.ledger not in allowed:
            found[row.device] = (  # not which: who may see this run may not see that one
                f"it has lost some privacy by another ledger than {ledger}, by which this run counts: give all plans "
                "one privacy.ledger, or let an owner allow it with 'quorate privacy ledger allow "
                f"{ledger} --spent-in OTHER' ('quorate privacy ledger show' lists all)"
            )
    if cost > most:
        devices = [str(row[0]) for row in reader.places()] if devices is None else devices
        return found | dict.fromkeys(devices, f"one round costs more than the ledger {ledger} allows in all")
    why = f"it has no room for another round in the ledger {ledger}"
    return found | {device: why for device in (spent if devices is None else devices) if spent[device] + cost > most}


def is_debited(reader: Reader, state: RunState, counted: Iterable[fx.Contribution]) -> bool:
    """Whether this list of the round under way is in the ledger."""
    privacy = state.plan.privacy
    if privacy is None:
        return False
    digest = updates_digest((item.device, item.digest, item.weight) for item in counted)
    return reader.privacy_debit(privacy.ledger_of(state.run), state.run, state.round_number, digest) is not None


def reason_against_list(reader: Reader, state: RunState, counted: Iterable[fx.Contribution]) -> str:
    """Why the round under way may not use the sum of these, in a sentence; empty: it may."""
    out = kept_out(reader, state, [item.device for item in counted])
    return f"{next(iter(out))} cannot count: {next(iter(out.values()))}" if out else ""


def stepped(tx: Transaction, state: RunState, event: ev.Event) -> Iterator[tuple[ev.Event, RunState, list[fx.Effect]]]:
    """The event, with the state that it leads to and its effects. Before an event that would show the list of a private
    secure round come those by which the devices on it that have no room are out of the round, with their vectors: once
    a list is shown, its sum can be opened. It is asked in the transaction that would debit the list."""
    todo = [event]
    while todo:
        following, effects = rounds.step(state, todo[-1])
        listed = next((one.devices for one in effects if isinstance(one, fx.RecordDebit)), ())
        if listed and state.secure is not None:
            tx.hold_privacy_ledgers()
            if out := kept_out(tx, state, listed):
                place = {"round": state.round_number, "attempt": state.current.attempt}
                todo += [ev.Faulted(at=event.at, **place, device=device, reason=why) for device, why in out.items()]
                continue
        yield todo.pop(), following, effects
        state = following


def reason_against(reader: Reader, plan: Plan) -> str:
    """Why a run of this plan may not use the ledger that it names, in a sentence; empty: it may."""
    privacy = plan.privacy
    if privacy is None or privacy.ledger is None:
        return ""
    ledger = privacy.ledger
    row = reader.privacy_ledger(ledger)
    if row is None:
        near = did_you_mean(ledger, [one.ledger for one in reader.privacy_ledgers()])
        return (
            f"there is no privacy ledger {ledger}{near or ':'} 'quorate privacy ledger create {ledger} "
            f"--epsilon {privacy.epsilon or 8:g} --delta {privacy.delta:g}' makes one"
        )
    if row.delta != privacy.delta:
        return f"the ledger {ledger} counts at delta {row.delta:g}, and the plan at {privacy.delta:g}"
    named = set(plan.cohort.devices)
    for other in _runs_of(reader, ledger):
        cohort = cast("dict[str, Any]", other.plan.get("cohort") or {})
        if set(cohort.get("devices") or ()) != named:
            return (
                f"the ledger {ledger} is that of runs with another cohort.devices than this plan's: a ledger is of one "
                "population"
            )
    most = rho_for(row.epsilon, row.delta) * ROUNDING
    if privacy.cost(plan) > most:
        costs = epsilon_of(privacy.cost(plan), row.delta)
        return (
            f"one round costs epsilon {costs:.3g}, and the ledger {ledger} allows {row.epsilon:.3g} in all: give more "
            "noise, or take another ledger"
        )
    return ""


def warnings_of(reader: Reader, plan: Plan) -> list[str]:
    """What keeps devices out of a run of this plan, in a sentence; none where nothing does."""
    if plan.privacy is None:
        return []
    ledger = plan.privacy.ledger or ""
    out = reader.privacy_elsewhere([ledger, *(row.other for row in reader.privacy_allowances(ledger))])
    if not out:
        return []
    devices, take = ("device has", "takes") if out == 1 else ("devices have", "take")
    ways = "name their privacy.ledger in this plan too, or let an owner allow it ('quorate privacy ledger allow')"
    return [f"{out} {devices} lost some privacy by other ledgers and {take} no part: {ways}"]


def simulated(core: Core, plan: Plan) -> None:
    """Makes the ledger that a simulated run names, with the plan's own budget: it protects nobody."""
    privacy = plan.privacy
    if privacy is None or privacy.ledger is None or core.store.privacy_ledger(privacy.ledger) is not None:
        return
    with core.store.transaction() as tx:
        tx.insert_privacy_ledger(
            LedgerRow(
                ledger=privacy.ledger,
                epsilon=privacy.spent(plan),
                delta=privacy.delta,
                created_at=core.clock.now(),
                created_by="simulation",
            )
        )


def _runs_of(reader: Reader, ledger: str) -> list[RunRow]:
    """The runs whose plans name this ledger, oldest first."""
    return [row for row in reader.runs() if _privacy_of(row).get("ledger") == ledger]


def _privacy_of(row: RunRow) -> dict[str, Any]:
    return cast("dict[str, Any]", row.plan.get("privacy") or {})
