"""A clock for request signatures: the machine's, corrected by what a server's answers said.

Only signatures of requests go by it. Certificates, revocation lists and secure attempts go by the machine's own clock:
a server that lies about the time must not make an expired one valid.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime


class LearntClock:
    """``now`` is what servers take for the time, as far as is known."""

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
