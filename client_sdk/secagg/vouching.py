"""Vouching for the devices of a roster by the authority's certificates and its revocation list."""

from __future__ import annotations

from functools import lru_cache

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.revocations import RevocationList
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.roster import Vouching


def vouched_by(
    authority: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
) -> Vouching:
    """A ``Vouching`` for one attempt: the certificate must be ``authority``'s for a device of that id, be valid at
    ``at`` (Unix seconds) and, where it is given, still at ``until``, and its key not be on the list.

    A coordinator gives when the attempt expires as ``until``, so that no certificate expires during the attempt and the
    devices, whose clocks differ, all judge alike. Raises Refusal where the list is not current at ``at``, BadMessage
    where it is not the authority's.
    """
    try:
        revocations.require_signed(authority)
    except CredentialError as error:
        raise BadMessage(str(error)) from None
    try:
        revocations.require_current(at)
    except CredentialError as error:
        raise Refusal(f"{error} Secure rounds wait for it.") from None

    def vouch(device: str, certificate: bytes) -> str:
        try:
            found = _signed(authority, bytes(certificate))
            for moment in (at, until):
                if moment is not None:
                    found.require_valid(moment)
            revocations.require_good(found.public_key)
        except CredentialError as error:
            raise BadMessage(f"the authority does not vouch for device {device}: {error}") from None
        if (found.id, found.holder) != (device, "device"):
            raise BadMessage(f"the authority does not vouch for device {device}: the certificate is of another one")
        return found.public_key.hex()

    return vouch


@lru_cache(maxsize=1 << 12)
def _signed(authority: TrustedAuthority, certificate: bytes) -> Certificate:
    """The certificate, which the authority has signed: checked once, since the same devices meet in many attempts."""
    found = Certificate.parse(certificate)
    found.require_signed(authority)
    return found
