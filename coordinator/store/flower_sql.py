"""``flower.py`` of the SQL store: mixed into its reads and into its transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import CursorResult, Executable

from coordinator.store import flower_statements as sql
from coordinator.store.bodies import from_text, to_text
from coordinator.store.errors import Conflict, StoreError
from coordinator.store.flower_rows import (
    FlowerContentRow,
    FlowerMessageRow,
    FlowerNodeRow,
    FlowerReplyRow,
    FlowerRoundRow,
    FlowerRunRow,
)
from coordinator.store.sqlite_connection import SqliteResult

_AT_ONCE = 500
"""Ids in one statement."""

Row = TypeVar("Row", FlowerContentRow, FlowerMessageRow, FlowerNodeRow, FlowerReplyRow, FlowerRoundRow)


class SqlFlowerReads(ABC):
    """The FlowerReader over ``_read``."""

    @abstractmethod
    def _read(self, statement: Executable, /, **parameters: object) -> Sequence[Sequence[Any]]:
        """All rows of the statement's result."""

    def flower_run(self, run: str) -> FlowerRunRow | None:
        return next((_run(values) for values in self._read(sql.FLOWER_RUN, run=run)), None)

    def flower_runs(self) -> list[FlowerRunRow]:
        return [_run(values) for values in self._read(sql.FLOWER_RUNS)]

    def flower_running(self) -> list[FlowerRunRow]:
        return [_run(values) for values in self._read(sql.FLOWER_RUNNING)]

    def flower_node(self, device: str) -> FlowerNodeRow | None:
        return _first(FlowerNodeRow, self._read(sql.NODE, device=device))

    def flower_nodes(self, since: float) -> list[FlowerNodeRow]:
        return _all(FlowerNodeRow, self._read(sql.NODES, since=since))

    def flower_nodes_among(self, nodes: Collection[int]) -> dict[int, str]:
        return {int(node): str(device) for node, device in self._of_ids(sql.NODES_AMONG, nodes)}

    def flower_content(self, run: str, digest: str) -> FlowerContentRow | None:
        return _first(FlowerContentRow, self._read(sql.CONTENT, run=run, digest=digest))

    def flower_contents(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerContentRow]:
        return _all(FlowerContentRow, self._read(sql.CONTENTS, run=run, after=after, limit=limit))

    def flower_contents_among(self, run: str, digests: Collection[str]) -> dict[str, int]:
        return {str(digest): int(size) for digest, size in self._of_ids(sql.CONTENTS_AMONG, digests, run=run)}

    def flower_digests(self) -> set[str]:
        return {str(row[0]) for row in self._read(sql.DIGESTS)}

    def flower_unneeded(self, run: str, before: float) -> list[str]:
        return [str(row[0]) for row in self._read(sql.UNNEEDED, run=run, before=before)]

    def flower_addressed(self, run: str, device: str, digest: str) -> bool:
        return bool(self._read(sql.ADDRESSED, run=run, device=device, content=digest))

    def flower_message(self, run: str, message: str) -> FlowerMessageRow | None:
        return _first(FlowerMessageRow, self._read(sql.MESSAGE, run=run, message=message))

    def flower_messages(self, run: str, after: int = 0, limit: int = 1000) -> list[FlowerMessageRow]:
        return _all(FlowerMessageRow, self._read(sql.MESSAGES, run=run, after=after, limit=limit))

    def flower_messages_among(self, run: str, messages: Collection[str]) -> list[FlowerMessageRow]:
        found = _all(FlowerMessageRow, self._of_ids(sql.MESSAGES_AMONG, messages, run=run))
        return sorted(found, key=lambda row: row.position)

    def flower_open(self, device: str, now: float) -> list[FlowerMessageRow]:
        return _all(FlowerMessageRow, self._read(sql.OPEN, device=device, now=now))

    def flower_under_way(self, now: float) -> list[FlowerMessageRow]:
        return _all(FlowerMessageRow, self._read(sql.UNDER_WAY, now=now))

    def flower_round_of(self, run: str, group_id: str) -> int | None:
        return next((int(row[0]) for row in self._read(sql.ROUND_OF, run=run, group_id=group_id)), None)

    def flower_rounds(self, run: str, now: float, after: int = 0, limit: int = 1000) -> list[FlowerRoundRow]:
        page: dict[str, object] = {"run": run, "after": after, "limit": limit}
        stored = self._read(sql.STORED_ROUNDS, **page)
        return _all(FlowerRoundRow, stored or self._read(sql.ROUNDS, now=now, **page))

    def flower_expired(self, run: str, now: float) -> int:
        return int(self._read(sql.EXPIRED, run=run, now=now)[0][0])

    def flower_reply(self, run: str, message: str) -> FlowerReplyRow | None:
        return _first(FlowerReplyRow, self._read(sql.REPLY, run=run, message=message))

    def flower_replies_of(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerReplyRow]:
        return _all(FlowerReplyRow, self._read(sql.REPLIES, run=run, after=after, limit=limit))

    def flower_replies(self, run: str, messages: Collection[str]) -> dict[str, FlowerReplyRow]:
        found = _all(FlowerReplyRow, self._of_ids(sql.REPLIES_AMONG, messages, run=run))
        return {row.message: row for row in found}

    def _of_ids(self, statement: Executable, ids: Collection[Any], **more: object) -> list[Sequence[Any]]:
        """The rows of a statement about these ids."""
        named = sorted(set(ids))
        parts = (named[first : first + _AT_ONCE] for first in range(0, len(named), _AT_ONCE))
        return [row for part in parts for row in self._read(statement, among=part, **more)]


