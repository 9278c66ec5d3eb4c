"""Rows of Flower runs for tests: every field has a plain default, and each maker takes what its test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.store.flower_rows import FlowerContentRow, FlowerMessageRow, FlowerRunRow


def run(name: str = "f1", /, **fields: Any) -> FlowerRunRow:
    given: dict[str, Any] = {
        "number": 2**63 - 1,
        "app": "acme/vision",
        "version": "1.0.0",
        "digest": "d" * 64,
        "config": {"num-server-rounds": 3},
        "max_reply": None,
        "created_at": 1000.5,
    }
    return FlowerRunRow(run=name, **(given | fields))


def content(digest: str = "a" * 64, /, **fields: Any) -> FlowerContentRow:
    given: dict[str, Any] = {"run": "f1", "bytes": 100, "stored_at": 5.5}
    return FlowerContentRow(digest=digest, **(given | fields))


def message(position: int = 1, /, **fields: Any) -> FlowerMessageRow:
    given: dict[str, Any] = {
        "run": "f1",
        "message": f"{position:064x}",
        "round": 1,
        "group_id": "1",
        "node": 7,
        "device": "d1",
        "kind": "train",
        "content": "a" * 64,
        "created_at": 10.0,
        "expires_at": 100.0,
    }
    return FlowerMessageRow(position=position, **(given | fields))


def answered(row: FlowerMessageRow, /, **fields: Any) -> FlowerMessageRow:
    """The message with a reply."""
    return replace(row, **({"replied_at": 40.5, "reply": "b" * 64, "reply_bytes": 50} | fields))


def failed(row: FlowerMessageRow, /, **fields: Any) -> FlowerMessageRow:
    """The message with an error in place of a reply."""
    return replace(row, **({"replied_at": 40.5, "code": 2, "reason": "it raised"} | fields))
