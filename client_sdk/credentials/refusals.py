"""What a server answers to a credential that it does not accept."""

from __future__ import annotations

from client_sdk.credentials.errors import CredentialError, OutsideTime, ReplayedRequest, RevokedKey, TooManyRequests
from client_sdk.protocol.problems import ProblemError, problem


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
