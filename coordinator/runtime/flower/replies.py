"""The device's side: its reply to a message, or the error in place of one. The first that becomes durable counts."""

from __future__ import annotations

from dataclasses import replace

from client_sdk.protocol.flower import FlowerError, ReplyReceipt
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.blobs import Spool
from coordinator.runtime.flower.ground import Ground
from coordinator.store.flower_rows import FlowerContentRow, FlowerMessageRow, FlowerReplyRow, FlowerRunRow
from coordinator.store.port import Reader


class ReplyRequests:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._core = ground.core

    def limit(self, device: str, run: str, message: str) -> int:
        """The longest accepted reply in bytes. ProblemError where none can count: *not-selected*, *late*. A message
        that is answered is let pass, since the same bytes get the same receipt."""
        row, found = self._open(self._core.store, device, run, message)
        return self._ground.max_reply(row, found)

    def reply(self, device: str, run: str, message: str, spool: Spool) -> ReplyReceipt:
        """Makes the reply durable. The same bytes again get the same receipt; others are a *duplicate*."""
        before = self._core.store.flower_reply(run, message)
        if before is not None:
            self._open(self._core.store, device, run, message)
            return _receipt(before, spool.digest)
        size, digest = spool.size, spool.commit()
        now = self._ground.now
        row = FlowerReplyRow(run=run, message=message, content=digest, bytes=size, code=None, reason="", at=now)
        return self._answer(device, row)

    def error(self, device: str, run: str, message: str, error: FlowerError) -> ReplyReceipt:
        """Makes the error durable in place of a reply. The same again changes nothing."""
        row = FlowerReplyRow(
            run=run,
            message=message,
            content=None,
            bytes=0,
            code=error.code,
            reason=error.reason.replace("\0", ""),  # PostgreSQL has no such sign in texts
            at=self._ground.now,
        )
        return self._answer(device, row)

    def _answer(self, device: str, row: FlowerReplyRow) -> ReplyReceipt:
        run = row.run
        with self._core.store.transaction(run) as tx:
            of_run, _ = self._open(tx, device, run, row.message)
            before = tx.flower_reply(run, row.message)
            if before is not None:
                return _receipt(before, row.content)
            counted = replace(of_run, errors=of_run.errors + 1)
            if row.content is not None:
                if not self._core.blobs.has(row.content):  # as contents without use were dropped just now
                    raise problem("busy", "the reply's bytes were removed again: send them once more", retry_after_s=1)
                kept = FlowerContentRow(run=run, digest=row.content, bytes=row.bytes, stored_at=row.at)
                tx.put_flower_content(kept)
                counted = replace(of_run, replies=of_run.replies + 1)
            tx.insert_flower_reply(row)
            tx.change_flower_run(replace(counted, latest_at=max(of_run.latest_at, row.at)))
        self._ground.wake(run, [device])
        return ReplyReceipt(message=row.message, digest=row.content)

    def _open(self, reader: Reader, device: str, run: str, message: str) -> tuple[FlowerRunRow, FlowerMessageRow]:
        """The message of this device, answered or waiting for its answer. ProblemError *not-selected*, *late*."""
        row = self._ground.run(run, reader)
        found = reader.flower_message(run, message)
        if row.dropped_at is not None:
            raise _late(f"Flower run {run} has ended ({row.status})")
        if found is None or found.device != device:
            raise problem("not-selected", f"Flower run {run} has no message {message} for this device")
        if found.answered:
            return row, found
        if row.over:
            raise _late(f"Flower run {run} has ended ({row.status})")
        if found.expires_at <= self._ground.now:
            raise _late(f"the time to live of message {message} is over")
        return row, found


def _late(detail: str) -> ProblemError:
    return problem("late", detail)


def _receipt(before: FlowerReplyRow, digest: str | None) -> ReplyReceipt:
    """The receipt of a reply that counts already. ProblemError *duplicate* where it is another one."""
    if before.content != digest:
        raise problem("duplicate", f"message {before.message} is answered already, with another reply")
    return ReplyReceipt(message=before.message, digest=before.content)
