"""Every error of credentials: what is wrong, and what its receiver does.

::

    CredentialError
    |-- BadCredential          bytes or text not in their one form, or not signed by who should have; never valid
    |   `-- BadIdentityKey     32 bytes that are no public key to rely on
    |-- NotValidNow            a certificate or list that is not valid yet, or no longer: renew it, or fetch anew
    |-- RevokedKey             the authority has revoked this key
    |-- RolledBackList         a revocation list older than one that was seen, or another one with the same counter
    |-- OutsideTime            a request whose times are not around now: its sender's clock is wrong, or it is a replay
    |-- ReplayedRequest        a request that was seen before
    `-- TooManyRequests        more requests in the window than can be remembered: the sender waits
"""

from __future__ import annotations

from client_sdk.protocol.problems import ProblemError, problem


class CredentialError(ValueError):
    """A credential that is not accepted. The text is one plain sentence that holds no secret."""


class BadCredential(CredentialError):
    """Bytes or text that are not in their one form, or whose signature is not that of who should have signed."""


class BadIdentityKey(BadCredential):
    """A public key in another than its canonical form, of low order, or off the curve."""


class NotValidNow(CredentialError):
    """A certificate or a revocation list outside its time."""


class RevokedKey(CredentialError):
    """The authority has revoked this key."""


class RolledBackList(CredentialError):
    """A revocation list that may not follow the one that is held."""


class OutsideTime(CredentialError):
    """A signed request that is not around now."""

    def __init__(self, reason: str, ahead_s: float) -> None:
        super().__init__(reason)
        self.ahead_s = ahead_s
        """Seconds by which the request's *created* is ahead of the receiver's clock; negative: behind it."""


class ReplayedRequest(CredentialError):
    """A signed request whose nonce was seen before."""


class TooManyRequests(CredentialError):
    """No room to remember another nonce."""

    def __init__(self, reason: str, retry_s: float) -> None:
        super().__init__(reason)
        self.retry_s = retry_s
        """Seconds after which the request may be signed afresh and sent."""


# ------------------------------------------------------------ refusals
# What a server answers to a credential that it does not accept.


def refusal_of(error: CredentialError) -> ProblemError:
    """The problem to raise: *wrong-clock*, *replayed-request*, *revoked-key*, *busy*, or else *unauthenticated*."""
    match error:
        case OutsideTime():
            return problem("wrong-clock", f"{error} Sign it by the time of this answer.")
        case ReplayedRequest():
            return problem("replayed-request", f"{error} Each attempt is signed afresh.")
        case RevokedKey():
            return problem("revoked-key", str(error))
        case TooManyRequests():
            return problem("busy", str(error), retry_after_s=error.retry_s)
        case _:
            return problem("unauthenticated", str(error))
