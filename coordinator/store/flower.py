"""The part of the Store port that holds Flower runs: who is there, messages with their replies, and contents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from coordinator.store.chain import flower_beginning, flower_end_link, flower_message_link, flower_reply_link
from coordinator.store.declared import Json
from coordinator.store.flower_rows import FlowerContentRow, FlowerMessageRow, FlowerRound, FlowerRunRow
from coordinator.store.gateway import Conflict, Query, Reads, StoreError, Writes
from coordinator.store.rows import DeviceRow, RunNameRow

# Queries: each in SQL, and in Python over the reader


def _unneeded_sql(sa: Any, t: Any) -> Any:
    contents, messages, runs = t.flower_contents.c, t.flower_messages.c, t.flower_runs.c
    unanswered = (messages.replied_at + 0).is_(None)  # SQLite takes the index of the content then
    of_open_message = sa.exists().where(messages.run == contents.run, messages.content == contents.digest, unanswered)
    of_reply = sa.exists().where(messages.run == contents.run, messages.reply == contents.digest)
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
    needed = {*reader._values(FlowerMessageRow, "content", {"run": run, "replied_at": None})}
    needed |= {*reader._values(FlowerMessageRow, "reply", {"run": run})}
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
            t.flower_messages.c.replied_at.is_(None),
            t.flower_runs.c.status == "running",
        )
    )


def _open(reader: Any, now: float, **where: object) -> list[FlowerMessageRow]:
    """Messages that wait for their answer, of runs that have not ended."""
    wanted = {"replied_at": None, "expires_at >": now, **where}
    return [row for of in reader.flower_running() for row in reader._all(FlowerMessageRow, {"run": of.run, **wanted})]


_OPEN = Query(
    sql=lambda sa, t: (
        _open_sql(sa, t)
        .where(
            t.flower_messages.c.device == sa.bindparam("device"),
            t.flower_messages.c.expires_at + 0 > sa.bindparam("now"),  # SQLite takes the index of the device then
        )
        .order_by(t.flower_messages.c.delivered_at.is_(None), *_place(t.flower_messages.c))
    ),
    python=lambda reader, device, now: sorted(
        _open(reader, now, device=device), key=lambda row: (row.delivered_at is None, *_place(row))
    ),
)
_UNDER_WAY = Query(
    sql=lambda sa, t: (
        _open_sql(sa, t)
        .where(t.flower_messages.c.delivered_at.is_not(None), t.flower_messages.c.expires_at > sa.bindparam("now"))
        .order_by(t.flower_messages.c.device, *_place(t.flower_messages.c))
    ),
    python=lambda reader, now: sorted(
        (row for row in _open(reader, now) if row.delivered_at is not None),
        key=lambda row: (row.device, *_place(row)),
    ),
)


def _rounds_sql(sa: Any, t: Any) -> Any:
    """Columns in the order of ``FlowerRound``."""
    messages, after = t.flower_messages.c, sa.bindparam("after")
    expired = sa.case((messages.replied_at.is_(None) & (messages.expires_at <= sa.bindparam("now")), 1), else_=0)
    return (
        sa.select(
            messages.round,
            sa.func.min(messages.group_id),
            sa.func.min(messages.created_at),
            sa.func.count(),
            sa.func.count(messages.delivered_at),
            sa.func.count(messages.reply),
            sa.func.count(messages.code),
            sa.func.sum(expired),
            sa.cast(sa.func.sum(messages.reply_bytes), sa.BigInteger),
            sa.func.max(messages.replied_at),
        )
        .where(
            messages.run == sa.bindparam("run"),
            messages.round > after,
            messages.round <= after + sa.bindparam("limit"),
        )
        .group_by(messages.round)
        .order_by(messages.round)
    )


def _rounds(reader: Any, run: str, now: float, after: int, limit: int) -> Iterable[tuple[Any, ...]]:
    where = {"run": run, "round >": after, "round <=": after + limit}
    for number, group in groupby(reader._all(FlowerMessageRow, where, "round"), lambda row: row.round):
        rows = list(group)
        yield (
            number,
            min(row.group_id for row in rows),
            min(row.created_at for row in rows),
            len(rows),
            sum(row.delivered_at is not None for row in rows),
            sum(row.reply is not None for row in rows),
            sum(row.code is not None for row in rows),
            sum(not row.answered and row.expires_at <= now for row in rows),
            sum(row.reply_bytes for row in rows),
            max((row.replied_at for row in rows if row.answered), default=None),
        )


_ROUNDS = Query(_rounds_sql, _rounds)


_CHANGING = (
    "status", "reason", "ended_at", "state", "largest", "messages", "rounds", "replies", "errors", "latest_at",
)  # fmt: skip
"""The columns of a run that goes on, beside the end of its chain."""


class FlowerReader(Reads):
    """Reads, usable inside a transaction and outside."""

    def flower_run(self, run: str) -> FlowerRunRow | None:
        return self._get(FlowerRunRow, run)

    def flower_runs(self) -> list[FlowerRunRow]:
        """All Flower runs, oldest first."""
        return self._all(FlowerRunRow, order="created_at run")

    def flower_run_ids(self) -> list[str]:
        """Their ids: also where something else in a run's row cannot be read."""
        return [str(run) for (run,) in self._values(FlowerRunRow, "run", order="created_at run")]

    def flower_running(self) -> list[FlowerRunRow]:
        """Runs that have not ended, oldest first."""
        return self._all(FlowerRunRow, {"status": "running"}, "created_at run")

    def flower_nodes(self, since: float) -> list[DeviceRow]:
        """The devices that polled for messages last, and were seen at this time or later, in order of node id."""
        found = self._all(DeviceRow, {"node >": 0, "last_seen_at >=": since}, "node")
        return [row for row in found if "apps" in row.facts]

    def flower_nodes_after(self, node: int, limit: int) -> list[DeviceRow]:
        """The devices with a node id above this one, whenever they were seen, in its order."""
        return self._all(DeviceRow, {"node >": node}, "node", limit)

    def flower_node_ids(self, most: int) -> list[str] | None:
        """The devices that have a node id, in its order; None: they are more than ``most``."""
        found = self._values(DeviceRow, "device", {"node >": 0}, "node", most + 1)
        return None if len(found) > most else [str(device) for (device,) in found]

    def flower_nodes_among(self, nodes: Collection[int]) -> dict[int, str]:
        """Node id -> device, of those of these nodes that are known, whenever they were seen."""
        return {row[0]: row[1] for row in self._values(DeviceRow, "node device", {"node in": list(nodes)})}

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
        return bool(self._values(FlowerMessageRow, "message", where, "content", 1))

    def flower_message(self, run: str, message: str) -> FlowerMessageRow | None:
        return self._get(FlowerMessageRow, run, message)

    def flower_messages(self, run: str, after: int = 0, limit: int = 1000) -> list[FlowerMessageRow]:
        """Messages with ``position > after`` in order, for paging."""
        return self._all(FlowerMessageRow, {"run": run, "position >": after}, "position", limit)

    def flower_messages_among(self, run: str, messages: Collection[str]) -> list[FlowerMessageRow]:
        """The messages among these that there are, in order of position."""
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

    def flower_rounds(self, run: str, now: float, after: int = 0, limit: int = 1000) -> list[FlowerRound]:
        """The groups numbered above ``after``, at most ``limit``, in order. Messages that expire until ``now`` count as
        expired."""
        return [FlowerRound(*row) for row in self._ask(_ROUNDS, run=run, now=now, after=after, limit=limit)]

    def flower_expired(self, run: str, now: float) -> int:
        """How many messages have expired until then without an answer."""
        return self._count(FlowerMessageRow, {"run": run, "replied_at": None, "expires_at <=": now})


