"""Whether the privacy ledger holds at least what the run's checkpoints have told, by the updates that count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from coordinator.engine.event_fields import updates_digest
from coordinator.engine.plan import Plan
from coordinator.store.port import ContributionRow, Reader
from coordinator.verify.audit import audit_rows
from coordinator.verify.kinds import UNREADABLE
from coordinator.verify.violation import RunViolation, Violation, printable

_ROUNDING = 1e-9
"""Relative, of sums of floats."""


def against_audit(reader: Reader) -> Iterator[Violation]:
    """Budgets and owners' words that are not those of the audit, which has each in the same transaction."""
    rows = [row.audited for row in reader.privacy_ledgers()]
    rows += [row.audited for row in reader.privacy_allowances()]
    has = Counter((row.action, row.at, row.by, row.detail) for row in rows)
    said = Counter(
        (row.action, row.at, row.by, row.detail)
        for _, row in audit_rows(reader)
        if row.action in ("ledger.create done", "ledger.allow done")
    )
    for _, _, _, detail in has - said:
        yield Violation("ledger", "", 0, printable(f"a privacy ledger has {detail}, and the audit does not"))
    for _, _, _, detail in said - has:
        yield Violation("ledger", "", 0, printable(f"the audit has {detail}, and no privacy ledger has"))


def against_ledger(
    reader: Reader, run: str, plan: Plan, counted: Mapping[int, Sequence[ContributionRow]]
) -> Iterator[RunViolation]:
    """``counted``: committed round -> the updates in its sum."""
    if plan.privacy is None:
        return
    ledger, cost = plan.privacy.ledger or f"run:{run}", plan.privacy.cost(plan)
    times: Counter[str] = Counter()
    latest = max(counted, default=0)
    if plan.privacy.ledger is not None and reader.privacy_ledger(ledger) is None:
        yield RunViolation("ledger", latest, f"the privacy ledger {ledger} is gone")
    try:
        debits = {(row.ledger, row.round, row.counted): row for row in reader.privacy_debits(run)}
        spent = {row.device: row for row in reader.privacy_spending_in(ledger) if row.run == run}
        for number, items in counted.items():
            times.update(item.device for item in items)
            digest = updates_digest((item.device, item.digest, item.weight) for item in items)
            debit = debits.get((ledger, number, digest))
            if plan.secure is not None:  # the list that was shown: a group of it may have fallen since
                debit = next((one for one in debits.values() if one.ledger == ledger and one.round == number), None)
            short = debit is not None and (len(items) > debit.devices if plan.secure else len(items) != debit.devices)
            if items and (debit is None or debit.rho < cost * (1 - _ROUNDING) or short):
                yield RunViolation("ledger", number, f"its sum is in the model, and not in the privacy ledger {ledger}")
        for device, often in times.items():
            row = spent.get(device)
            if row is None or row.times < often or row.rho < often * cost * (1 - _ROUNDING):
                has = "nothing" if row is None else f"{row.rho:.6g}"
                told = f"{device} has counted in {often} rounds, which is zCDP {often * cost:.6g}"
                yield RunViolation("ledger", latest, f"{told}, and the ledger has {has}")
        sums = [(row.rho * row.devices) for row in debits.values() if row.ledger == ledger]
        if not math.isclose(math.fsum(sums), math.fsum(row.rho for row in spent.values()), rel_tol=_ROUNDING):
            yield RunViolation("ledger", latest, "what its devices have lost is not the sum of its rounds")
    except UNREADABLE:
        yield RunViolation("ledger", latest, "its rows in the privacy ledger cannot be read")
