"""Bugs in Flower runs: what is acknowledged and lost, counted twice, offered once, or read by another device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from client_sdk.protocol.flower import FlowerMessage, FlowerPoll, PullReplies, Replies, ReplyReceipt
from client_sdk.protocol.problems import ProblemError
from coordinator.blobs import Spool
from coordinator.runtime import sweeping
from coordinator.runtime.core import Core
from coordinator.runtime.flower import messages
from coordinator.runtime.flower.messages import NODE_UNAVAILABLE, Contents, Messages, ReplyRequests
from coordinator.runtime.flower.nodes import Nodes
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader, Transaction
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
Found = tuple[FlowerRunRow, FlowerMessageRow]


@mutant("flower-push-in-part", "ack-durable", "no-bug", flower=True)
def _push_in_part() -> Patches:
    """A push of several messages stores all but the last one, and is acknowledged."""
    whole = Messages._insert

    def insert(
        self: Messages,
        tx: Transaction,
        row: FlowerRunRow,
        fresh: Sequence[FlowerMessage],
        devices: Mapping[int, str],
        now: float,
    ) -> None:
        whole(self, tx, row, fresh[:-1] if len(fresh) > 1 else fresh, devices, now)

    return [(Messages, "_insert", insert)]


@mutant("flower-reply-before-it-is-durable", "ack-durable", flower=True)
def _reply_before_it_is_durable() -> Patches:
    """The receipt is given, and every second reply is not stored."""
    answer = ReplyRequests._answer

    def forgetful(self: ReplyRequests, device: str, run: str, message: str, **reply: Any) -> ReplyReceipt:
        if int(message[:2], 16) % 2:
            return ReplyReceipt(message=message, digest=reply.get("reply"))
        return answer(self, device, run, message, **reply)

    return [(ReplyRequests, "_answer", forgetful)]


@mutant("flower-reply-counts-again", "flower", flower=True)
def _reply_counts_again() -> Patches:
    """A reply that is sent again is counted again."""
    first = ReplyRequests.reply

    def reply(self: ReplyRequests, device: str, run: str, message: str, spool: Spool) -> ReplyReceipt:
        before = self._core.store.flower_message(run, message)
        receipt = first(self, device, run, message, spool)
        if before is not None and before.answered:
            with self._core.store.transaction(run) as tx:
                row = self._flower.run(run, tx)
                if not row.over:
                    tx.change_flower_run(replace(row, replies=row.replies + 1))
        return receipt

    return [(ReplyRequests, "reply", reply)]


@mutant("flower-offered-once", "liveness", "offer", flower=True)
def _offered_once() -> Patches:
    """A message that was given to its device is not given again after the device, or the answer, was lost."""
    any_of_them = Nodes._first

    def first(self: Nodes, reader: Reader, device: str, poll: FlowerPoll) -> Found | None:
        found = any_of_them(self, reader, device, poll)
        return None if found is not None and found[1].delivered_at is not None else found

    return [(Nodes, "_first", first)]


@mutant("flower-content-for-all", "permission", flower=True)
def _content_for_all() -> Patches:
    """A device may read every content of the run."""
    require = Contents.require
    return [(Contents, "require", lambda self, run, digest, device: require(self, run, digest, None))]


@mutant("flower-swept", "ack-durable", "flower", "liveness", flower=True)
def _swept() -> Patches:
    """The sweep at a start deletes the contents of Flower runs."""
    of_run = sweeping._of_run

    def delete(core: Core, digests: Iterable[str]) -> int:
        named = {digest for run in core.store.run_ids() for digest in of_run(core, run)}
        gone = [digest for digest in digests if digest not in named]
        for digest in gone:
            core.blobs.delete(digest)
        return len(gone)

    return [(sweeping, "delete_unnamed", delete)]


@mutant("flower-anyone-answers", "counts-once", "ack-durable", "receipt", flower=True, rates={"lie": 0.5}, storm_s=60.0)
def _anyone_answers() -> Patches:
    """A device may answer the message of another."""
    open_message = ReplyRequests._open

    def of_anyone(self: ReplyRequests, reader: Reader, device: str, run: str, message: str, now: float) -> Found:
        found = reader.flower_message(run, message)
        return open_message(self, reader, device if found is None else found.device, run, message, now)

    return [(ReplyRequests, "_open", of_anyone)]


@mutant("flower-second-reply", "counts-once", flower=True, rates={"lie": 0.5}, storm_s=60.0)
def _second_reply() -> Patches:
    """Another reply to a message that is answered gets a receipt too."""
    return [
        (
            messages,
            "_receipt",
            lambda before, digest: ReplyReceipt(message=before.message, digest=digest or before.reply),
        )
    ]


@mutant("flower-left-without-error", "flower", "liveness", flower=True)
def _left_without_error() -> Patches:
    """A message whose device has left gets no error: its ServerApp waits until its time is over."""
    pull = Messages.pull

    def patient(self: Messages, run: str, request: PullReplies) -> Replies | None:
        found = pull(self, run, request)
        kept = (
            ()
            if found is None
            else tuple(one for one in found.replies if one.error is None or one.error.code != NODE_UNAVAILABLE)
        )
        return Replies(replies=kept) if kept else None

    return [(Messages, "pull", patient)]


@mutant("flower-late-reply-counts", "flower", flower=True, replicas=1, rates={"device-slow": 0.3}, storm_s=60.0)
def _late_reply_counts() -> Patches:
    """A reply counts that comes after the message's time."""
    open_message = ReplyRequests._open

    def at_any_time(self: ReplyRequests, reader: Reader, device: str, run: str, message: str, now: float) -> Any:
        try:
            return open_message(self, reader, device, run, message, now)
        except ProblemError as error:
            if "the time to live" not in str(error):
                raise
            return self._flower.run(run, reader), reader.flower_message(run, message)

    return [(ReplyRequests, "_open", at_any_time)]


@mutant("flower-offered-late", "offer", flower=True)
def _offered_late() -> Patches:
    """A message is given to its device after its time."""
    flower_open = Reader.flower_open
    return [(Reader, "flower_open", lambda self, device, now: flower_open(self, device, now - 100.0))]
