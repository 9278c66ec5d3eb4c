"""Flower's SecAgg+ functions for single steps of its client and its server (module paths of flwr 1.41).

Imported only if flwr is installed.
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
    """The steps of one client."""

    def __init__(self, lanes: int, bits: int, n: int, threshold: int) -> None:
        self.n, self.threshold, self.range = n, threshold, 1 << bits
        own, _ = _ASYMMETRIC.generate_key_pairs()
        _, public = _ASYMMETRIC.generate_key_pairs()
        self.private = _ASYMMETRIC.private_key_to_bytes(own)
        self.public = _ASYMMETRIC.public_key_to_bytes(public)
        self.vector = [np.zeros(lanes, np.int64)]

    def shares(self) -> list[bytes]:
        """Splits the seed of its own mask and its private key among all; returns the shares of the key."""
        _SHAMIR.create_shares(os.urandom(32), self.threshold, self.n)
        return list(_SHAMIR.create_shares(self.private, self.threshold, self.n))

    def combine(self, shares: list[bytes]) -> None:
        """The server's step: a private key from t shares. SystemExit if it is not the client's."""
        if _SHAMIR.combine_shares(shares[: self.threshold]) != self.private:
            raise SystemExit("Flower's shares give another key: wrong results are not reported")

    def agree(self) -> bytes:
        """Agrees on a key with one peer."""
        private = _ASYMMETRIC.bytes_to_private_key(self.private)
        return bytes(_KEYS.generate_shared_key(private, _ASYMMETRIC.bytes_to_public_key(self.public)))

    def mask(self) -> None:
        """Expands and adds one pairwise mask."""
        mask = _UTILS.pseudo_rand_gen(bytes(44), self.range, [self.vector[0].shape])
        self.vector = _ARITHMETIC.parameters_addition(self.vector, mask)

    def upload_bytes(self) -> int:
        """Size of a masked vector as Flower sends it."""
        return len(_COMMON.ndarray_to_bytes(self.vector[0]))
