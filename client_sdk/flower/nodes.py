"""The node id by which Flower's ServerApps know a device."""

from __future__ import annotations

from client_sdk.chance import labelled, sha256_word

_LIMIT = 2**63


def node_id(device: str) -> int:
    """The node id of a device: the same one for ever and in every run, in [1, 2^63).

    The first 64 bits of a SHA-256 without the highest bit: Flower's node ids fit into a signed integer of 64 bits, and
    0 is the id of no node. Two devices of a fleet of 10^6 have the same id with a probability of 5e-8.
    """
    return sha256_word(labelled("flower node", device)) % _LIMIT or 1
