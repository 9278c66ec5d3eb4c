"""The part of the Store port that holds Flower runs: who is there, messages, replies, and which contents a run has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from coordinator.store.chain import flower_beginning, flower_link
from coordinator.store.errors import Conflict, StoreError
from coordinator.store.flower_rows import (
    FlowerContentRow,
    FlowerMessageRow,
    FlowerNodeRow,
    FlowerReplyRow,
    FlowerRoundRow,
    FlowerRunRow,
)
from coordinator.store.gateway import Query, Reads, Writes
from coordinator.store.rows import RunNameRow

# Queries: each in SQL, and in Python over the reader


def _unneeded_sql(sa: Any, t: Any) -> Any:
    contents, messages, replies, runs = t.flower_contents.c, t.flower_messages.c, t.flower_replies.c, t.flower_runs.c
    of_open_message = sa.exists().where(
        messages.run == contents.run, messages.content == contents.digest, messages.answered.is_(False)
    )
    of_reply = sa.exists().where(replies.run == contents.run, replies.content == contents.digest)
    of_state = sa.exists().where(runs.run == contents.run, runs.state == contents.digest)
    return (
        sa.select(contents.digest)
        .where(
            contents.run == sa.bindparam("run"),
            contents.stored_at < sa.bindparam("before"),
            ~of_open_message,
            ~of_reply,
            ~of_state,
        )
        .order_by(contents.digest)
    )


def _unneeded(reader: Any, run: str, before: float) -> list[tuple[str]]:
    needed = {*reader._values(FlowerMessageRow, "content", {"run": run, "answered": False})}
    needed |= {*reader._values(FlowerReplyRow, "content", {"run": run})}
    needed |= {*reader._values(FlowerRunRow, "state", {"run": run})}
    old = reader._values(FlowerContentRow, "digest", {"run": run, "stored_at <": before})
    return [found for found in old if found not in needed]


_UNNEEDED = Query(_unneeded_sql, _unneeded)


def _place(row: Any) -> tuple[Any, ...]:
    """In which order a device gets its messages."""
    return row.created_at, row.run, row.position


def _open_sql(sa: Any, t: Any) -> Any:
    return (
        sa.select(t.flower_messages)
        .join(t.flower_runs, t.flower_runs.c.run == t.flower_messages.c.run)
        .where(
            t.flower_messages.c.answered.is_(False),
            t.flower_messages.c.expires_at > sa.bindparam("now"),
            t.flower_runs.c.status == "running",
        )
    )


def _open(reader: Any, now: float, **where: object) -> list[FlowerMessageRow]:
    rows = reader._all(FlowerMessageRow, {"answered": False, "expires_at >": now, **where})
    return [row for row in rows if reader._get(FlowerRunRow, row.run).status == "running"]


_OPEN = Query(
    sql=lambda sa, t: (
        _open_sql(sa, t)
        .where(t.flower_messages.c.device == sa.bindparam("device"))
        .order_by(t.flower_messages.c.delivered_at.is_(None), *_place(t.flower_messages.c))
    ),
    python=lambda reader, device, now: sorted(
        _open(reader, now, device=device), key=lambda row: (row.delivered_at is None, *_place(row))
    ),
)
_UNDER_WAY = Query(
    sql=lambda sa, t: (
        _open_sql(sa, t)
        .where(t.flower_messages.c.delivered_at.is_not(None))
        .order_by(t.flower_messages.c.device, *_place(t.flower_messages.c))
    ),
    python=lambda reader, now: sorted(
        (row for row in _open(reader, now) if row.delivered_at is not None),
        key=lambda row: (row.device, *_place(row)),
    ),
)


def _rounds_sql(sa: Any, t: Any) -> Any:
    """Columns in the order of ``FlowerRoundRow``."""
    messages, replies, after = t.flower_messages.c, t.flower_replies.c, sa.bindparam("after")
    expired = sa.case((messages.answered.is_(False) & (messages.expires_at <= sa.bindparam("now")), 1), else_=0)
    return (
        sa.select(
            messages.run,
            messages.round,
            sa.func.min(messages.group_id),
            sa.func.min(messages.created_at),
            sa.func.count(),
            sa.func.count(messages.delivered_at),
            sa.func.count(replies.content),
            sa.func.count(replies.code),
            sa.func.coalesce(sa.func.sum(expired), 0),
            sa.cast(sa.func.coalesce(sa.func.sum(replies.bytes), 0), sa.BigInteger),
            sa.func.max(replies.at),
        )
        .join_from(
            t.flower_messages,
            t.flower_replies,
            (replies.run == messages.run) & (replies.message == messages.message),
            isouter=True,
        )
        .where(
            messages.run == sa.bindparam("run"),
            messages.round > after,
            messages.round <= after + sa.bindparam("limit"),
        )
        .group_by(messages.run, messages.round)
        .order_by(messages.round)
    )


def _rounds(reader: Any, run: str, now: float, after: int, limit: int) -> Iterable[FlowerRoundRow]:
    where = {"run": run, "round >": after, "round <=": after + limit}
    for number, group in groupby(reader._all(FlowerMessageRow, where, "round"), lambda row: row.round):
        rows = list(group)
        replies = [reply for row in rows if (reply := reader.flower_reply(run, row.message)) is not None]
        yield FlowerRoundRow(
            run=run,
            round=number,
            group_id=min(row.group_id for row in rows),
            opened_at=min(row.created_at for row in rows),
            messages=len(rows),
            delivered=sum(row.delivered_at is not None for row in rows),
            replies=sum(row.content is not None for row in replies),
            errors=sum(row.code is not None for row in replies),
            expired=sum(not row.answered and row.expires_at <= now for row in rows),
            bytes_in=sum(row.bytes for row in replies),
            last_at=max((row.at for row in replies), default=None),
        )


_ROUNDS = Query(_rounds_sql, _rounds)


class FlowerReader(Reads):
    """Reads, usable inside a transaction and outside."""

    def flower_run(self, run: str) -> FlowerRunRow | None:
        return self._get(FlowerRunRow, run)

    def flower_runs(self) -> list[FlowerRunRow]:
        """All Flower runs, oldest first."""
        return self._all(FlowerRunRow, order="created_at run")

    def flower_running(self) -> list[FlowerRunRow]:
        """Those that have not ended, oldest first."""
        return self._all(FlowerRunRow, {"status": "running"}, "created_at run")

    def flower_node(self, device: str) -> FlowerNodeRow | None:
        return self._get(FlowerNodeRow, device)

    def flower_nodes(self, since: float) -> list[FlowerNodeRow]:
        """Those that were seen at this time or later, in order of node id."""
        return self._all(FlowerNodeRow, {"seen_at >=": since}, "node")

    def flower_nodes_among(self, nodes: Collection[int]) -> dict[int, str]:
        """Node id -> device, of those of these nodes that are known, whenever they were seen."""
        return {row[0]: row[1] for row in self._values(FlowerNodeRow, "node device", {"node in": list(nodes)})}

    def flower_content(self, run: str, digest: str) -> FlowerContentRow | None:
        return self._get(FlowerContentRow, run, digest)

    def flower_contents(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerContentRow]:
        """The contents of a run in order of digest, for paging."""
        return self._all(FlowerContentRow, {"run": run, "digest >": after}, limit=limit)

    def flower_contents_among(self, run: str, digests: Collection[str]) -> dict[str, int]:
        """Digest -> bytes, of those of these contents that the run has."""
        where = {"run": run, "digest in": list(digests)}
        return {row[0]: row[1] for row in self._values(FlowerContentRow, "digest bytes", where)}

    def flower_digests(self) -> set[str]:
        """The digests of all contents of all runs."""
        return {str(row[0]) for row in self._values(FlowerContentRow, "digest")}

    def flower_unneeded(self, run: str, before: float) -> list[str]:
        """The contents of a run that were stored before this time, and that nothing needs: no message without
        an answer, no reply, and not the run's state. In order of digest."""
        return [str(row[0]) for row in self._ask(_UNNEEDED, run=run, before=before)]

    def flower_addressed(self, run: str, device: str, digest: str) -> bool:
        """Whether a message of the run to this device, answered or not, has this content."""
        where = {"run": run, "content": digest, "device": device}
        return bool(self._values(FlowerMessageRow, "message", where, limit=1))

    def flower_message(self, run: str, message: str) -> FlowerMessageRow | None:
        return self._get(FlowerMessageRow, run, message)

    def flower_messages(self, run: str, after: int = 0, limit: int = 1000) -> list[FlowerMessageRow]:
        """Messages with ``position > after`` in order, for paging."""
        return self._all(FlowerMessageRow, {"run": run, "position >": after}, "position", limit)

    def flower_messages_among(self, run: str, messages: Collection[str]) -> list[FlowerMessageRow]:
        """Those of these messages that there are, in order of position."""
        found = self._all(FlowerMessageRow, {"run": run, "message in": list(messages)})
        return sorted(found, key=lambda row: row.position)

    def flower_open(self, device: str, now: float) -> list[FlowerMessageRow]:
        """The messages to a device that wait for its answer (not answered, not expired, of runs that have not ended):
        those that were delivered first, else in the order in which they were pushed."""
        return self._ask(_OPEN, FlowerMessageRow, device=device, now=now)

    def flower_under_way(self, now: float) -> list[FlowerMessageRow]:
        """The messages of all runs that were delivered and wait for their answer, in order of device."""
        return self._ask(_UNDER_WAY, FlowerMessageRow, now=now)

    def flower_round_of(self, run: str, group_id: str) -> int | None:
        """The number of this group; None: no message of it was pushed."""
        # The newest first: the messages of one group are often pushed one by one.
        found = self._values(FlowerMessageRow, "round", {"run": run, "group_id": group_id}, "-round", 1)
        return next((int(number) for (number,) in found), None)

    def flower_rounds(self, run: str, now: float, after: int = 0, limit: int = 1000) -> list[FlowerRoundRow]:
        """The groups numbered above ``after``, at most ``limit``, in order: counted from their messages, or as they
        were stored when those were dropped. Messages that expire until ``now`` count as expired."""
        stored = self._all(FlowerRoundRow, {"run": run, "round >": after}, limit=limit)
        return stored or self._ask(_ROUNDS, FlowerRoundRow, run=run, now=now, after=after, limit=limit)

    def flower_expired(self, run: str, now: float) -> int:
        """How many messages have expired until then without an answer."""
        return self._count(FlowerMessageRow, {"run": run, "answered": False, "expires_at <=": now})

    def flower_reply(self, run: str, message: str) -> FlowerReplyRow | None:
        return self._get(FlowerReplyRow, run, message)

    def flower_replies_of(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerReplyRow]:
        """The replies of a run in order of the message's id, for paging."""
        return self._all(FlowerReplyRow, {"run": run, "message >": after}, limit=limit)

    def flower_replies(self, run: str, messages: Collection[str]) -> dict[str, FlowerReplyRow]:
        """Message -> its reply, of those of these messages that are answered."""
        found = self._all(FlowerReplyRow, {"run": run, "message in": list(messages)})
        return {row.message: row for row in found}


