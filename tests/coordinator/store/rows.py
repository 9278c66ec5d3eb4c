"""Rows for store tests: every field has a plain default, and each maker takes what its test is about."""

from __future__ import annotations

import hashlib
from typing import Any

from coordinator.store.port import (
    ApiKeyRow,
    AuditRow,
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
    Transaction,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow


def run(name: str = "r1", /, **fields: Any) -> RunRow:
    given: dict[str, Any] = {
        "name": f"the run {name}",
        "plan": {"goal": 256, "task": {"lr": 0.1, "averaged": ["*"]}},
        "plan_digest": "p" * 64,
        "selection_seed": 2**63 - 1,
        "init": "i" * 64,
        "origin": "file model.safetensors",
        "created_at": 1000.5,
    }
    return RunRow(run=name, **(given | fields))


def device(name: str = "d1", /, **fields: Any) -> DeviceRow:
    given: dict[str, Any] = {
        "key_id": f"key of {name}",
        "certificate": f"certificate of {name}",
        "label": "a phone",
        "examples_cap": 500,
        "enrolled_at": 10.25,
    }
    return DeviceRow(device=name, **(given | fields))


def worker(name: str = "w1", /, **fields: Any) -> WorkerRow:
    given: dict[str, Any] = {
        "key_id": f"key of {name}",
        "certificate": f"certificate of {name}",
        "label": "a cluster",
        "created_at": 12.25,
    }
    return WorkerRow(worker=name, **(given | fields))


def digest_of(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()


def revocations(authority: str, counter: int, encoded: bytes, **fields: Any) -> ListRow:
    given: dict[str, Any] = {"digest": digest_of(encoded), "next_update": 2_000_000_000}
    return ListRow(authority=authority, counter=counter, encoded=encoded, **(given | fields))


def api_key(name: str = "k1", /, **fields: Any) -> ApiKeyRow:
    given: dict[str, Any] = {
        "secret_hash": f"hash of {name}",
        "role": "operator",
        "scope": "mnist-*",
        "label": "a notebook",
        "created_at": 14.25,
        "created_by": "key k0",
    }
    return ApiKeyRow(key=name, **(given | fields))


def login(name: str = "l1", /, **fields: Any) -> LoginRow:
    given: dict[str, Any] = {
        "kind": "session",
        "secret_hash": f"hash of {name}",
        "who": "key:k1",
        "by": "key",
        "key": "k1",
        "claims": "",
        "created_at": 14.25,
        "expires_at": 90.5,
    }
    return LoginRow(login=name, **(given | fields))


def waiting(name: str = "d1", /, **fields: Any) -> WaitingRow:
    given: dict[str, Any] = {"examples": 7, "offer": '{"learners":{}}', "since": 20.0, "expires": 100.0}
    return WaitingRow(device=name, **(given | fields))


def claim(name: str = "d1", /, **fields: Any) -> ClaimRow:
    given: dict[str, Any] = {"run": "r1", "round": 1, "attempt": 0, "until": 60.5}
    return ClaimRow(device=name, **(given | fields))


def checkpoint(version: int = 0, /, **fields: Any) -> CheckpointRow:
    given: dict[str, Any] = {
        "run": "r1",
        "digest": f"{version:064x}",
        "parent_version": version - 1 if version else None,
        "round": version or None,
        "origin": "commit" if version else "init",
        "bytes": 2**33,
        "created_at": 30.0 + version,
    }
    return CheckpointRow(version=version, **(given | fields))


def contribution(name: str = "d1", /, **fields: Any) -> ContributionRow:
    given: dict[str, Any] = {"run": "r1", "round": 1, "digest": f"update of {name}", "weight": 3, "version": 0}
    return ContributionRow(device=name, **(given | fields))


def round_(number: int = 1, /, **fields: Any) -> RoundRow:
    given: dict[str, Any] = {
        "run": "r1",
        "attempt": 0,
        "kind": "federated",
        "status": "open",
        "reason": "",
        "opened_at": 40.0,
        "collecting_at": None,
        "closed_at": None,
        "body": {"selected": 300, "metrics": {"loss": 0.25}},
    }
    return RoundRow(round=number, **(given | fields))


def refusal(name: str = "d1", /, **fields: Any) -> RefusalRow:
    given: dict[str, Any] = {
        "run": "r1",
        "round": 1,
        "digest": None,
        "kind": "late",
        "reason": "The round closed.",
        "at": 55.5,
    }
    return RefusalRow(device=name, **(given | fields))


def audit(by: str = "olga", /, **fields: Any) -> AuditRow:
    given: dict[str, Any] = {"run": "r1", "at": 66.5, "action": "advance", "detail": "round 3"}
    return AuditRow(by=by, **(given | fields))


def metric(name: str = "accuracy", /, **fields: Any) -> MetricRow:
    given: dict[str, Any] = {
        "run": "r1",
        "version": 1,
        "source": "test",
        "value": 0.9375,
        "examples": 10_000,
        "at": 70.0,
    }
    return MetricRow(name=name, **(given | fields))


def world(tx: Transaction, *, runs: int = 1, devices: int = 3) -> None:
    """Runs r1, r2, ... and devices d1, d2, ..."""
    for number in range(1, runs + 1):
        tx.insert_run(run(f"r{number}", created_at=1000.0 + number))
    for number in range(1, devices + 1):
        tx.insert_device(device(f"d{number}"))


def mark(device: str = "d1", /, **fields: Any) -> MarkRow:
    given: dict[str, Any] = {"tensors": "t" * 64, "run": "r1", "round": 3}
    return MarkRow(device=device, **(given | fields))
