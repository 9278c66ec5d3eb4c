"""Flower's SecAgg+ functions, piece by piece: what its client and its server call for the same steps.

Knows flwr's module paths (1.41). Has never heard of ours. Imported only where flwr is installed.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

_CRYPTO = "flwr.common.secure_aggregation.crypto"
_SHAMIR: Any = importlib.import_module(f"{_CRYPTO}.shamir")
_KEYS: Any = importlib.import_module(f"{_CRYPTO}.symmetric_encryption")
_ASYMMETRIC: Any = importlib.import_module("flwr.supercore.primitives.asymmetric")
_UTILS: Any = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
_ARITHMETIC: Any = importlib.import_module("flwr.common.secure_aggregation.ndarrays_arithmetic")
_COMMON: Any = importlib.import_module("flwr.common")


class Client:
    """What one client does for its peers."""

    def __init__(self, lanes: int, bits: int, n: int, threshold: int) -> None:
        self.n, self.threshold, self.range = n, threshold, 1 << bits
        own, _ = _ASYMMETRIC.generate_key_pairs()
        _, public = _ASYMMETRIC.generate_key_pairs()
        self.private = _ASYMMETRIC.private_key_to_bytes(own)
        self.public = _ASYMMETRIC.public_key_to_bytes(public)
        self.vector = [np.zeros(lanes, np.int64)]

    def shares(self) -> list[bytes]:
        """The seed of its own mask and its private key, shared among all."""
        _SHAMIR.create_shares(os.urandom(32), self.threshold, self.n)
        return list(_SHAMIR.create_shares(self.private, self.threshold, self.n))

    def combine(self, shares: list[bytes]) -> None:
        """The server's part: a private key out of t shares. SystemExit where it is another."""
        if _SHAMIR.combine_shares(shares[: self.threshold]) != self.private:
            raise SystemExit("Flower's shares give another key: nothing is reported about wrong results")

    def agree(self) -> bytes:
        """A key with one peer."""
        private = _ASYMMETRIC.bytes_to_private_key(self.private)
        return bytes(_KEYS.generate_shared_key(private, _ASYMMETRIC.bytes_to_public_key(self.public)))

    def mask(self) -> None:
        """One pairwise mask, expanded and added."""
        mask = _UTILS.pseudo_rand_gen(bytes(44), self.range, [self.vector[0].shape])
        self.vector = _ARITHMETIC.parameters_addition(self.vector, mask)

    def upload_bytes(self) -> int:
        """A masked vector as it is sent."""
        return len(_COMMON.ndarray_to_bytes(self.vector[0]))