class SqlFlowerWrites(SqlFlowerReads):
    """The FlowerWriter over ``_write``."""

    flower_upserts: sql.FlowerUpserts

    @abstractmethod
    def _write(self, statement: Executable, values: Mapping[str, object]) -> CursorResult[Any] | SqliteResult: ...
    @abstractmethod
    def _write_all(self, statement: Executable, rows: Sequence[Mapping[str, object]]) -> None: ...
    @abstractmethod
    def _voiding(self) -> AbstractContextManager[None]: ...

    def insert_flower_run(self, row: FlowerRunRow) -> None:
        with self._voiding():
            self._write(sql.NAME_RUN, {"run": row.run})
            self._write(sql.INSERT_FLOWER_RUN, _run_values(row))

    def change_flower_run(self, row: FlowerRunRow) -> None:
        values = _run_values(row)
        with self._voiding():
            changed = self._write(sql.CHANGE_FLOWER_RUN, values | {"at_run": row.run, "at_status": row.status})
            if changed.rowcount:
                return
            if self.flower_run(row.run) is None:
                raise StoreError(f"The store has no Flower run {row.run}.")
            raise Conflict(f"Flower run {row.run} has ended; its status is final.")

    def put_flower_node(self, row: FlowerNodeRow) -> None:
        with self._voiding():
            self._write(self.flower_upserts.put_node, _values(row))

    def drop_flower_nodes(self, before: float) -> None:
        with self._voiding():
            self._write(sql.DROP_NODES, {"at_seen": before})

    def drop_flower_node(self, device: str) -> None:
        with self._voiding():
            self._write(sql.DROP_NODE, {"at_device": device})

    def put_flower_content(self, row: FlowerContentRow) -> None:
        with self._voiding():
            self._write(self.flower_upserts.put_content, _values(row))

    def drop_flower_contents(self, run: str, digests: Iterable[str]) -> None:
        with self._voiding():
            self._write_all(sql.DROP_CONTENT, [{"at_run": run, "at_digest": digest} for digest in digests])

    def insert_flower_messages(self, rows: Sequence[FlowerMessageRow]) -> None:
        with self._voiding():
            self._write_all(sql.INSERT_MESSAGES, [_values(row) for row in rows])

    def offer_flower_message(self, run: str, message: str, expires_at: float) -> None:
        self._of_message(sql.OFFER_MESSAGE, run, message, expires_at=expires_at)

    def deliver_flower_message(self, run: str, message: str, at: float) -> None:
        self._of_message(sql.DELIVER_MESSAGE, run, message, delivered_at=at)

    def insert_flower_reply(self, row: FlowerReplyRow) -> None:
        with self._voiding():
            self._write(sql.INSERT_REPLY, _values(row))
        self._of_message(sql.ANSWER_MESSAGE, row.run, row.message)

    def drop_flower_messages(self, run: str, rounds: Sequence[FlowerRoundRow]) -> None:
        with self._voiding():
            for statement in sql.DROP_OF_RUN:
                self._write(statement, {"at_run": run})
            self._write_all(sql.INSERT_ROUNDS, [_values(row) for row in rounds])

    def _of_message(self, statement: Executable, run: str, message: str, **values: object) -> None:
        with self._voiding():
            if not self._write(statement, {"at_run": run, "at_message": message, **values}).rowcount:
                raise StoreError(f"The store has no message {message} of Flower run {run}.")


def _run(values: Sequence[Any]) -> FlowerRunRow:
    columns = dict(zip(_names(FlowerRunRow), values, strict=True))
    return FlowerRunRow(**columns | {"config": from_text(columns["config"])})


def _run_values(row: FlowerRunRow) -> dict[str, object]:
    return _values(row) | {"config": to_text(row.config)}


def _all(kind: type[Row], found: Iterable[Sequence[Any]]) -> list[Row]:
    names = tuple(_names(kind))
    return [kind(**dict(zip(names, values, strict=True))) for values in found]


def _first(kind: type[Row], found: Sequence[Sequence[Any]]) -> Row | None:
    return next(iter(_all(kind, found[:1])), None)


def _names(kind: type) -> Iterator[str]:
    return (field.name for field in fields(kind))


def _values(row: Any) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
