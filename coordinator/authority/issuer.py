"""The authority's key with its policy: what it signs and hands out, and for how long. The policy is ``authority.toml``
in its folder.

Tokens are made, keys revoked and the list kept current by plain functions over the rows of one transaction. A new list
is signed in the transaction that revokes, so nobody is told of a revocation that could be lost.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from client_sdk.credentials.certificate import (
    CLOCKS_APART_S,
    Certificate,
    HolderClass,
    RevocationList,
    certify,
    sign_revocations,
)
from client_sdk.credentials.enrolment_token import SECRET_BYTES, EnrolmentToken, require_token_url
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.authority import CertificateAnswer
from client_sdk.protocol.problems import problem
from coordinator.authority.ledger import AuditEntry, HolderRow, KeyRow, Ledger, LedgerRows, TokenRow

HOUR_S = 3_600
DAY_S = 24 * HOUR_S


class AuthorityPolicy(BaseModel):
    """Settings of one authority: frozen, validated. ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Public URL, without a slash at its end: https, or http on loopback. Tokens name it, and requests are signed for
    it: where it changes, tokens that were handed out are void."""
    certificate_days: int = Field(default=90, ge=1, le=825)
    """How long a certificate is valid. Holders renew theirs in the second half. A revoked key stays on the list until
    its certificate has expired, so longer certificates make longer lists."""
    list_hours: int = Field(default=24, ge=1, le=168)
    """After how long a revocation list is out of date. Secure rounds stop then: it is the longest time for which a
    coordinator can hide a revocation from a device."""
    backdated_s: int = Field(default=600, ge=0, le=86_400)
    """How long before its issue a certificate's validity begins, for devices whose clocks are behind."""

    @field_validator("url")
    @classmethod
    def _sendable(cls, value: str) -> str:
        require_token_url(value)
        return value

    @property
    def certificate_s(self) -> int:
        """``certificate_days`` in seconds."""
        return self.certificate_days * DAY_S

    @property
    def list_s(self) -> int:
        """``list_hours`` in seconds."""
        return self.list_hours * HOUR_S

    def to_toml(self) -> str:
        """The text of the file. A JSON string or number is one of TOML too."""
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.model_dump().items())

    @classmethod
    def from_toml(cls, text: str) -> AuthorityPolicy:
        """Reads ``to_toml``. ValueError."""
        found: dict[str, Any] = tomllib.loads(text)
        return cls(**found)


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


def make_token(
    rows: LedgerRows,
    issuer: Issuer,
    *,
    holder: HolderClass,
    uses: int,
    lasts_s: int,
    label: str = "",
    who: str,
    at: float,
) -> EnrolmentToken:
    """A new token for ``uses`` holders of this class within ``lasts_s`` seconds. Its secret is stored nowhere."""
    token = EnrolmentToken(issuer.policy.url, issuer.trusted.digest, issuer.entropy(SECRET_BYTES))
    row = TokenRow(
        secret_digest=token.secret_digest,
        holder=holder,
        uses_left=uses,
        made_at=int(at),
        expires_at=int(at) + lasts_s,
        label=label,
    )
    rows.add_token(row)
    name = f" {label}" if label else ""
    rows.note(AuditEntry(at=int(at), who=who, event="token", what=f"for {uses} {holder}s{name}"))
    return token


def served_list(ledger: Ledger, issuer: Issuer, at: float) -> RevocationList:
    """The list to serve at ``at`` (Unix seconds). Nothing is written while the last one is fresh."""
    with ledger.reading() as rows:
        last = _last(rows)
    if last is not None and not _is_due(last, issuer, at):
        return last
    with ledger.writing() as rows:
        return current_list(rows, issuer, at)


def current_list(rows: LedgerRows, issuer: Issuer, at: float, *, changed: bool = False) -> RevocationList:
    """The last list, or a new one where keys were revoked or half of the last one's time is over.

    A revoked key is forgotten once its certificates have expired by the clock of everybody who takes the new list."""
    last = _last(rows)
    if last is not None and not (changed or _is_due(last, issuer, at)):
        return last
    rows.forget(keys_before=int(at) - CLOCKS_APART_S, tokens_before=int(at) - DAY_S)
    following = issuer.revocations(last, rows.revoked_keys(), at)
    rows.put_list(following.encoded)
    return following


def _last(rows: LedgerRows) -> RevocationList | None:
    encoded = rows.last_list()
    return RevocationList.parse(encoded) if encoded is not None else None


def _is_due(last: RevocationList, issuer: Issuer, at: float) -> bool:
    return at >= last.issued + issuer.policy.list_s // 2


def revoke(rows: LedgerRows, issuer: Issuer, id: str, *, who: str, at: float) -> RevocationList:
    """Revokes the holder's key. ProblemError *conflict* where no key of this id is valid."""
    holder, key = rows.holder(id), rows.key_of(id)
    if holder is None or key is None:
        raise problem("conflict", f"No valid key has the id {id}: 'quorate authority devices' lists who has one.")
    rows.put_holder(replace(holder, state="revoked"))
    rows.put_key(replace(key, revoked_at=int(at)))
    rows.note(AuditEntry(at=int(at), who=who, event="revoked", what=id))
    return current_list(rows, issuer, at, changed=True)


def leave(rows: LedgerRows, issuer: Issuer, key: KeyRow, *, at: float) -> None:
    """Revokes a holder's own key and forgets the holder: of each of its keys the id, as long as a certificate of it
    is valid, and that its id was given, with what the audit says of it, are what is left."""
    if key.id is None:
        return
    holder = rows.holder(key.id)
    if holder is None:
        raise LookupError(f"the key's holder {key.id} is not in the ledger")
    rows.forget_keys(key.id, int(at))
    rows.put_holder(HolderRow(id=holder.id, holder=holder.holder, state="left"))
    rows.note(AuditEntry(at=int(at), who=f"{holder.holder} {holder.id}", event="left", what=holder.id))
    current_list(rows, issuer, at, changed=True)