class FlowerWriter(FlowerReader, Writes):
    """Writes. Those of a run are made under its lock: in ``transaction(run)``."""

    def insert_flower_run(self, row: FlowerRunRow) -> None:
        """Conflict when the id is in use, by a run of either kind."""
        self._insert([RunNameRow(run=row.run)])
        self._insert([replace(row, seq=0, link=flower_beginning(row))])

    def change_flower_run(self, row: FlowerRunRow) -> None:
        """Changes the row of this run, which goes on, to this one, but for what identifies the run. Where it ends with
        it, its end is chained. StoreError when there is none; Conflict when it has ended."""
        changes = {name: getattr(row, name) for name in _CHANGING}
        seq, link = self._chain(row.run)
        if row.over:
            where = {"run": row.run, "replied_at": None}
            unanswered = self._values(FlowerMessageRow, "message expires_at delivered_at", where, "position")
            seq, link = seq + 1, flower_end_link(link, seq + 1, row, unanswered)
        if not self._update(FlowerRunRow, {"run": row.run, "status": "running"}, **changes, seq=seq, link=link):
            raise self._failed(Conflict(f"Flower run {row.run} has ended; its status is final."))

    def put_flower_node(self, device: str, node: int, facts: Json, at: float) -> bool:
        """Notes that a device has polled, and what it said of itself. Its row is locked until the transaction ends.
        False: there is no such device, or it has left. Conflict when another device has the node id."""
        found = self._lock(DeviceRow, device, "left_at")
        if found is None or found[0] is not None:
            return False
        self._update(DeviceRow, {"device": device}, node=node, facts=facts, last_seen_at=at)
        return True

    def drop_flower_nodes(self, before: float) -> None:
        """Forgets the node ids of devices that were last seen before this time."""
        self._update(DeviceRow, {"node >": 0, "last_seen_at <": before}, node=None)

    def put_flower_content(self, row: FlowerContentRow) -> None:
        """Inserts; of an existing row the time alone is changed."""
        self._put([row], keep=["bytes"])

    def drop_flower_contents(self, run: str, digests: Iterable[str]) -> None:
        self._delete(FlowerContentRow, {"run": run, "digest in": list(digests)})

    def drop_all_flower_contents(self, run: str, at: float) -> None:
        """Deletes the contents of a run that has ended, whose row says so from now on."""
        self._delete(FlowerContentRow, {"run": run})
        self._update(FlowerRunRow, {"run": run}, dropped_at=at)

    def insert_flower_messages(self, rows: Sequence[FlowerMessageRow]) -> None:
        """Chains and inserts the messages of one run. Conflict when the run has a message of this id, or one in this
        position, already."""
        if not rows:
            return
        chained, run = [], rows[0].run
        count, link = self._chain(run)
        for seq, row in enumerate(rows, count + 1):
            link = flower_message_link(link, seq, row)
            chained.append(replace(row, seq=seq, link=link))
        self._insert(chained)
        self._update(FlowerRunRow, {"run": run}, seq=count + len(rows), link=link)

    def offer_flower_message(self, run: str, message: str, expires_at: float) -> None:
        """Offers an expired message again, as one that was not delivered."""
        self._change_message(run, message, expires_at=expires_at, delivered_at=None)

    def deliver_flower_message(self, run: str, message: str, at: float) -> None:
        """Notes when it was given to its device; an earlier time stays."""
        where = {"run": run, "message": message, "delivered_at": None}
        if not self._update(FlowerMessageRow, where, delivered_at=at):
            self._change_message(run, message)

    def answer_flower_message(self, row: FlowerMessageRow) -> None:
        """Chains and stores the reply that this message has now; nothing else of it. Conflict when it has one already;
        StoreError when there is none."""
        seq, link = self._chain(row.run)
        seq, link = seq + 1, flower_reply_link(link, seq + 1, row)
        names = ("replied_at", "reply", "reply_bytes", "code", "reason")
        changes = {name: getattr(row, name) for name in names} | {"reply_seq": seq, "reply_link": link}
        where = {"run": row.run, "message": row.message}
        if not self._update(FlowerMessageRow, {**where, "replied_at": None}, **changes):
            self._change_message(row.run, row.message)
            raise self._failed(Conflict(f"Message {row.message} of Flower run {row.run} has a reply already."))
        self._update(FlowerRunRow, {"run": row.run}, seq=seq, link=link)

    def _chain(self, run: str) -> Sequence[Any]:
        """The number and the link at which the chain of the run ends, which is locked until the transaction ends.
        StoreError when there is no such run."""
        found = self._lock(FlowerRunRow, run, "seq link")
        if found is None:
            raise self._failed(StoreError(f"The store has no Flower run {run}."))
        return found

    def _change_message(self, run: str, message: str, **changes: object) -> None:
        """Changes a message; without changes it must be there only. StoreError when there is none."""
        where = {"run": run, "message": message}
        if not (self._update(FlowerMessageRow, where, **changes) if changes else self._count(FlowerMessageRow, where)):
            raise self._failed(StoreError(f"The store has no message {message} of Flower run {run}."))
