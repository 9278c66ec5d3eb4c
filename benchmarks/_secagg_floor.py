"""The lower bound of a secure round's cost: the same masks, keys, shares and signatures without any other work.

It calls the primitives of our code (OpenSSL's AES and curves through ``cryptography``, NumPy, ``shamir``) on prepared
inputs. Key derivation, parsing, sealing, storing, quantizing and packing are left out: they are costs of our code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks._secagg_crowd import Crowd
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.shamir import combine, split
from client_sdk.secagg.statement import statement

BLOCKS = (1 << 17, 1 << 18, 1 << 19, 1 << 20)
"""Bytes of key stream made at once: the fastest of these is used."""


class Masks:
    """Adds AES-256-CTR key streams to one vector of uint32, in blocks of the fastest size."""

    def __init__(self, lanes: int) -> None:
        self.vector: Lanes = np.zeros(lanes, np.uint32)
        self._parts: list[tuple[memoryview, Lanes, Lanes]] = []
        self._buffer = bytearray()
        self._cut(min(BLOCKS, key=self._seconds))

    def apply(self, key: bytes) -> None:
        context = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        for zeros, part, words in self._parts:
            context.update_into(zeros, self._buffer)
            np.add(part, words, part)

    def _cut(self, block: int) -> None:
        self._buffer = bytearray(block + 16)
        zeros, words = memoryview(bytes(block)), np.frombuffer(self._buffer, np.uint32, block // 4)
        parts = [self.vector[start : start + block // 4] for start in range(0, self.vector.size, block // 4)]
        self._parts = [(zeros[: part.nbytes], part, words[: part.size]) for part in parts]

    def _seconds(self, block: int) -> float:
        self._cut(block)
        best = float("inf")
        for _ in range(9):
            began = time.process_time()
            self.apply(bytes(32))
            best = min(best, time.process_time() - began)
        return best


@dataclass(frozen=True)
class Other:
    """What a device has received from another one, as bytes."""

    identity: bytes
    signed: tuple[tuple[bytes, bytes], ...]
    """(signature, message): of its advertisement, and of the survivor list if that one is checked."""
    keys: tuple[bytes, ...]
    """A neighbour's two public keys."""


def device(crowd: Crowd, place: int, *, roster: bool = True) -> Callable[[], None]:
    """The floor of one device: masks with every neighbour and its own, two secrets split, and for every neighbour two
    key agreements and two signature checks. Certificates were checked in an earlier round.

    ``roster``: with the checks that a device needs of devices that are not neighbours: of their advertisements, and of
    as many signatures of the survivor list as complete *signers* with the neighbours'.
    """
    cohort, secrets = crowd.cohort, crowd.secrets[place]
    survivors = crowd.survivors()
    signatures = dict(crowd.proof(survivors).signatures)
    listed = statement(cohort.h, "survivors", survivors.encoded)
    near = set(cohort.graph.neighbours(place))
    others, beyond = [], cohort.parameters.signers - len(near)
    for peer, entry in enumerate(cohort.roster.entries):
        shown = entry.advertisement
        advertised = (entry.signature, statement(crowd.header.digest, "advertise", shown.encoded))
        identity = bytes.fromhex(cohort.identities[peer])
        if peer in near:
            signed = (advertised, (signatures[peer], listed))
            others.append(Other(identity, signed, (shown.share_key, shown.mask_key)))
        elif roster and peer != place:
            checked = (advertised, (signatures[peer], listed)) if beyond > 0 else (advertised,)
            others.append(Other(identity, checked, ()))
            beyond -= 1
    xs = [holder + 1 for holder in cohort.graph.holders(place)]
    threshold = cohort.parameters.threshold
    masks = Masks(crowd.header.lanes)
    keys = [os.urandom(32) for _ in range(len(near) + 1)]
    own = [X25519PrivateKey.from_private_bytes(key.private) for key in (secrets.share_key, secrets.mask_key)]

    def floor() -> None:
        for key in keys:
            masks.apply(key)
        for _ in range(2):
            split(secrets.self_mask, xs, threshold, os.urandom)
        for other in others:
            for mine, public in zip(own, other.keys, strict=False):
                mine.exchange(X25519PublicKey.from_public_bytes(public))
            identity = Ed25519PublicKey.from_public_bytes(other.identity)
            for signature, message in other.signed:
                identity.verify(signature, message)

    return floor


def unmask(crowd: Crowd, gone: Sequence[int]) -> Callable[[], None]:
    """The floor of the server: every survivor's vector added and its own mask removed; for every peer of every device
    that is gone one key agreement and one mask; every device's secret combined from t shares."""
    cohort, absent = crowd.cohort, set(gone)
    survivors = crowd.survivors(gone)
    masks, vector = Masks(crowd.header.lanes), np.zeros(crowd.header.lanes, np.uint32)
    keys = [os.urandom(32) for _ in survivors.places]
    pairs = []
    for place in gone:
        key = X25519PrivateKey.from_private_bytes(crowd.secrets[place].mask_key.private)
        peers = [peer for peer in cohort.graph.neighbours(place) if peer not in absent]
        pairs.append((key, [cohort.roster.entries[peer].advertisement.mask_key for peer in peers]))
    threshold = cohort.parameters.threshold
    shares = []
    for dealer in range(crowd.n):
        holders = [place for place in cohort.graph.holders(dealer) if place not in absent][:threshold]
        shares.append({holder + 1: crowd.held[holder][dealer].self_mask for holder in holders})

    def floor() -> None:
        for pieces in shares:
            combine(pieces, threshold)
        for key in keys:
            np.add(masks.vector, vector, masks.vector)
            masks.apply(key)
        for mine, theirs in pairs:
            for public in theirs:
                masks.apply(mine.exchange(X25519PublicKey.from_public_bytes(public)))

    return floor
