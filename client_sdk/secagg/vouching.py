"""Vouching for the devices of a roster by the authority's certificates and its revocation list."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.revocations import RevocationList
from client_sdk.secagg.errors import BadMessage, Refusal

Vouching = Callable[[str, bytes], str]
"""(device id, certificate) -> the device's Ed25519 public key in hexadecimal, where the authority certified the device
and has not revoked it. Raises BadMessage otherwise."""

CACHED = 1 << 14
"""Certificates whose signatures are not checked again: more than the largest roster has, about 10 MB."""


def vouched_by(
    authority: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
) -> Vouching:
    """A ``Vouching`` for one attempt: the certificate must be ``authority``'s for a device of that id, be valid at
    ``at`` (Unix seconds) and, where it is given, still at ``until``, and its key not be on the list.

    A coordinator gives when the attempt expires as ``until``, so that no certificate expires during the attempt and the
    devices, whose clocks differ, all judge alike. Raises as ``require_list``.
    """
    require_list(authority, revocations, at)
    return vouched_by_list(authority, revocations, at, until=until)


def require_list(authority: TrustedAuthority, revocations: RevocationList, at: float) -> None:
    """Raise Refusal where the list is not current at ``at`` (Unix seconds), BadMessage where it is not the
    authority's."""
    try:
        revocations.require_signed(authority)
    except CredentialError as error:
        raise BadMessage(str(error)) from None
    try:
        revocations.require_current(at)
    except CredentialError as error:
        raise Refusal(f"{error} Secure rounds wait for it.") from None


def vouched_by_list(
    authority: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
) -> Vouching:
    """What vouches for devices by a list that ``require_list`` took when the attempt began: it stays the attempt's list
    until the attempt ends, also where it is current no longer."""

    def vouch(device: str, certificate: bytes) -> str:
        try:
            found = _signed(authority, bytes(certificate))
            for moment in (at, until):
                if moment is not None:
                    found.require_valid(moment)
            revocations.require_good(found.public_key)
        except CredentialError as error:
            raise BadMessage(f"the authority does not vouch for device {device}: {error}") from None
        return _identity(found, device)

    return vouch


def certified(device: str, certificate: bytes) -> str:
    """The key in a certificate of this device that was vouched for before: nothing but its form is checked.
    BadMessage."""
    try:
        return _identity(Certificate.parse(bytes(certificate)), device)
    except CredentialError as error:
        raise BadMessage(f"the certificate of device {device} cannot be read: {error}") from None


def _identity(found: Certificate, device: str) -> str:
    if (found.id, found.holder) != (device, "device"):
        raise BadMessage(f"the authority does not vouch for device {device}: the certificate is of another one")
    return found.public_key.hex()


@lru_cache(maxsize=CACHED)
def _signed(authority: TrustedAuthority, certificate: bytes) -> Certificate:
    """The certificate, which the authority has signed: checked once, since the same devices meet in many attempts.
    Whether it has expired or is revoked is another question, asked each time."""
    found = Certificate.parse(certificate)
    found.require_signed(authority)
    return found
