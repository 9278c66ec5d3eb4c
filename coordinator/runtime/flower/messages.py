"""Messages from the ServerApp's side (``Messages``) and from the device's (``ReplyRequests``), and their ``Contents``.

All messages of one request become durable in one transaction, or none does.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from client_sdk.protocol.flower import (
    FlowerError,
    FlowerMessage,
    FlowerReply,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
    ReplyReceipt,
)
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.blobs import Spool
from coordinator.runtime.flower.flower_core import FlowerCore, ended, replies_key
from coordinator.store.flower_rows import FlowerContentRow, FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader, Transaction

MESSAGES_LIMIT = 1_000_000
"""Messages of one run."""
MESSAGE_UNAVAILABLE = 3
"""Flower's ``ErrorCode`` of a message whose time to live is over."""
NODE_UNAVAILABLE = 5
"""Flower's ``ErrorCode`` of a message whose device has left."""


class Messages:
    """Pushes messages, and pulls their replies."""

    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core
        self._lock = threading.Lock()
        self._expiring: dict[str, float] = {}
        """Run -> when the next message expires that a ServerApp waits for in this process."""

    def push(self, run: str, request: PushMessages) -> Pushed:
        """Makes the messages durable, and offers them. Those that were pushed before are left as they are; where they
        have expired without a reply they are offered again. Those to a node that does not exist are left out, and
        named in the answer. ProblemError *conflict*: nothing was pushed."""
        now = self._flower.now
        with self._core.store.transaction(run) as tx:
            row = self._flower.running(run, tx)
            wanted = _once(request.messages)
            known = {found.message: found for found in tx.flower_messages_among(run, list(wanted))}
            devices = {found.device for found in known.values()}
            for found in known.values():
                _require_same(found, wanted[found.message])
                if not found.answered and found.expires_at <= now:
                    tx.offer_flower_message(run, found.message, now + wanted[found.message].ttl_s)
            fresh = [message for name, message in wanted.items() if name not in known]
            addressed = tx.flower_nodes_among({message.node for message in fresh})
            nowhere = tuple(message.message for message in fresh if message.node not in addressed)
            self._insert(tx, row, fresh, addressed, now)
        self._flower.wake(run, sorted({*devices, *addressed.values()}))
        return Pushed(known=tuple(name for name in wanted if name in known), nowhere=nowhere)

    def _insert(
        self, tx: Transaction, row: FlowerRunRow, fresh: Sequence[FlowerMessage], devices: Mapping[int, str], now: float
    ) -> None:
        """Inserts the messages to these nodes, which are given with their devices."""
        fresh = [message for message in fresh if message.node in devices]
        if not fresh:
            return
        if row.messages + len(fresh) > MESSAGES_LIMIT:
            raise problem("conflict", f"a Flower run has {MESSAGES_LIMIT} messages at most: begin another run")
        sizes = tx.flower_contents_among(row.run, {message.content for message in fresh})
        missing = sorted({message.content for message in fresh} - sizes.keys())
        if missing:
            raise problem("conflict", f"the content {missing[0]} is not stored: send it before its messages")
        rounds, last = self._rounds(tx, row, fresh)
        tx.insert_flower_messages(
            [
                FlowerMessageRow(
                    run=row.run,
                    message=message.message,
                    position=row.messages + place,
                    round=rounds[message.group],
                    group_id=message.group,
                    grouped=message.grouped,
                    node=message.node,
                    device=devices[message.node],
                    kind=message.kind,
                    content=message.content,
                    created_at=now,
                    expires_at=now + message.ttl_s,
                )
                for place, message in enumerate(fresh, 1)
            ]
        )
        largest = max(row.largest, *sizes.values())
        latest_at = max(row.latest_at, now)
        changed = replace(row, messages=row.messages + len(fresh), rounds=last, largest=largest, latest_at=latest_at)
        tx.change_flower_run(changed)

    @staticmethod
    def _rounds(tx: Transaction, row: FlowerRunRow, fresh: Sequence[FlowerMessage]) -> tuple[dict[str, int], int]:
        """Group -> its number, and the number of the last group of the run."""
        numbers: dict[str, int] = {}
        last = row.rounds
        for message in fresh:
            if message.group not in numbers:
                found = tx.flower_round_of(row.run, message.group)
                last = last if found is not None else last + 1
                numbers[message.group] = found if found is not None else last
        return numbers, last

    def pull(self, run: str, request: PullReplies) -> Replies | None:
        """The replies that there are, in the order of the push; None: there is none yet. A message whose time is over,
        or whose device has left, has an error. ProblemError *conflict* for a message that was not pushed, and where the
        run has ended and there is no reply, or its contents were dropped."""
        store, now = self._core.store, self._flower.now
        row = self._flower.run(run)
        if row.dropped_at is not None:
            raise ended(row)
        rows = store.flower_messages_among(run, request.messages)
        unknown = set(request.messages) - {found.message for found in rows}
        if unknown:
            raise ended(row) if row.over else problem("conflict", f"message {min(unknown)} was not pushed to run {run}")
        nodes = store.flower_nodes_among({found.node for found in rows if not found.answered})
        replies = [
            _reply(found, gone=found.node not in nodes)
            for found in rows
            if found.answered or found.expires_at <= now or found.node not in nodes
        ]
        if replies:
            return Replies(replies=tuple(replies))
        if row.over:
            raise ended(row)
        self._await(run, min(found.expires_at for found in rows))
        return None

    def tick(self) -> float | None:
        """Wakes the ServerApps for whom a message has expired. Returns when the next one expires."""
        now = self._flower.now
        with self._lock:
            over = [run for run, at in self._expiring.items() if at <= now]
            for run in over:
                del self._expiring[run]
            following = min(self._expiring.values(), default=None)
        self._core.signals.wake_many([replies_key(run) for run in over])
        return following

    def _await(self, run: str, expires_at: float) -> None:
        with self._lock:
            self._expiring[run] = min(expires_at, self._expiring.get(run, expires_at))


