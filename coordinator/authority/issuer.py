"""The authority's key with its policy: what it signs, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from client_sdk.credentials.certificate import Certificate, HolderClass, certify
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.revocations import RevocationList, sign_revocations
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.authority import CertificateAnswer
from coordinator.authority.policy import AuthorityPolicy


@dataclass(frozen=True)
class Issuer:
    """Signs for the authority."""

    signer: Signer
    policy: AuthorityPolicy
    entropy: Entropy = os.urandom

    @cached_property
    def trusted(self) -> TrustedAuthority:
        """This authority, as everybody else sees it."""
        return TrustedAuthority(bytes.fromhex(self.signer.public_hex))

    def new_id(self, holder: HolderClass) -> str:
        """An id that was hardly given before: the class's first letter and 64 random bits."""
        return holder[0] + self.entropy(8).hex()

    def certificate(self, *, id: str, holder: HolderClass, public_key: bytes, at: float) -> Certificate:
        """A certificate from ``at`` (Unix seconds) on, and a little before."""
        return certify(
            self.signer,
            id=id,
            holder=holder,
            public_key=public_key,
            not_before=max(0, int(at) - self.policy.backdated_s),
            not_after=int(at) + self.policy.certificate_s,
        )

    def revocations(self, last: RevocationList | None, revoked: Iterable[bytes], at: float) -> RevocationList:
        """The list after ``last``. Its counter is the time where that is higher than one more: an authority whose
        ledger was restored from a backup does not sign a number again."""
        issued = int(at) if last is None else max(int(at), last.issued)
        return sign_revocations(
            self.signer,
            counter=max(issued, 1) if last is None else max(issued, last.counter + 1),
            issued=issued,
            next_update=issued + self.policy.list_s,
            revoked=revoked,
        )

    def certified(self, certificate: bytes) -> CertificateAnswer:
        """The answer that carries a certificate."""
        found = Certificate.parse(certificate)
        return CertificateAnswer(
            certificate=certificate.hex(),
            id=found.id,
            holder=found.holder,
            not_after=found.not_after,
            renew_at=found.not_after - self.policy.certificate_s // 2,
        )
