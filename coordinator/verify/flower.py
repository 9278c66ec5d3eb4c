"""Holds Flower runs against what they promise: messages, replies and the end continue their chain, a message is to the
node of its device, a reply came in its time and counts once, the contents that rows name are there with their bytes,
and nothing came after the end of its run.

Retention deletes contents, which no link holds: those that nothing needs, and a day after the end of a run all of them,
which the run's row says then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from client_sdk.flower.work import node_id
from coordinator.blobs import BlobError
from coordinator.folding.refold import short
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader
from coordinator.verify.chains import FlowerChain, Head
from coordinator.verify.files import HashedBlobs
from coordinator.verify.kinds import UNREADABLE
from coordinator.verify.violation import RunViolation, Violation

_NAME = "flower"
_PAGE = 1000


def flower_runs(reader: Reader) -> list[FlowerRunRow]:
    """The Flower runs whose rows can be read."""
    return [row for run in reader.flower_run_ids() if (row := _row(reader, run)) is not None]


def _row(reader: Reader, run: str) -> FlowerRunRow | None:
    try:
        return reader.flower_run(run)
    except UNREADABLE:
        return None


def flower_rows(
    reader: Reader, heads: Sequence[Head] = (), reached: Callable[[Head], None] | None = None
) -> Iterator[Violation]:
    """What is wrong in the rows of Flower runs. ``heads``: links of their chains that were written down outside;
    ``reached`` gets those at which they end now."""
    planned = set(reader.run_ids())
    for run in reader.flower_run_ids():
        row = _row(reader, run)
        if row is None:
            yield Violation(_NAME, run, 0, "the run's row holds what is not JSON")
            continue
        if run in planned:
            yield RunViolation(_NAME, row.rounds, "a run with a plan has its name too").of(row.run)
        try:
            for finding in _of_run(reader, row, [head for head in heads if head.run == row.run]):
                yield finding.of(row.run)
        except UNREADABLE:
            yield Violation(_NAME, row.run, 0, "a row of the run holds a value of another kind, and cannot be read")
        if reached is not None and row.seq:
            reached(Head(row.run, row.seq, row.link))


def flower_files(newest: Reader, blobs: HashedBlobs) -> Iterator[Violation]:
    """Contents whose bytes are missing, or are others. ``newest``: rows that are not of one moment, since a coordinator
    may delete a content while blobs are read."""
    for row in flower_runs(newest):
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
        if row.ended_at is None:
            yield RunViolation(_NAME, row.rounds, "its contents were dropped, and it has not ended")
        elif row.dropped_at < row.ended_at + ENDED_S:
            yield RunViolation(_NAME, row.rounds, "its contents were dropped earlier than retention does it")
        if reader.flower_contents(row.run, "", 1):
            yield RunViolation(_NAME, row.rounds, "it has contents after they were dropped")
    elif row.state is not None and reader.flower_content(row.run, row.state) is None:
        yield RunViolation(_NAME, row.rounds, f"it has no content {short(row.state)}, which is the ServerApp's state")
    chain, counts = FlowerChain(row, heads), {"messages": 0, "rounds": 0, "replies": 0, "errors": 0}
    after, latest_at = 0, 0.0
    while page := reader.flower_messages(row.run, after, _PAGE):
        named = {message.content for message in page} | {one.reply for one in page if one.reply is not None}
        sizes = None if row.dropped_at is not None else reader.flower_contents_among(row.run, named)
        for place, message in enumerate(page, counts["messages"] + 1):
            if message.position != place:
                yield RunViolation(_NAME, message.round, f"a message has the place {message.position}, not {place}")
            for what in _message(row, message, sizes):
                yield RunViolation(_NAME, message.round, f"message {short(message.message)} {what}")
            yield from chain.add(message)
            counts["rounds"] = max(counts["rounds"], message.round)
            counts["replies"] += message.reply is not None
            counts["errors"] += message.code is not None
            latest_at = max(latest_at, message.created_at, message.replied_at or 0.0)
        after, counts["messages"] = page[-1].position, counts["messages"] + len(page)
    yield from chain.end()
    for what, count in counts.items():
        if getattr(row, what) != count:
            yield RunViolation(_NAME, row.rounds, f"it has counted {getattr(row, what)} {what}, and has {count}")
    if row.latest_at != latest_at:
        what = f"its last message or reply came at {latest_at}, and its row has {row.latest_at}"
        yield RunViolation(_NAME, row.rounds, what)


def _message(row: FlowerRunRow, message: FlowerMessageRow, sizes: Mapping[str, int] | None) -> Iterator[str]:
    """What speaks against a message or its reply. ``sizes``: of the contents that are there; None: they were
    dropped."""
    if message.node != node_id(message.device):
        yield f"is to node {message.node}, which is not {message.device}"
    if row.ended_at is not None and message.created_at > row.ended_at:
        yield "was pushed after the end of the run"
    if message.replied_at is None:
        named = (message.reply, message.reply_bytes, message.code, message.reason)
        if named != (None, 0, None, "") or (message.reply_seq, message.reply_link) != (0, ""):
            yield "has a reply that came at no time"
        if sizes is not None and message.content not in sizes:
            yield f"waits, and its content {short(message.content)} is not there"
        return
    if (message.reply is None) == (message.code is None):
        yield "has both a content and an error as its reply, or neither"
    if row.ended_at is not None and message.replied_at > row.ended_at:
        yield "has a reply that came after the end of the run"
    if message.replied_at >= message.expires_at:
        yield "has a reply that came after its time"
    if sizes is None or message.reply is None:
        return
    if message.reply not in sizes:
        yield f"has the reply {short(message.reply)}, which is not there"
    elif sizes[message.reply] != message.reply_bytes:
        yield f"counts {message.reply_bytes} bytes of its reply, whose content has {sizes[message.reply]}"
