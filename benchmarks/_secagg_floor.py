"""The lower bound of a secure round's cost: the same masks, keys, shares and signatures without any other work.

It calls the primitives of our code (OpenSSL's AES and curves through ``cryptography``, NumPy, ``shamir``) on prepared
inputs. Key derivation, parsing, sealing, storing, quantizing and packing are left out: they are costs of our code.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks._secagg_crowd import AUTHORITY, Crowd
from client_sdk.credentials.canonical import CERTIFICATE
from client_sdk.credentials.certificate import Certificate
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.shamir import SHARE_BYTES, combine, split
from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN, statement

BLOCKS = (1 << 17, 1 << 18, 1 << 19, 1 << 20)
"""Bytes of key stream made at once: the fastest of these is used."""
SHARE_INPUT_BYTES = len(DOMAIN) + 12 + DIGEST_BYTES + 9 + SHARE_BYTES
"""Of what a digest of a share is the SHA-256: domain, name, h, places and kind, share."""


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


Check = tuple[bytes, bytes, bytes]
"""(public key, signature, message)"""


def device(crowd: Crowd, place: int, *, cold: bool = False) -> Callable[[], None]:
    """The floor of one device: masks with every neighbour and its own, two secrets split, and for every neighbour two
    key agreements and the check of its advertisement; *signers* signatures of the survivor list; the digests of its
    shares for each holder, and of those that it holds.

    ``cold``: certificates of all others are checked too. Else they were checked in an earlier round.
    """
    cohort, secrets = crowd.cohort, crowd.secrets[place]
    entries = cohort.roster.entries
    near = cohort.graph.neighbours(place)
    checks: list[Check] = []
    for peer in near:
        shown = entries[peer].advertisement
        message = statement(crowd.header.digest, "advertise", shown.encoded)
        checks.append((bytes.fromhex(cohort.identities[peer]), entries[peer].signature, message))
    survivors = crowd.survivors()
    listed = statement(cohort.h, "survivors", survivors.encoded)
    for peer, signature in crowd.proof(survivors).signatures[: cohort.parameters.signers]:
        checks.append((bytes.fromhex(cohort.identities[peer]), signature, listed))
    if cold:
        certificates = [Certificate.parse(entries[peer].certificate) for peer in range(crowd.n) if peer != place]
        authority = bytes.fromhex(AUTHORITY.public_hex)
        checks += [(authority, found.signature, CERTIFICATE + found.body) for found in certificates]
    keys = [X25519PrivateKey.from_private_bytes(key.private) for key in (secrets.share_key, secrets.mask_key)]
    shown_keys = [(entries[peer].advertisement.share_key, entries[peer].advertisement.mask_key) for peer in near]
    xs = [holder + 1 for holder in cohort.graph.holders(place)]
    threshold = cohort.parameters.threshold
    masks = Masks(crowd.header.lanes)
    shares = [os.urandom(SHARE_INPUT_BYTES) for _ in range(2 * (len(xs) + len(near)))]
    seeds = [os.urandom(32) for _ in range(len(near) + 1)]

    def floor() -> None:
        for seed in seeds:
            masks.apply(seed)
        for _ in range(2):
            split(secrets.self_mask, xs, threshold, os.urandom)
        for share in shares:
            hashlib.sha256(share).digest()
        for publics in shown_keys:
            for mine, public in zip(keys, publics, strict=True):
                mine.exchange(X25519PublicKey.from_public_bytes(public))
        for identity, signature, message in checks:
            Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)

    return floor


def unmask(crowd: Crowd, gone: Sequence[int], silent: Sequence[int] = ()) -> Callable[[], None]:
    """The floor of the server: every survivor's vector added and its own mask removed; for every peer of every device
    that is gone one key agreement and one mask; every device's secret combined from t shares. ``gone``: those that
    vanished after they shared; ``silent``: those that never shared, so that nobody masked with them."""
    cohort, absent = crowd.cohort, {*gone, *silent}
    survivors = crowd.survivors([*gone, *silent])
    masks, vector = Masks(crowd.header.lanes), np.zeros(crowd.header.lanes, np.uint32)
    keys = [os.urandom(32) for _ in survivors.places]
    pairs = []
    for place in gone:
        key = X25519PrivateKey.from_private_bytes(crowd.secrets[place].mask_key.private)
        peers = [peer for peer in cohort.graph.neighbours(place) if peer not in absent]
        pairs.append((key, [cohort.roster.entries[peer].advertisement.mask_key for peer in peers]))
    threshold = cohort.parameters.threshold
    shares = []
    for dealer in sorted(set(range(crowd.n)) - set(silent)):
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