def _once(messages: Sequence[FlowerMessage]) -> dict[str, FlowerMessage]:
    """The messages by id. ProblemError where one is there twice with two meanings."""
    found: dict[str, FlowerMessage] = {}
    for message in messages:
        if found.setdefault(message.message, message) != message:
            raise problem("conflict", f"message {message.message} is in this request twice, with two meanings")
    return found


def _require_same(row: FlowerMessageRow, message: FlowerMessage) -> None:
    """ProblemError *conflict* where the message of this id that was pushed before is another one."""
    before = (row.node, row.kind, row.group_id, row.content)
    if before != (message.node, message.kind, message.group, message.content):
        raise problem("conflict", f"message {row.message} was pushed before, with another node, kind, group or content")


def _reply(message: FlowerMessageRow, *, gone: bool) -> FlowerReply:
    """The reply to a message; of one that has none, that its device is ``gone`` or its time is over."""
    at, error = message.replied_at, None
    if at is None and gone:
        error = FlowerError(code=NODE_UNAVAILABLE, reason="the device has left before there was a reply")
        at = message.created_at
    elif at is None:
        reason = "the message's time to live was over before there was a reply"
        error = FlowerError(code=MESSAGE_UNAVAILABLE, reason=reason)
        at = message.expires_at
    elif message.code is not None:
        error = FlowerError(code=message.code, reason=message.reason)
    return FlowerReply(
        message=message.message,
        node=message.node,
        at=at,
        content=message.reply,
        bytes=message.reply_bytes,
        error=error,
    )


