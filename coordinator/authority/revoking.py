"""Revokes keys, and keeps the list of revoked keys current. Plain functions over the rows of one transaction.

A new list is signed in the transaction that revokes, so nobody is told of a revocation that could be lost.
"""

from __future__ import annotations

from dataclasses import replace

from client_sdk.credentials.revocations import CLOCKS_APART_S, RevocationList
from client_sdk.protocol.problems import problem
from coordinator.authority.issuer import Issuer
from coordinator.authority.ledger import AuditEntry, HolderRow, KeyRow, Ledger, LedgerRows
from coordinator.authority.policy import DAY_S


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
