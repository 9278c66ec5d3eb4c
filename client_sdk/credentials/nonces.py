"""The nonces of requests that were accepted, for as long as such a request would still be accepted.

Memory is bounded twice: by all keys together, and by key, so that one device cannot take the room of the others. A
nonce is never forgotten before its request expires; where there is no room, a request is refused instead.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

from client_sdk.credentials.errors import ReplayedRequest, TooManyRequests
from client_sdk.credentials.request_signature import RequestSignature

MOST = 200_000
"""Some 25 MB. A fleet that sends 2,500 requests a second needs 150,000."""
MOST_OF_A_KEY = 2_000


class NonceWindow:
    """Remembers nonces until they expire. For use by several threads."""

    def __init__(self, most: int = MOST, most_of_a_key: int = MOST_OF_A_KEY) -> None:
        self._most, self._most_of_a_key = most, most_of_a_key
        self._seen: dict[int, set[tuple[str, str]]] = {}
        """Second in which they expire -> (key id, nonce)."""
        self._of_key: Counter[str] = Counter()
        self._count = 0
        self._swept = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    def take(self, signature: RequestSignature, now: float) -> None:
        """Remember the nonce of a request whose signature and times were checked at ``now`` (Unix seconds).

        Raises ReplayedRequest where it is known, TooManyRequests where there is no room."""
        entry = (signature.key_id, signature.nonce)
        with self._lock:
            self._forget(now)
            # The same nonce with another expiry is no replay, but another signature, which only the key's owner makes.
            if entry in self._seen.get(signature.expires, ()):
                raise ReplayedRequest("This request was received before.")
            if self._of_key[signature.key_id] >= self._most_of_a_key or self._count >= self._most:
                raise TooManyRequests("Too many requests were received within a minute.", self._first_gone(now))
            self._seen.setdefault(signature.expires, set()).add(entry)
            self._of_key[signature.key_id] += 1
            self._count += 1

    def _forget(self, now: float) -> None:
        if int(now) == self._swept:
            return
        self._swept = int(now)
        for second in [second for second in self._seen if second < now]:
            gone = self._seen.pop(second)
            self._count -= len(gone)
            for key, _ in gone:
                self._of_key[key] -= 1
                if not self._of_key[key]:
                    del self._of_key[key]

    def _first_gone(self, now: float) -> float:
        return max(1.0, min(self._seen, default=0) + 1 - now)
