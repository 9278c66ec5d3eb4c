"""Contents on their way to a coordinator: each distinct one is hashed and uploaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import RLock

from flwr.app import Message, RecordDict

from client_sdk.flower.records import Encoded, sealed, views_of


class OutgoingContents:
    """Hashes and uploads contents. A strategy sends the same one to many nodes; older ones build it anew for each."""

    def __init__(self, upload: Callable[[Encoded], None]) -> None:
        """``upload``: makes a content durable."""
        self._upload = upload
        self._uploaded: set[str] = set()
        self._newest: tuple[object, Encoded] | None = None
        self._lock = RLock()

    def store(self, records: RecordDict) -> str:
        """Upload the content, where that has not been done; return its digest. Raises RecordsError."""
        with self._lock:
            content = self._encode(records)
            if content.digest not in self._uploaded:
                self._upload(content)
                self._uploaded.add(content.digest)
            return content.digest

    def stored(self, messages: Iterable[Message]) -> Iterator[tuple[Message, str]]:
        """Each message with the digest of its content, which is durable then. Raises RecordsError."""
        final = isinstance(messages, list | tuple)  # an iterator may change a content between two messages
        before: tuple[RecordDict, str] | None = None
        for message in messages:
            if before is None or not final or message.content is not before[0]:
                before = (message.content, self.store(message.content))
            yield message, before[1]

    def release(self) -> None:
        """Forget the newest content's arrays, so that their memory can be freed."""
        with self._lock:
            self._newest = None

    def _encode(self, records: RecordDict) -> Encoded:
        """The content; from the one before it where both have the same arrays: ``bytes`` objects, which never change
        and live as long as they are kept here."""
        views = views_of(records)
        key = (bytes(views[0]), tuple((id(view.obj), len(view)) for view in views[1:]))
        if self._newest is None or self._newest[0] != key:
            self._newest = None
            self._newest = (key, sealed(views))
        return self._newest[1]
