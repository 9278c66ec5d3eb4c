"""Signs the requests of one device or worker to one coordinator (``credentials.request_signature``).

A request is signed for the coordinator's URL as the device has it, so what one coordinator receives is of no use at
another one. Each attempt is signed afresh, with a nonce of its own. Only the signatures' times go by what was learnt of
the coordinator's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import httpx2

from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.identity import Entropy, Signer


class LearntClock:
    """A clock for request signatures: the machine's, corrected by what a server's answers said. ``now`` is what servers
    take for the time, as far as is known.

    Only signatures of requests go by it. Certificates, revocation lists and secure attempts go by the machine's own
    clock: a server that lies about the time must not make an expired one valid.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ahead_s = 0.0
        """Seconds by which servers' clocks are ahead of this machine's."""

    def now(self) -> float:
        """Unix seconds."""
        return self._clock() + self.ahead_s

    def learn(self, date: str | None) -> bool:
        """Take the time of an answer that refused a request as *wrong-clock*: its Date header (RFC 9110, section
        6.6.1). Whether it had one that can be read: then the request may be signed again."""
        try:
            found = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return False
        self.ahead_s = found - self._clock()
        return True


class RequestSigner:
    """The signatures for ``coordinator``, a URL that ``urls.check_url`` gave; its host is signed in lower case and
    without the scheme's own port, as it is sent. ``clock``: Unix seconds.

    ``signer`` is the holder's present key, and None until there is one: its owner replaces it when it was rotated."""

    def __init__(self, coordinator: str, clock: Callable[[], float], entropy: Entropy = os.urandom) -> None:
        self.signer: Signer | None = None
        self.clock = LearntClock(clock)
        self._coordinator = str(httpx2.URL(coordinator)).rstrip("/")
        self._entropy = entropy

    def headers(self, method: str, path: str, sha256: bytes, result: str | None = None) -> dict[str, str]:
        """The headers that sign one attempt; none where there is no key. ``sha256``: of the body, 32 bytes.
        ``result``: the header *Quorate-Result*, where the request has it."""
        if self.signer is None:
            return {}
        return sign_request(
            self.signer,
            method=method,
            uri=self._coordinator + path,
            sha256=sha256,
            at=self.clock.now(),
            nonce=self._entropy(NONCE_BYTES),
            result=result,
        )