class FlowerWriter(FlowerReader, Writes):
    """Writes. Those of a run are made under its lock: in ``transaction(run)``."""

    def insert_flower_run(self, row: FlowerRunRow) -> None:
        """Conflict when the id is in use, by a run of either kind."""
        self._insert([RunNameRow(run=row.run)])
        self._insert([replace(row, seq=0, link=flower_beginning(row))])

    def change_flower_run(self, row: FlowerRunRow) -> None:
        """Replaces the row of this run, but for the end of its chain. StoreError when there is none; Conflict when it
        has ended and this row has another status."""
        kept = ("run", "seq", "link")
        changes = {name: getattr(row, name) for name in row.__dataclass_fields__ if name not in kept}
        if self._update(FlowerRunRow, {"run": row.run, "status in": ["running", row.status]}, **changes):
            return
        if self.flower_run(row.run) is None:
            raise self._failed(StoreError(f"The store has no Flower run {row.run}."))
        raise self._failed(Conflict(f"Flower run {row.run} has ended; its status is final."))

    def put_flower_node(self, row: FlowerNodeRow) -> None:
        """Inserts or replaces. The device's row is locked until the transaction ends. Conflict when another device has
        the node id."""
        self._put([row])

    def drop_flower_nodes(self, before: float) -> None:
        """Deletes those that were last seen before this time."""
        self._delete(FlowerNodeRow, {"seen_at <": before})

    def drop_flower_node(self, device: str) -> None:
        self._delete(FlowerNodeRow, {"device": device})

    def put_flower_content(self, row: FlowerContentRow) -> None:
        """Inserts; of an existing row the time alone is changed."""
        self._put([row], keep=["bytes"])

    def drop_flower_contents(self, run: str, digests: Iterable[str]) -> None:
        self._delete(FlowerContentRow, {"run": run, "digest in": list(digests)})

    def insert_flower_messages(self, rows: Sequence[FlowerMessageRow]) -> None:
        """Chains and inserts the messages of one run. Conflict when the run has a message of this id, or one in this
        position, already."""
        self._insert_chained(rows)

    def offer_flower_message(self, run: str, message: str, expires_at: float) -> None:
        """Offers an expired message again, as one that was not delivered."""
        self._change_message(run, message, expires_at=expires_at, delivered_at=None)

    def deliver_flower_message(self, run: str, message: str, at: float) -> None:
        """Notes when it was given to its device; an earlier time stays."""
        where = {"run": run, "message": message, "delivered_at": None}
        if not self._update(FlowerMessageRow, where, delivered_at=at):
            self._change_message(run, message)

    def insert_flower_reply(self, row: FlowerReplyRow) -> None:
        """The message is answered from now on. Conflict when it is already; StoreError when there is none."""
        self._change_message(row.run, row.message, answered=True)
        self._insert_chained([row])

    def drop_flower_messages(self, run: str, rounds: Sequence[FlowerRoundRow]) -> None:
        """Deletes the messages, replies and contents of a run, and stores ``rounds`` in their place."""
        for kind in (FlowerReplyRow, FlowerMessageRow, FlowerContentRow):
            self._delete(kind, {"run": run})
        self._insert(rounds)

    def _insert_chained(self, rows: Sequence[FlowerMessageRow | FlowerReplyRow]) -> None:
        """Inserts rows of one run, each chained to the one before."""
        if not rows:
            return
        run = rows[0].run
        chained: list[FlowerMessageRow | FlowerReplyRow] = []
        ends = self._lock(FlowerRunRow, run, "seq link")
        if ends is None:
            raise self._failed(StoreError(f"The store has no Flower run {run}."))
        count, link = ends
        for row in rows:
            numbered = replace(row, seq=count + len(chained) + 1)
            link = flower_link(link, numbered)
            chained.append(replace(numbered, link=link))
        self._insert(chained)
        self._update(FlowerRunRow, {"run": run}, seq=count + len(chained), link=link)

    def _change_message(self, run: str, message: str, **changes: object) -> None:
        """Changes a message; without changes it must be there only. StoreError when there is none."""
        where = {"run": run, "message": message}
        if not (self._update(FlowerMessageRow, where, **changes) if changes else self._count(FlowerMessageRow, where)):
            raise self._failed(StoreError(f"The store has no message {message} of Flower run {run}."))
