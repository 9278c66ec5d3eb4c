"""Calls a ClientApp with one message, and writes its answer: the reply and the node's new Context.state."""

from __future__ import annotations

import mmap
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from client_sdk.flower import records
from client_sdk.flower.answer_file import AnswerHeader, write_answer
from client_sdk.flower.flwr_private import create_messages_as, received_message
from client_sdk.flower.work import AppFailed, AppWork, ErrorCode, Worked, error, raised
from client_sdk.protocol.flower import FlowerError

SERVER_NODE = 1
"""The node id that Flower's messages have as their source: its SuperLink's."""


def call(app: ClientApp, work: AppWork) -> Worked | AppFailed:
    """Let the ClientApp work on one message. Whatever it raises becomes Flower's error reply, and the state stays as it
    was: the answer is written only where the ClientApp returns a message."""
    try:
        message, context = _message(work), _context(work)
    except (OSError, records.RecordsError) as unreadable:
        return AppFailed(error=error(ErrorCode.MESSAGE_UNAVAILABLE, f"The message cannot be read: {unreadable}"))
    create_messages_as(work.node, work.number)
    try:
        reply = app(message, context)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - whatever an app raises is its answer
        traceback.print_exc()
        return AppFailed(error=raised(failure))
    del message
    try:
        return _answer(work, reply, context.state)
    except records.RecordsError as refused:
        return AppFailed(error=error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"The reply cannot be sent: {refused}"))
    except OSError as failure:
        reason = f"The device cannot write the reply: {failure.strerror or failure}."
        return AppFailed(error=error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))


def _answer(work: AppWork, reply: object, state: object) -> Worked | AppFailed:
    if not isinstance(reply, Message) or not isinstance(state, RecordDict):
        wrong = f"a {type(reply).__name__}, not a Message"
        if isinstance(reply, Message):
            wrong = f"a context whose state is a {type(state).__name__}, not a RecordDict"
        return AppFailed(error=error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"The ClientApp returned {wrong}."))
    kept = records.encode(state)
    header = AnswerHeader(run=work.run, number=work.number, message=work.message, state_bytes=kept.length)
    if reply.has_error():
        replied = FlowerError(code=reply.error.code, reason=(reply.error.reason or "")[:2000])
        header, content = header.changed(error=replied), None
    else:
        content = records.encode(reply.content)
        if content.length > work.max_reply:
            reason = (
                f"The reply has {content.length} bytes, and this run accepts {work.max_reply}: "
                "start the run with a larger --max-reply."
            )
            return AppFailed(error=error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))
        header = header.changed(reply=content.digest, reply_bytes=content.length)
    with os.fdopen(os.open(work.answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        write_answer(file, header, kept.parts(), content.parts() if content is not None else ())
    return Worked()


def _message(work: AppWork) -> Message:
    metadata = Metadata(
        run_id=work.number,
        message_id=work.message,
        src_node_id=SERVER_NODE,
        dst_node_id=work.node,
        reply_to_message_id="",
        group_id=work.group,
        created_at=work.created_at,
        ttl=work.ttl_s,
        message_type=work.type,
    )
    with _mapped(work.content, 0, Path(work.content).stat().st_size) as content:
        return received_message(records.decode(content), metadata)


def _context(work: AppWork) -> Context:
    state = RecordDict()
    if work.state is not None:
        with _mapped(work.state.path, work.state.start, work.state.bytes) as stored:
            state = records.decode(stored)
    return Context(
        run_id=work.number,
        node_id=work.node,
        node_config=dict(work.node_config),
        state=state,
        run_config=dict(work.run_config),
    )


@contextmanager
def _mapped(path: str, start: int, length: int) -> Iterator[memoryview]:
    """A part of a file in memory, without a copy of it."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        view = memoryview(whole)
        part = view[start : start + length]
        try:
            yield part
        finally:
            part.release()
            view.release()
