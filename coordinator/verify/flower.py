"""Holds Flower runs against what they promise: every reply belongs to a message and counts once, messages and replies
continue their chain, the contents that rows name are there with their bytes, and nothing came after the end of its run.

Retention deletes contents, which no link holds, and a day after the end of a run all messages with their replies: then
the run's row says so, with the end of the chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from client_sdk.flower.work import node_id
from coordinator.blobs import BlobError
from coordinator.folding.refold import short
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.flower_rows import FlowerMessageRow, FlowerReplyRow, FlowerRunRow
from coordinator.store.port import Reader
from coordinator.verify.chains import FlowerChain
from coordinator.verify.files import HashedBlobs
from coordinator.verify.heads import Head
from coordinator.verify.kinds import UNREADABLE
from coordinator.verify.violation import RunViolation, Violation

_NAME = "flower"
_PAGE = 1000


def flower_rows(
    reader: Reader, heads: Sequence[Head] = (), reached: Callable[[Head], None] | None = None
) -> Iterator[Violation]:
    """What is wrong in the rows of Flower runs. ``heads``: links of their chains that were written down outside;
    ``reached`` gets those at which they end now."""
    planned = set(reader.run_ids())
    for row in reader.flower_runs():
        if row.run in planned:
            yield RunViolation(_NAME, row.rounds, "a run with a plan has its name too").of(row.run)
        try:
            for finding in _of_run(reader, row, [head for head in heads if head.run == row.run]):
                yield finding.of(row.run)
        except UNREADABLE:
            yield Violation(_NAME, row.run, 0, "a row of the run holds a value of another kind, and cannot be read")
        if reached is not None and row.seq:
            reached(Head(row.run, row.seq, row.link))
    for node in reader.flower_nodes(float("-inf")):
        if node.node != node_id(node.device):
            yield Violation(_NAME, "", 0, f"device {node.device} has the node id {node.node}, which is not its own")


def flower_files(newest: Reader, blobs: HashedBlobs) -> Iterator[Violation]:
    """Contents whose bytes are missing, or are others. ``newest``: rows that are not of one moment, since a coordinator
    may delete a content while blobs are read."""
    for row in newest.flower_runs():
        after = ""
        while page := newest.flower_contents(row.run, after, _PAGE):
            for content in page:
                try:
                    digest, size = blobs.found(content.digest)
                except BlobError as error:
                    if newest.flower_content(row.run, content.digest) is not None:
                        what = f"the content {short(content.digest)} cannot be read: {error}"
                        yield RunViolation(_NAME, row.rounds, what).of(row.run)
                    continue
                if (digest, size) != (content.digest, content.bytes):
                    what = (
                        f"the content {short(content.digest)} of {content.bytes} bytes has {size} bytes of the digest "
                        f"{short(digest)}"
                    )
                    yield RunViolation(_NAME, row.rounds, what).of(row.run)
            after = page[-1].digest


def _of_run(reader: Reader, row: FlowerRunRow, heads: Sequence[Head]) -> Iterator[RunViolation]:
    if row.over != (row.ended_at is not None):
        yield RunViolation(_NAME, row.rounds, f"it is {row.status}, and its end is {row.ended_at}")
    if row.dropped_at is not None:
        yield from _dropped(reader, row, heads)
        return
    yield from _messages(reader, row, FlowerChain(row, heads))
    if row.state is not None and reader.flower_content(row.run, row.state) is None:
        yield RunViolation(_NAME, row.rounds, f"it has no content {short(row.state)}, which is the ServerApp's state")


def _messages(reader: Reader, row: FlowerRunRow, chain: FlowerChain) -> Iterator[RunViolation]:
    counts: Counter[str] = Counter()
    known: set[str] = set()
    after = 0
    while page := reader.flower_messages(row.run, after, _PAGE):
        replies = reader.flower_replies(row.run, [message.message for message in page])
        named = {message.content for message in page} | {one.content for one in replies.values() if one.content}
        sizes = reader.flower_contents_among(row.run, named)
        for place, message in enumerate(page, after + 1):
            known.add(message.message)
            if message.position != place:
                yield RunViolation(_NAME, message.round, f"a message has the place {message.position}, not {place}")
            yield from _message(row, message, replies.get(message.message), sizes)
            yield from chain.add(message, replies.get(message.message))
        after += len(page)
    yield from chain.end()
    last = ""
    while found := reader.flower_replies_of(row.run, last, _PAGE):
        for reply in found:
            counts["errors" if reply.content is None else "replies"] += 1
            if reply.message not in known:
                yield RunViolation(_NAME, row.rounds, f"a reply belongs to {short(reply.message)}, which is no message")
        last = found[-1].message
    for what, stored, count in (
        ("messages", row.messages, after),
        ("replies", row.replies, counts["replies"]),
        ("errors", row.errors, counts["errors"]),
    ):
        if stored != count:
            yield RunViolation(_NAME, row.rounds, f"it has counted {stored} {what}, and has {count}")


def _message(
    row: FlowerRunRow, message: FlowerMessageRow, reply: FlowerReplyRow | None, sizes: Mapping[str, int]
) -> Iterator[RunViolation]:
    name = f"message {short(message.message)}"
    if not 1 <= message.round <= row.rounds:
        yield RunViolation(_NAME, message.round, f"{name} is of round {message.round}, of {row.rounds}")
    if message.node != node_id(message.device):
        yield RunViolation(_NAME, message.round, f"{name} is to node {message.node}, which is not {message.device}")
    if message.answered != (reply is not None):
        is_answered = "is marked as answered, and has no reply" if message.answered else "has a reply unmarked"
        yield RunViolation(_NAME, message.round, f"{name} {is_answered}")
    if row.ended_at is not None and message.created_at > row.ended_at:
        yield RunViolation(_NAME, message.round, f"{name} was pushed after the end of the run")
    if not message.answered and message.content not in sizes:
        yield RunViolation(_NAME, message.round, f"{name} waits, and its content {short(message.content)} is not there")
    if reply is not None:
        yield from _reply(row, message, reply, sizes)


def _reply(
    row: FlowerRunRow, message: FlowerMessageRow, reply: FlowerReplyRow, sizes: Mapping[str, int]
) -> Iterator[RunViolation]:
    name = f"the reply to message {short(message.message)}"
    if (reply.content is None) == (reply.code is None):
        yield RunViolation(_NAME, message.round, f"{name} has both a content and an error, or neither")
    if row.ended_at is not None and reply.at > row.ended_at:
        yield RunViolation(_NAME, message.round, f"{name} came after the end of the run")
    if reply.content is None:
        return
    if reply.content not in sizes:
        yield RunViolation(_NAME, message.round, f"{name} has the content {short(reply.content)}, which is not there")
    elif sizes[reply.content] != reply.bytes:
        what = f"{name} counts {reply.bytes} bytes, and its content has {sizes[reply.content]}"
        yield RunViolation(_NAME, message.round, what)


def _dropped(reader: Reader, row: FlowerRunRow, heads: Sequence[Head]) -> Iterator[RunViolation]:
    """Of a run whose messages were dropped, their numbers and the end of their chain are left."""
    if not row.over:
        yield RunViolation(_NAME, row.rounds, "its messages were dropped, and it has not ended")
    elif row.dropped_at is not None and row.dropped_at < (row.ended_at or 0.0) + ENDED_S:
        yield RunViolation(_NAME, row.rounds, "its messages were dropped earlier than retention does it")
    for head in heads:
        if head.seq > row.seq or (head.seq == row.seq and head.link != row.link):
            what = f"its chain ended at link {row.seq}, and not with the link {head.link[:12]} of {head.seq}"
            yield RunViolation("chain", row.rounds, f"{what}, which was written down")
    if reader.flower_messages(row.run, 0, 1) or reader.flower_contents(row.run, "", 1):
        yield RunViolation(_NAME, row.rounds, "it has messages or contents after they were dropped")
    rounds = reader.flower_rounds(row.run, row.ended_at or 0.0, 0, row.rounds + 1)
    sums = {
        "messages": (row.messages, sum(one.messages for one in rounds)),
        "replies": (row.replies, sum(one.replies for one in rounds)),
        "errors": (row.errors, sum(one.errors + one.expired for one in rounds)),
        "rounds": (row.rounds, len(rounds)),
    }
    for what, (stored, count) in sums.items():
        if stored != count:
            yield RunViolation(_NAME, row.rounds, f"it has counted {stored} {what}, and its rounds have {count}")
