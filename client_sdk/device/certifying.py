"""What devices and workers ask of their authority, as generators of actions: repeated until there is an answer.

The driver performs ``Certify``. It has checked that the pinned authority signed the certificate, for the key that was
asked for. Who answers with another key than the pinned one is never asked again: the session ends.
"""

from __future__ import annotations

from collections.abc import Generator

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import Certified, Certify, Failed, RequestRefused, Sleep, Unreachable
from client_sdk.device.record import AuthorityRef
from client_sdk.device.requests import Pacing
from client_sdk.protocol.problems import ProblemError, problem

RENEWAL_S = 3600.0
"""A renewal before its time is pressing is asked for once in this time, in seconds, however it is answered."""


def ask_authority(question: Certify, pacing: Pacing) -> Generator[Certify | Sleep, object, Certified]:
    """The authority's certificate. While the authority does not answer, or is busy, it is asked again.

    ProblemError: what the authority refuses for good; *not-certified* where another authority answers."""
    failures = 0
    while True:
        reply = yield question
        match reply:
            case Certified():
                return reply
            case RequestRefused(problem=refused):
                if refused.is_ours and refused.advice != "retry":
                    raise ProblemError(refused)
                window, reason = pacing.backoff(failures + 1, refused.retry_after_s), str(refused)
            case Unreachable(reason=reason):
                window = pacing.backoff(failures + 1)
            case Failed(reason=reason):
                raise problem("not-certified", reason)
            case _:
                raise TypeError(f"the driver answered {question.what} with {reply!r}")
        failures += 1
        yield Sleep(min_s=window[0], max_s=window[1], reason=reason, trouble=True)


def is_half_over(certificate: Certificate, at: float) -> bool:
    """Whether more than half of its time is over: the authority then issues a longer one."""
    return at >= certificate.not_before + (certificate.not_after - certificate.not_before) / 2


def authority_for(known: AuthorityRef | None, token: EnrolmentToken, whose: str) -> AuthorityRef:
    """The authority of ``token``, which must be the one that the device or worker (``whose``) has. ProblemError
    *enrolment-refused* where it is another one. Its URL may be another than before."""
    named = AuthorityRef(url=token.url, digest=token.authority.hex())
    if known is not None and known.digest != named.digest:
        raise problem(
            "enrolment-refused",
            f"This enrolment token is of another authority, at {token.url}, than this {whose}'s, at {known.url}. Start "
            f"it without a token or with one of its own authority; for the other one give it a folder of its own.",
        )
    return known.changed(url=named.url) if known is not None else named
