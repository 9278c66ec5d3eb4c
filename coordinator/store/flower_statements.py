"""The statements of ``flower.py``, built once for SQLite and PostgreSQL. Conventions as in ``statements``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, case, cast, delete, exists, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.schema import Table

from coordinator.store.flower_rows import (
    FlowerContentRow,
    FlowerMessageRow,
    FlowerNodeRow,
    FlowerReplyRow,
    FlowerRoundRow,
    FlowerRunRow,
)
from coordinator.store.flower_tables import (
    flower_contents,
    flower_messages,
    flower_nodes,
    flower_replies,
    flower_rounds,
    flower_runs,
    run_names,
)

_messages, _replies, _contents, _runs = flower_messages.c, flower_replies.c, flower_contents.c, flower_runs.c
_after: BindParameter[Any] = bindparam("after")
_limit: BindParameter[int] = bindparam("limit")
_now: BindParameter[float] = bindparam("now")
_among: BindParameter[Any] = bindparam("among", expanding=True)


def _select(table: Table, row: type) -> Select[Any]:
    return select(*(table.c[field.name] for field in fields(row)))


def _is(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return [table.c[column] == bindparam(column) for column in columns]


def _at(table: Table, *columns: str) -> list[ColumnElement[bool]]:
    return [table.c[column] == bindparam(f"at_{column}") for column in columns]


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


# Reads

FLOWER_RUN = _select(flower_runs, FlowerRunRow).where(*_is(flower_runs, "run"))
FLOWER_RUNS = _select(flower_runs, FlowerRunRow).order_by(_runs.created_at, _runs.run)
FLOWER_RUNNING = FLOWER_RUNS.where(_runs.status == "running")
LOCK_FLOWER_RUN = select(_runs.run).where(*_is(flower_runs, "run")).with_for_update()
HOLD_RUN = select(run_names.c.run).where(*_is(run_names, "run")).with_for_update(read=True, key_share=True)
"""The lock that a row of the audit takes, which names a run of either kind."""
NODE = _select(flower_nodes, FlowerNodeRow).where(*_is(flower_nodes, "device"))
NODES = (
    _select(flower_nodes, FlowerNodeRow)
    .where(flower_nodes.c.seen_at >= bindparam("since"))
    .order_by(flower_nodes.c.node)
)
NODES_AMONG = select(flower_nodes.c.node, flower_nodes.c.device).where(flower_nodes.c.node.in_(_among))
CONTENT = _select(flower_contents, FlowerContentRow).where(*_is(flower_contents, "run", "digest"))
CONTENTS = (
    _select(flower_contents, FlowerContentRow)
    .where(*_is(flower_contents, "run"), _contents.digest > _after)
    .order_by(_contents.digest)
    .limit(_limit)
)
CONTENTS_AMONG = select(_contents.digest, _contents.bytes).where(
    *_is(flower_contents, "run"), _contents.digest.in_(_among)
)
DIGESTS = select(_contents.digest).distinct()
_of_open_message = exists().where(
    _messages.run == _contents.run, _messages.content == _contents.digest, _messages.answered.is_(False)
)
_of_reply = exists().where(_replies.run == _contents.run, _replies.content == _contents.digest)
_of_state = exists().where(_runs.run == _contents.run, _runs.state == _contents.digest)
UNNEEDED = (
    select(_contents.digest)
    .where(
        *_is(flower_contents, "run"),
        _contents.stored_at < bindparam("before"),
        ~_of_open_message,
        ~_of_reply,
        ~_of_state,
    )
    .order_by(_contents.digest)
)
ADDRESSED = select(literal(1)).where(*_is(flower_messages, "run", "content", "device")).limit(1)
MESSAGE = _select(flower_messages, FlowerMessageRow).where(*_is(flower_messages, "run", "message"))
MESSAGES = (
    _select(flower_messages, FlowerMessageRow)
    .where(*_is(flower_messages, "run"), _messages.position > _after)
    .order_by(_messages.position)
    .limit(_limit)
)
MESSAGES_AMONG = _select(flower_messages, FlowerMessageRow).where(
    *_is(flower_messages, "run"), _messages.message.in_(_among)
)
_place = (_messages.delivered_at.is_(None), _messages.created_at, _messages.run, _messages.position)
_open = (
    _select(flower_messages, FlowerMessageRow)
    .join(flower_runs, _runs.run == _messages.run)
    .where(_messages.answered.is_(False), _messages.expires_at > _now, _runs.status == "running")
)
OPEN = _open.where(*_is(flower_messages, "device")).order_by(*_place)
UNDER_WAY = _open.where(_messages.delivered_at.is_not(None)).order_by(_messages.device, *_place)
ROUND_OF = (
    select(_messages.round).where(*_is(flower_messages, "run", "group_id")).order_by(_messages.round.desc()).limit(1)
)
"""The newest groups first: the messages of one group are often pushed one by one."""
EXPIRED = select(func.count()).where(
    *_is(flower_messages, "run"), _messages.answered.is_(False), _messages.expires_at <= _now
)
STORED_ROUNDS = (
    _select(flower_rounds, FlowerRoundRow)
    .where(*_is(flower_rounds, "run"), flower_rounds.c.round > _after)
    .order_by(flower_rounds.c.round)
    .limit(_limit)
)
ROUNDS = (
    select(
        _messages.run,
        _messages.round,
        func.min(_messages.group_id),
        func.min(_messages.created_at),
        func.count(),
        func.count(_messages.delivered_at),
        func.count(_replies.content),
        func.count(_replies.code),
        _count(_messages.answered.is_(False) & (_messages.expires_at <= _now)),
        cast(func.coalesce(func.sum(_replies.bytes), 0), BigInteger),
        func.max(_replies.at),
    )
    .join_from(
        flower_messages,
        flower_replies,
        (_replies.run == _messages.run) & (_replies.message == _messages.message),
        isouter=True,
    )
    .where(*_is(flower_messages, "run"), _messages.round > _after, _messages.round <= _after + _limit)
    .group_by(_messages.run, _messages.round)
    .order_by(_messages.round)
)
"""Columns in the order of ``FlowerRoundRow``."""
REPLY = _select(flower_replies, FlowerReplyRow).where(*_is(flower_replies, "run", "message"))
REPLIES = (
    _select(flower_replies, FlowerReplyRow)
    .where(*_is(flower_replies, "run"), _replies.message > _after)
    .order_by(_replies.message)
    .limit(_limit)
)
REPLIES_AMONG = _select(flower_replies, FlowerReplyRow).where(*_is(flower_replies, "run"), _replies.message.in_(_among))

# Writes

NAME_RUN = insert(run_names)
INSERT_FLOWER_RUN = insert(flower_runs)
CHANGE_FLOWER_RUN = (
    update(flower_runs)
    .where(*_at(flower_runs, "run"), _runs.status.in_(["running", bindparam("at_status")]))
    .values({field.name: bindparam(field.name) for field in fields(FlowerRunRow) if field.name != "run"})
)
"""Changes no row where the run has ended and another status is given."""
DROP_NODES = delete(flower_nodes).where(flower_nodes.c.seen_at < bindparam("at_seen"))
DROP_NODE = delete(flower_nodes).where(*_at(flower_nodes, "device"))
DROP_CONTENT = delete(flower_contents).where(*_at(flower_contents, "run", "digest"))
INSERT_MESSAGES = insert(flower_messages)
OFFER_MESSAGE = (
    update(flower_messages)
    .where(*_at(flower_messages, "run", "message"))
    .values(expires_at=bindparam("expires_at"), delivered_at=None)
)
DELIVER_MESSAGE = (
    update(flower_messages)
    .where(*_at(flower_messages, "run", "message"))
    .values(delivered_at=func.coalesce(_messages.delivered_at, bindparam("delivered_at")))
)
INSERT_REPLY = insert(flower_replies)
ANSWER_MESSAGE = update(flower_messages).where(*_at(flower_messages, "run", "message")).values(answered=True)
INSERT_ROUNDS = insert(flower_rounds)
DROP_OF_RUN = tuple(
    delete(table).where(table.c.run == bindparam("at_run"))
    for table in (flower_replies, flower_messages, flower_contents)
)


class FlowerUpserts:
    """The statements that insert or replace, in one dialect."""

    def __init__(self, dialect: str) -> None:
        make = postgresql.insert if dialect == "postgresql" else sqlite.insert
        node: Any = make(flower_nodes)
        names = [field.name for field in fields(FlowerNodeRow) if field.name != "device"]
        self.put_node = node.on_conflict_do_update(
            index_elements=["device"], set_={name: node.excluded[name] for name in names}
        )
        content: Any = make(flower_contents)
        self.put_content = content.on_conflict_do_update(
            index_elements=["run", "digest"], set_={"stored_at": content.excluded["stored_at"]}
        )
