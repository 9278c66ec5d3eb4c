"""The part of the Store port that holds privacy ledgers: what rounds have cost each device.

A debit is written in the transaction of the event that fixes a round's list, and adds to what each device on it has
lost. Rows are never deleted: what was told stays told.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from coordinator.store.gateway import Query, Reads, Writes
from coordinator.store.rows import AllowanceRow, DebitRow, LedgerRow, SpendingRow


class Figure(NamedTuple):
    """What a ledger says in short."""

    devices: int
    """How many have lost something."""
    rho: float
    """What the one that has lost most has lost, over all runs of the ledger."""


def _totals(reader: Any, ledger: str) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for row in reader._all(SpendingRow, {"ledger": ledger}):
        found[row.device] += row.rho
    return found


def _total(sa: Any, t: Any) -> Any:
    spending = t.privacy_spending.c
    wanted = spending.ledger == sa.bindparam("ledger")
    return sa.select(spending.device, sa.func.sum(spending.rho).label("rho")).where(wanted).group_by(spending.device)


def _figure(sa: Any, t: Any) -> Any:
    each = _total(sa, t).subquery()
    return sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(each.c.rho), 0.0))


_TOTALS = Query(sql=_total, python=lambda reader, ledger: _totals(reader, ledger).items())
_FIGURE = Query(
    sql=_figure,
    python=lambda reader, ledger: [(len(each := _totals(reader, ledger)), max(each.values(), default=0.0))],
)


def _elsewhere(sa: Any, t: Any) -> Any:
    spending = t.privacy_spending.c
    others = spending.ledger.not_in(sa.bindparam("ledgers", expanding=True))
    return sa.select(sa.func.count(spending.device.distinct())).where(others)


_ELSEWHERE = Query(
    sql=_elsewhere,
    python=lambda reader, ledgers: [
        (len({row.device for row in reader._all(SpendingRow) if row.ledger not in ledgers}),)
    ],
)


class LedgerReader(Reads):
    """Reads, usable inside a transaction and outside."""

    def privacy_ledger(self, ledger: str) -> LedgerRow | None:
        return self._get(LedgerRow, ledger)

    def privacy_ledgers(self, after: str = "", limit: int | None = None) -> list[LedgerRow]:
        """Those whose name sorts after this one, in order of name; ``limit`` None: all."""
        return self._all(LedgerRow, {"ledger >": after}, limit=limit)

    def privacy_allowances(self, ledger: str | None = None) -> list[AllowanceRow]:
        """Of this ledger, or of all, in order of name."""
        return self._all(AllowanceRow, {} if ledger is None else {"ledger": ledger})

    def privacy_debits(self, run: str) -> list[DebitRow]:
        """What the run's rounds have cost, in order."""
        return self._all(DebitRow, {"run": run}, "round at")

    def privacy_debit(self, ledger: str, run: str, round: int, counted: str) -> DebitRow | None:
        return self._get(DebitRow, ledger, run, round, counted)

    def privacy_spending(self, devices: Collection[str] | None) -> list[SpendingRow]:
        """What these devices, or all, have lost, in each ledger and run."""
        if devices is None:
            return self._all(SpendingRow)
        return self._all(SpendingRow, {"device in": list(devices)}) if devices else []

    def privacy_spending_in(self, ledger: str) -> list[SpendingRow]:
        """What devices have lost in each run of this ledger."""
        return self._all(SpendingRow, {"ledger": ledger})

    def privacy_totals(self, ledger: str) -> dict[str, float]:
        """Device -> what it has lost in this ledger, over all runs."""
        return {row[0]: row[1] for row in self._ask(_TOTALS, ledger=ledger)}

    def privacy_lost(self, run: str) -> float:
        """What the device that has lost most in this run has lost in it."""
        return max((float(most) for (most,) in self._values(DebitRow, "most", {"run": run}, "-most", 1)), default=0.0)

    def privacy_elsewhere(self, ledgers: Collection[str]) -> int:
        """How many devices have lost something by other ledgers than these."""
        return int(self._ask(_ELSEWHERE, ledgers=list(ledgers))[0][0])

    def privacy_figure(self, ledger: str) -> Figure:
        return Figure(*self._ask(_FIGURE, ledger=ledger)[0])


class LedgerWriter(LedgerReader, Writes):
    """Writes of ledgers."""

    @abstractmethod
    def hold_privacy_ledgers(self) -> None:
        """Lets other transactions that debit devices, by whichever ledger, wait until this one ends. Who looks whether
        there is room for a debit does so first, or two runs would both find room for the last one of a device."""

    def debit_privacy(self, row: DebitRow, devices: Sequence[str]) -> None:
        """Adds the debit to what each of these devices has lost. Nothing where this debit stands already. The row's
        ``most`` is computed here."""
        if self.privacy_debit(row.ledger, row.run, row.round, row.counted) is not None:
            return
        self.hold_privacy_ledgers()
        mine = {"ledger": row.ledger, "run": row.run}
        before = {one.device: one for one in self._all(SpendingRow, {**mine, "device in": list(devices)})}
        fresh = SpendingRow(**mine, device="", rho=0.0, times=0)
        after = []
        for device in devices:
            one = before.get(device, fresh)
            after.append(replace(one, device=device, rho=one.rho + row.rho, times=one.times + 1))
        last = self._values(DebitRow, "most", mine, "-most", 1)
        most = max([one.rho for one in after] + [float(most) for (most,) in last], default=0.0)
        self._put(after)
        self._insert([replace(row, most=most)])
