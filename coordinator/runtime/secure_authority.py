"""The pinned authority as secure rounds need it: with a revocation list that is in date."""

from __future__ import annotations

from client_sdk.protocol.problems import problem
from client_sdk.secagg.errors import SecaggError
from coordinator.runtime.clock import Clock
from coordinator.runtime.identities import Identities
from coordinator.secure.announcing import Authority

_CACHED_S = 10
"""Seconds for which times are not compared again."""
_RETRY_S = 5.0


class PresentAuthority:
    """``Authorities`` of one coordinator. Safe from any thread."""

    def __init__(self, identities: Identities, clock: Clock) -> None:
        self._identities = identities
        self._clock = clock
        self._last: tuple[tuple[bytes, float | None, int], Authority] | None = None

    def __call__(self, until: float | None = None) -> Authority:
        """The authority that vouches for certificates that are valid now and ``until``. ProblemError *busy*.

        Without ``until``, a header is announced: its list is the newest of all replicas, so that no device has begun
        an earlier round by a newer one."""
        trusted, held = self._identities.trusted(read=until is None)
        now = self._clock.now()
        key, last = (held.digest, until, int(now // _CACHED_S)), self._last
        if last is not None and last[0] == key:
            return last[1]
        try:
            found = Authority.of(trusted, held, now, until=until)
        except SecaggError as error:
            raise problem("busy", str(error), retry_after_s=_RETRY_S) from None
        self._last = (key, found)
        return found
