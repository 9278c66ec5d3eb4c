"""The device's side: its reply to a message, or the error in place of one. The first that becomes durable counts."""

from __future__ import annotations

from dataclasses import replace

from client_sdk.protocol.flower import FlowerError, ReplyReceipt
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.blobs import Spool
from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.store.flower_rows import FlowerContentRow, FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader


class ReplyRequests:
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
