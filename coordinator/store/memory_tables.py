"""The tables of the memory store, and layers over them: what a transaction wrote, laid over what is committed.

A row is found by (group, key): an event by (run, seq), a contribution by ((run, round), device). The bottom layer
holds the committed rows. A layer above changes it only in ``apply``, so a rollback drops the layer, and readers of the
bottom layer see none of its rows. Locks and unique keys are checked elsewhere (``memory.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from coordinator.store.bodies import from_text
from coordinator.store.chain import audit_beginning
from coordinator.store.flower_rows import (
    FlowerContentRow,
    FlowerMessageRow,
    FlowerNodeRow,
    FlowerReplyRow,
    FlowerRoundRow,
    FlowerRunRow,
)
from coordinator.store.insight import DeviceHours, ReplicaRow
from coordinator.store.messages import MessageRow
from coordinator.store.port import (
    ApiKeyRow,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    DeviceRow,
    ListRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow

ALL = ""
"""The group of a table that has only one."""

G = TypeVar("G", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Layer(Generic[G, K, V]):
    """The rows of one table: without ``base`` the committed rows, with it a transaction's view of them."""

    __slots__ = ("_base", "_groups")

    def __init__(self, base: Layer[G, K, V] | None = None) -> None:
        self._base = base
        self._groups: dict[G, dict[K, V | None]] = {}

    def get(self, group: G, key: K) -> V | None:
        """The row, None where there is none."""
        layer: Layer[G, K, V] | None = self
        while layer is not None:
            rows = layer._groups.get(group)
            if rows is not None and key in rows:
                return rows[key]
            layer = layer._base
        return None

    def rows(self, group: G) -> Mapping[K, V]:
        """A copy of a group's rows, by key."""
        below = {} if self._base is None else dict(self._base.rows(group))
        for key, row in self._groups.get(group, {}).items():
            if row is None:
                below.pop(key, None)
            else:
                below[key] = row
        return below

    def groups(self) -> set[G]:
        """Every group that has a row, or had one."""
        return set(self._groups) | (set() if self._base is None else self._base.groups())

    def put(self, group: G, key: K, row: V) -> None:
        self._groups.setdefault(group, {})[key] = row

    def drop(self, group: G, key: K) -> None:
        if self._base is None:
            self._groups.get(group, {}).pop(key, None)
        else:
            self._groups.setdefault(group, {})[key] = None

    def apply(self) -> None:
        """Writes this layer's changes into its base. The caller holds the lock that excludes readers."""
        if self._base is None:
            return
        for group, changes in self._groups.items():
            for key, row in changes.items():
                if row is None:
                    self._base.drop(group, key)
                else:
                    self._base.put(group, key, row)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's row and its bodies as text; ``row`` itself has none."""

    row: RunRow
    plan: str
    snapshot: str | None

    def whole(self) -> RunRow:
        """The row with its bodies."""
        snapshot = None if self.snapshot is None else from_text(self.snapshot)
        return replace(self.row, plan=from_text(self.plan), snapshot=snapshot)


class Tables:
    """All tables. Those after ``replicas`` and after ``flower_rounds`` are indexes."""

    def __init__(self) -> None:
        self.runs: Layer[str, str, RunRecord] = Layer()
        self.events: Layer[str, int, tuple[float, str, str, str]] = Layer()
        self.devices: Layer[str, str, DeviceRow] = Layer()
        self.workers: Layer[str, str, WorkerRow] = Layer()
        self.api_keys: Layer[str, str, ApiKeyRow] = Layer()
        self.logins: Layer[str, str, LoginRow] = Layer()
        self.revocations: Layer[str, int, ListRow] = Layer()
        self.authorities: Layer[str, int, AuthorityRow] = Layer()
        self.waiting: Layer[str, str, WaitingRow] = Layer()
        self.claims: Layer[str, str, ClaimRow] = Layer()
        self.checkpoints: Layer[str, int, CheckpointRow] = Layer()
        self.contributions: Layer[tuple[str, int], str, ContributionRow] = Layer()
        self.rounds: Layer[str, int, tuple[RoundRow, str]] = Layer()
        self.refusals: Layer[tuple[str, int], int, RefusalRow] = Layer()
        self.audit: Layer[str, int, AuditRow] = Layer()
        self.audit_head: Layer[str, str, AuditHeadRow] = Layer()
        self.marks: Layer[str, tuple[str, str], MarkRow] = Layer()
        self.messages: Layer[str, str, MessageRow] = Layer()
        self.metrics: Layer[str, tuple[int, str, str], MetricRow] = Layer()
        self.hours: Layer[str, int, int] = Layer()
        self.device_hours: Layer[str, str, DeviceHours] = Layer()
        self.replicas: Layer[str, str, ReplicaRow] = Layer()
        self.last_refusal: Layer[str, str, str] = Layer()
        self.device_of_key: Layer[str, str, str] = Layer()
        self.worker_of_key: Layer[str, str, str] = Layer()
        self.child_of: Layer[str, int | None, int] = Layer()
        self.checkpoints_of_digest: Layer[str, tuple[str, int], bool] = Layer()
        self.claims_of_round: Layer[tuple[str, int], str, ClaimRow] = Layer()
        self.run_names: Layer[str, str, bool] = Layer()
        self.flower_runs: Layer[str, str, tuple[FlowerRunRow, str]] = Layer()
        self.flower_nodes: Layer[str, str, FlowerNodeRow] = Layer()
        self.flower_contents: Layer[str, str, FlowerContentRow] = Layer()
        self.flower_messages: Layer[str, str, FlowerMessageRow] = Layer()
        self.flower_replies: Layer[str, str, FlowerReplyRow] = Layer()
        self.flower_rounds: Layer[str, int, FlowerRoundRow] = Layer()
        self.flower_device_of: Layer[str, int, str] = Layer()
        self.flower_place: Layer[str, int, str] = Layer()
        self.flower_open: Layer[str, tuple[str, str], bool] = Layer()
        self.flower_of_round: Layer[tuple[str, int], str, bool] = Layer()
        self.flower_groups: Layer[str, str, int] = Layer()
        self.audit_head.put(ALL, ALL, AuditHeadRow(count=0, link=audit_beginning()))


class OverTables(Tables):
    """A layer over each table of ``base``, made when it is first used: a transaction touches two or three of them."""

    def __init__(self, base: Tables) -> None:
        self._base = base

    def __getattr__(self, name: str) -> Layer[Any, Any, Any]:
        layer: Layer[Any, Any, Any] = Layer(getattr(self._base, name))
        setattr(self, name, layer)
        return layer

    def apply(self) -> None:
        """Commits every layer into its base."""
        for layer in vars(self).values():
            if isinstance(layer, Layer):
                layer.apply()
