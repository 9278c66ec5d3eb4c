"""What an operator of the authority hands to devices and workers, so that they may enrol."""

from __future__ import annotations

from client_sdk.credentials.certificate import HolderClass
from client_sdk.credentials.enrolment_token import SECRET_BYTES, EnrolmentToken
from coordinator.authority.issuer import Issuer
from coordinator.authority.ledger import AuditEntry, LedgerRows, TokenRow


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
