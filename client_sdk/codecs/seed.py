"""The seed of what all devices of a round draw alike: the signs of a rotation, the coordinates that are sent.

It follows from the plan and the round alone, so the coordinator and every device compute it without asking each other.
It is public: what is drawn from it is no secret.
"""

from __future__ import annotations

from client_sdk.chance import labelled, sha256_bytes

SEED_BYTES = 32
NOTHING_DRAWN = bytes(SEED_BYTES)
"""The seed where the codec draws nothing that devices share."""


def shared_seed(plan: str, round: int) -> bytes:
    """32 bytes: SHA-256 of the labelled (plan's digest in hexadecimal, round)."""
    return sha256_bytes(labelled("codec seed", plan, round), SEED_BYTES)