class ReplyRequests:
    """A device's reply to a message, or the error in place of one. The first that becomes durable counts."""

    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core

    def limit(self, device: str, run: str, message: str) -> int:
        """The longest accepted reply in bytes. ProblemError where none can count: *not-selected*, *late*. A message
        that is answered is let pass, since the same bytes get the same receipt."""
        row, found = self._open(self._core.store, device, run, message, self._flower.now)
        return self._flower.max_reply(row, found)

    def reply(self, device: str, run: str, message: str, spool: Spool) -> ReplyReceipt:
        """Makes the reply durable. The same bytes again get the same receipt; others are a *duplicate*."""
        _, found = self._open(self._core.store, device, run, message, self._flower.now)
        if found.answered:
            return _receipt(found, spool.digest)
        size = spool.size
        return self._answer(device, run, message, reply=spool.commit(), reply_bytes=size)

    def error(self, device: str, run: str, message: str, error: FlowerError) -> ReplyReceipt:
        """Makes the error durable in place of a reply. The same again changes nothing."""
        reason = error.reason.replace("\0", "")  # PostgreSQL has no such sign in texts
        return self._answer(device, run, message, code=error.code, reason=reason)

    def _answer(
        self,
        device: str,
        run: str,
        message: str,
        *,
        reply: str | None = None,
        reply_bytes: int = 0,
        code: int | None = None,
        reason: str = "",
    ) -> ReplyReceipt:
        with self._core.store.transaction(run) as tx:
            now = self._flower.now
            row, found = self._open(tx, device, run, message, now)
            if found.answered:
                return _receipt(found, reply)
            if reply is not None:
                if not self._core.blobs.has(reply):  # as contents without use were dropped just now
                    raise problem("busy", "the reply's bytes were removed again: send them once more", retry_after_s=1)
                tx.put_flower_content(FlowerContentRow(run=run, digest=reply, bytes=reply_bytes, stored_at=now))
            tx.answer_flower_message(
                replace(found, replied_at=now, reply=reply, reply_bytes=reply_bytes, code=code, reason=reason)
            )
            replies, errors = row.replies + (code is None), row.errors + (code is not None)
            tx.change_flower_run(replace(row, replies=replies, errors=errors, latest_at=max(row.latest_at, now)))
        self._flower.wake(run, [device])
        return ReplyReceipt(message=message, digest=reply)

    def _open(
        self, reader: Reader, device: str, run: str, message: str, now: float
    ) -> tuple[FlowerRunRow, FlowerMessageRow]:
        """The message of this device, answered or waiting for its answer. ProblemError *not-selected*, *late*."""
        row = self._flower.run(run, reader)
        found = reader.flower_message(run, message)
        if found is None or found.device != device:
            raise problem("not-selected", f"Flower run {run} has no message {message} for this device")
        if found.answered:
            return row, found
        if row.over:
            raise _late(f"Flower run {run} has ended ({row.status})")
        if found.expires_at <= now:
            raise _late(f"the time to live of message {message} is over")
        return row, found


def _late(detail: str) -> ProblemError:
    return problem("late", detail)


def _receipt(before: FlowerMessageRow, digest: str | None) -> ReplyReceipt:
    """The receipt of a reply that counts already. ProblemError *duplicate* where it is another one."""
    if before.reply != digest:
        raise problem("duplicate", f"message {before.message} is answered already, with another reply")
    return ReplyReceipt(message=before.message, digest=before.reply)


class Contents:
    """The contents of messages and replies: stored once under their digest, and who may read them."""

    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core

    def limit(self, run: str) -> int:
        """The longest accepted content of a ServerApp in bytes. ProblemError where the run takes none."""
        self._flower.running(run)
        return self._core.settings.max_checkpoint_bytes

    def put(self, run: str, spool: Spool, digest: str) -> None:
        """Stores a content of the ServerApp. Its bytes have the digest."""
        size = spool.size
        spool.commit(digest)
        with self._core.store.transaction(run) as tx:
            self._flower.running(run, tx)
            if not self._core.blobs.has(digest):  # as contents without use were dropped just now
                raise problem("busy", "the content's bytes were removed again: send them once more", retry_after_s=1)
            tx.put_flower_content(FlowerContentRow(run=run, digest=digest, bytes=size, stored_at=self._flower.now))

    def require(self, run: str, digest: str, device: str | None) -> None:
        """ProblemError *unknown-content* unless the run has this content, and the caller may have it. ``device``: it
        may read those of its own messages; None: an operator asks, for whom the run is in scope."""
        store = self._core.store
        self._flower.run(run)
        there = store.flower_content(run, digest) is not None
        if not there or (device is not None and not store.flower_addressed(run, device, digest)):
            whose = "for this device" if device is not None else "any more, or never had it"
            raise problem("unknown-content", f"Flower run {run} has no content {digest} {whose}")
