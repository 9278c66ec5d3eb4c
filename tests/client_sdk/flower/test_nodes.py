"""Node ids are a function of the device id that never changes, and fit where Flower keeps them."""

from __future__ import annotations

from hashlib import sha256

from client_sdk.flower.work import node_id


def test_it_never_changes() -> None:
    assert node_id("d-0001") == int.from_bytes(sha256(b"quorate flower node v1\nd-0001").digest()[:8], "big") % 2**63


def test_ids_are_positive_signed_integers_and_differ() -> None:
    ids = [node_id(f"device-{number}") for number in range(1000)]
    assert len(set(ids)) == 1000
    assert all(0 < node < 2**63 for node in ids)
