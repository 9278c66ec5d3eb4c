"""The port that says who a device is at enrolment, beside its token: an attestation, an OIDC token, a list of serials.

A platform registers its own as an entry point of the group ``quorate.enrolment_proofs``: a callable without arguments
that returns an ``EnrolmentProof``, named ``package:name`` in ``quorate authority serve --proof``. Such a check may ask
other services: it runs in a thread, before the ledger is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from client_sdk.extensions import CannotLoad, extensions

GROUP = "quorate.enrolment_proofs"
LONGEST_SUBJECT = 200


class ProofRefused(Exception):
    """The device is not who it must be to enrol here. One sentence, which the device is told."""


class EnrolmentProof(Protocol):
    """Says who asks for a certificate."""

    def subject(self, who: str, public_key: bytes, at: float) -> str:
        """Who the device is, for the operators' list: at most 200 printable characters, as a serial number or the
        subject of a token.

        ``who`` is what the device sent, ``public_key`` (32 bytes) the key that it enrols and whose private half it has
        shown, ``at`` the time (Unix seconds). What is bound to that key cannot be used by whoever else sees it: check
        this where the proof can carry it. Raises ProofRefused; any other error is a bug, and nobody enrols.
        """


class NoProof:
    """Asks for nothing beyond the token."""

    def subject(self, who: str, public_key: bytes, at: float) -> str:
        return ""


def proof_named(name: str | None) -> EnrolmentProof:
    """The proof of an installed package by ``package:name``; None: ``NoProof``. CannotLoad."""
    if name is None:
        return NoProof()
    found = extensions(GROUP)
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise CannotLoad(f"No installed package has the enrolment proof {name}; installed: {there}.")
    make: Callable[[], EnrolmentProof] = found[name].load()
    return make()
