"""``flower.py`` of the memory store: mixed into its reads and into its transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from heapq import nsmallest

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
from coordinator.store.memory_tables import ALL, Tables
from coordinator.store.rows import AuditRow


class MemoryFlowerReads:
    """The FlowerReader over ``tables``. ``guard`` excludes commits during a read."""

    _t: Tables
    _guard: AbstractContextManager[bool]

    def flower_run(self, run: str) -> FlowerRunRow | None:
        with self._guard:
            found = self._t.flower_runs.get(ALL, run)
        return None if found is None else _whole(found)

    def flower_runs(self) -> list[FlowerRunRow]:
        with self._guard:
            rows = self._t.flower_runs.rows(ALL).values()
        return sorted((_whole(found) for found in rows), key=lambda row: (row.created_at, row.run))

    def flower_running(self) -> list[FlowerRunRow]:
        return [row for row in self.flower_runs() if row.status == "running"]

    def flower_node(self, device: str) -> FlowerNodeRow | None:
        with self._guard:
            return self._t.flower_nodes.get(ALL, device)

    def flower_nodes(self, since: float) -> list[FlowerNodeRow]:
        with self._guard:
            rows = self._t.flower_nodes.rows(ALL).values()
        return sorted((row for row in rows if row.seen_at >= since), key=lambda row: row.node)

    def flower_nodes_among(self, nodes: Collection[int]) -> dict[int, str]:
        with self._guard:
            found = {node: self._t.flower_device_of.get(ALL, node) for node in nodes}
        return {node: device for node, device in found.items() if device is not None}

    def flower_content(self, run: str, digest: str) -> FlowerContentRow | None:
        with self._guard:
            return self._t.flower_contents.get(run, digest)

    def flower_contents(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerContentRow]:
        with self._guard:
            rows = self._t.flower_contents.rows(run)
        return [rows[digest] for digest in nsmallest(limit, (digest for digest in rows if digest > after))]

    def flower_contents_among(self, run: str, digests: Collection[str]) -> dict[str, int]:
        with self._guard:
            found = {digest: self._t.flower_contents.get(run, digest) for digest in digests}
        return {digest: row.bytes for digest, row in found.items() if row is not None}

    def flower_digests(self) -> set[str]:
        with self._guard:
            groups = self._t.flower_contents.groups()
            return {digest for run in groups for digest in self._t.flower_contents.rows(run)}

    def flower_unneeded(self, run: str, before: float) -> list[str]:
        with self._guard:
            contents, messages = self._t.flower_contents.rows(run), self._t.flower_messages.rows(run).values()
            needed = {row.content for row in messages if not row.answered}
            needed |= {row.content or "" for row in self._t.flower_replies.rows(run).values()}
            found = self._t.flower_runs.get(ALL, run)
        needed.add((found[0].state or "") if found is not None else "")
        old = {digest for digest, row in contents.items() if row.stored_at < before}
        return sorted(old - needed)

    def flower_addressed(self, run: str, device: str, digest: str) -> bool:
        with self._guard:
            rows = self._t.flower_messages.rows(run).values()
        return any(row.device == device and row.content == digest for row in rows)

    def flower_message(self, run: str, message: str) -> FlowerMessageRow | None:
        with self._guard:
            return self._t.flower_messages.get(run, message)

    def flower_messages(self, run: str, after: int = 0, limit: int = 1000) -> list[FlowerMessageRow]:
        with self._guard:
            rows = self._t.flower_messages.rows(run).values()
        return nsmallest(limit, (row for row in rows if row.position > after), key=lambda row: row.position)

    def flower_messages_among(self, run: str, messages: Collection[str]) -> list[FlowerMessageRow]:
        with self._guard:
            found = [self._t.flower_messages.get(run, message) for message in set(messages)]
        return sorted((row for row in found if row is not None), key=lambda row: row.position)

    def flower_open(self, device: str, now: float) -> list[FlowerMessageRow]:
        with self._guard:
            found = [self._t.flower_messages.get(*key) for key in self._t.flower_open.rows(device)]
            rows = [row for row in found if row is not None and row.open_at(now)]
            rows = [row for row in rows if self._flower_run(row.run).status == "running"]
        return sorted(rows, key=lambda row: (row.delivered_at is None, row.created_at, row.run, row.position))

    def flower_under_way(self, now: float) -> list[FlowerMessageRow]:
        with self._guard:
            rows = [row for device in sorted(self._t.flower_open.groups()) for row in self.flower_open(device, now)]
        return [row for row in rows if row.delivered_at is not None]

    def flower_round_of(self, run: str, group_id: str) -> int | None:
        with self._guard:
            return self._t.flower_groups.get(run, group_id)

    def flower_rounds(self, run: str, now: float, after: int = 0, limit: int = 1000) -> list[FlowerRoundRow]:
        with self._guard:
            stored = self._t.flower_rounds.rows(run)
            if stored:
                return [stored[number] for number in nsmallest(limit, (one for one in stored if one > after))]
            numbers = sorted(self._t.flower_groups.rows(run).values())
            wanted = [number for number in numbers if after < number <= after + limit]
            return [self._round(run, number, now) for number in wanted]

    def flower_expired(self, run: str, now: float) -> int:
        with self._guard:
            rows = self._t.flower_messages.rows(run).values()
        return sum(not row.answered and row.expires_at <= now for row in rows)

    def flower_reply(self, run: str, message: str) -> FlowerReplyRow | None:
        with self._guard:
            return self._t.flower_replies.get(run, message)

    def flower_replies_of(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerReplyRow]:
        with self._guard:
            rows = self._t.flower_replies.rows(run)
        return [rows[message] for message in nsmallest(limit, (message for message in rows if message > after))]

    def flower_replies(self, run: str, messages: Collection[str]) -> dict[str, FlowerReplyRow]:
        with self._guard:
            found = {message: self._t.flower_replies.get(run, message) for message in messages}
        return {message: row for message, row in found.items() if row is not None}

    def _flower_run(self, run: str) -> FlowerRunRow:
        found = self._t.flower_runs.get(ALL, run)
        if found is None:
            raise StoreError(f"The store has no Flower run {run}.")
        return found[0]

    def _round(self, run: str, number: int, now: float) -> FlowerRoundRow:
        found = [self._t.flower_messages.get(run, message) for message in self._t.flower_of_round.rows((run, number))]
        rows = [row for row in found if row is not None]
        replies = list(self.flower_replies(run, [row.message for row in rows]).values())
        return FlowerRoundRow(
            run=run,
            round=number,
            group_id=rows[0].group_id,
            opened_at=min(row.created_at for row in rows),
            messages=len(rows),
            delivered=sum(row.delivered_at is not None for row in rows),
            replies=sum(row.content is not None for row in replies),
            errors=sum(row.content is None for row in replies),
            expired=sum(not row.answered and row.expires_at <= now for row in rows),
            bytes_in=sum(row.bytes for row in replies),
            last_at=max((row.at for row in replies), default=None),
        )


class MemoryFlowerWrites(MemoryFlowerReads, ABC):
    """The FlowerWriter over ``tables``."""

    @abstractmethod
    def _failed(self, error: StoreError) -> StoreError:
        """The error, with which the transaction is void."""

    def insert_flower_run(self, row: FlowerRunRow) -> None:
        self._name_run(row.run)
        self._t.flower_runs.put(ALL, row.run, (replace(row, config={}), self._config(row)))

    def change_flower_run(self, row: FlowerRunRow) -> None:
        before = self._existing_run(row.run)
        if before.over and before.status != row.status:
            raise self._failed(Conflict(f"Flower run {row.run} has ended; its status is final."))
        self._t.flower_runs.put(ALL, row.run, (replace(row, config={}), self._config(row)))

    def put_flower_node(self, row: FlowerNodeRow) -> None:
        if self._t.devices.get(ALL, row.device) is None:
            raise self._failed(StoreError(f"The store has no device {row.device}."))
        if self._t.flower_device_of.get(ALL, row.node) not in (None, row.device):
            raise self._failed(Conflict(f"Another device has the node id {row.node}."))
        self._t.flower_nodes.put(ALL, row.device, row)
        self._t.flower_device_of.put(ALL, row.node, row.device)

    def drop_flower_nodes(self, before: float) -> None:
        for device, row in self._t.flower_nodes.rows(ALL).items():
            if row.seen_at < before:
                self.drop_flower_node(device)

    def drop_flower_node(self, device: str) -> None:
        row = self._t.flower_nodes.get(ALL, device)
        if row is not None:
            self._t.flower_nodes.drop(ALL, device)
            self._t.flower_device_of.drop(ALL, row.node)

    def put_flower_content(self, row: FlowerContentRow) -> None:
        self._existing_run(row.run)
        before = self._t.flower_contents.get(row.run, row.digest)
        kept = row if before is None else replace(before, stored_at=row.stored_at)
        self._t.flower_contents.put(row.run, row.digest, kept)

    def drop_flower_contents(self, run: str, digests: Iterable[str]) -> None:
        for digest in digests:
            self._t.flower_contents.drop(run, digest)

    def insert_flower_messages(self, rows: Sequence[FlowerMessageRow]) -> None:
        for row in rows:
            self._existing_run(row.run)
            taken = self._t.flower_messages.get(row.run, row.message) or self._t.flower_place.get(row.run, row.position)
            if taken is not None:
                raise self._failed(Conflict(f"Flower run {row.run} has message {row.message} already."))
            self._t.flower_messages.put(row.run, row.message, row)
            self._t.flower_place.put(row.run, row.position, row.message)
            self._t.flower_of_round.put((row.run, row.round), row.message, True)
            self._t.flower_groups.put(row.run, row.group_id, row.round)
            if not row.answered:
                self._t.flower_open.put(row.device, (row.run, row.message), True)

    def offer_flower_message(self, run: str, message: str, expires_at: float) -> None:
        row = self._message(run, message)
        self._t.flower_messages.put(run, message, replace(row, expires_at=expires_at, delivered_at=None))

    def deliver_flower_message(self, run: str, message: str, at: float) -> None:
        row = self._message(run, message)
        if row.delivered_at is None:
            self._t.flower_messages.put(run, message, replace(row, delivered_at=at))

    def insert_flower_reply(self, row: FlowerReplyRow) -> None:
        message = self._message(row.run, row.message)
        if self._t.flower_replies.get(row.run, row.message) is not None:
            raise self._failed(Conflict(f"Message {row.message} of Flower run {row.run} is answered already."))
        self._t.flower_replies.put(row.run, row.message, row)
        self._t.flower_messages.put(row.run, row.message, replace(message, answered=True))
        self._t.flower_open.drop(message.device, (row.run, row.message))

    def drop_flower_messages(self, run: str, rounds: Sequence[FlowerRoundRow]) -> None:
        for message, row in self._t.flower_messages.rows(run).items():
            self._t.flower_messages.drop(run, message)
            self._t.flower_place.drop(run, row.position)
            self._t.flower_of_round.drop((run, row.round), message)
            self._t.flower_groups.drop(run, row.group_id)
            self._t.flower_open.drop(row.device, (run, message))
        for message in self._t.flower_replies.rows(run):
            self._t.flower_replies.drop(run, message)
        for digest in self._t.flower_contents.rows(run):
            self._t.flower_contents.drop(run, digest)
        for counted in rounds:
            self._t.flower_rounds.put(run, counted.round, counted)

    def _name_run(self, run: str) -> None:
        """Reserves the name for a run of either kind."""
        if self._t.run_names.get(ALL, run):
            raise self._failed(Conflict(f"Run {run} exists already."))
        self._t.run_names.put(ALL, run, True)

    def _require_names(self, rows: Iterable[AuditRow]) -> list[AuditRow]:
        """The rows as a list. StoreError where there is no run of this name, of either kind."""
        found = list(rows)
        for row in found:
            if row.run is not None and not self._t.run_names.get(ALL, row.run):
                raise self._failed(StoreError(f"The store has no run {row.run}."))
        return found

    def _config(self, row: FlowerRunRow) -> str:
        try:
            return to_text(row.config)
        except StoreError as error:
            raise self._failed(error) from None

    def _existing_run(self, run: str) -> FlowerRunRow:
        try:
            return self._flower_run(run)
        except StoreError as error:
            raise self._failed(error) from None

    def _message(self, run: str, message: str) -> FlowerMessageRow:
        row = self._t.flower_messages.get(run, message)
        if row is None:
            raise self._failed(StoreError(f"The store has no message {message} of Flower run {run}."))
        return row


def _whole(found: tuple[FlowerRunRow, str]) -> FlowerRunRow:
    return replace(found[0], config=from_text(found[1]))
