"""The ids of messages: hashes of what was sent before and of the message, so that the same start names the same ones.

A group is messages of one kind and group id, one after another. A message's id is a hash of

- the ids of all earlier groups,
- the id of the message before it in its group, to the same node,
- its node, kind, group and content.

A ServerApp that is started again therefore names the same messages for as long as it sends the same contents in the
same order, and the coordinator has their replies. From the first different group on all ids differ. The order between
the nodes of a group is left out: older apps send to each node from a thread of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Self


@dataclass
class MessageIds:
    """Names messages in the order in which they are pushed."""

    before: str = ""
    """Over the ids of all groups but this one."""
    group: tuple[str, str] = ("", "")
    """Kind and group id."""
    last: dict[int, str] = field(default_factory=dict)
    """Of this group: node -> the id of the newest message to it."""
    ids: list[str] = field(default_factory=list)
    """Of this group."""

    def name(self, node: int, kind: str, group: str, content: str) -> str:
        """The id of the next message. ``content``: its digest."""
        if (kind, group) != self.group:
            if self.ids:
                self.before = _hash(self.before, *sorted(self.ids))
            self.group, self.last, self.ids = (kind, group), {}, []
        found = _hash(self.before, self.last.get(node, ""), str(node), kind, group, content)
        self.last[node] = found
        self.ids.append(found)
        return found

    def draft(self) -> Self:
        """A copy, which names messages that may not be pushed after all."""
        return type(self)(self.before, self.group, dict(self.last), list(self.ids))


def _hash(*parts: str) -> str:
    """SHA-256 of texts, in hexadecimal; no other texts have the same bytes."""
    digest = hashlib.sha256(b"quorate flower message")
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
