"""The part of the Store port that holds Flower runs: who is there, messages, replies, and which contents a run has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from coordinator.store.flower_rows import (
    FlowerContentRow,
    FlowerMessageRow,
    FlowerNodeRow,
    FlowerReplyRow,
    FlowerRoundRow,
    FlowerRunRow,
)


class FlowerReader(Protocol):
    """Reads, usable inside a transaction and outside."""

    def flower_run(self, run: str) -> FlowerRunRow | None: ...
    def flower_runs(self) -> list[FlowerRunRow]:
        """All Flower runs, oldest first."""
        ...

    def flower_running(self) -> list[FlowerRunRow]:
        """Those that have not ended, oldest first."""
        ...

    def flower_node(self, device: str) -> FlowerNodeRow | None: ...
    def flower_nodes(self, since: float) -> list[FlowerNodeRow]:
        """Those that were seen at this time or later, in order of node id."""
        ...

    def flower_nodes_among(self, nodes: Collection[int]) -> dict[int, str]:
        """Node id -> device, of those of these nodes that are known, whenever they were seen."""
        ...

    def flower_content(self, run: str, digest: str) -> FlowerContentRow | None: ...
    def flower_contents(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerContentRow]:
        """The contents of a run in order of digest, for paging."""
        ...

    def flower_contents_among(self, run: str, digests: Collection[str]) -> dict[str, int]:
        """Digest -> bytes, of those of these contents that the run has."""
        ...

    def flower_digests(self) -> set[str]:
        """The digests of all contents of all runs."""
        ...

    def flower_unneeded(self, run: str, before: float) -> list[str]:
        """The contents of a run that were stored before this time, and that nothing needs: no message without
        an answer, no reply, and not the run's state. In order of digest."""
        ...

    def flower_addressed(self, run: str, device: str, digest: str) -> bool:
        """Whether a message of the run to this device, answered or not, has this content."""
        ...

    def flower_message(self, run: str, message: str) -> FlowerMessageRow | None: ...
    def flower_messages(self, run: str, after: int = 0, limit: int = 1000) -> list[FlowerMessageRow]:
        """Messages with ``position > after`` in order, for paging."""
        ...

    def flower_messages_among(self, run: str, messages: Collection[str]) -> list[FlowerMessageRow]:
        """Those of these messages that there are, in order of position."""
        ...

    def flower_open(self, device: str, now: float) -> list[FlowerMessageRow]:
        """The messages to a device that wait for its answer (not answered, not expired, of runs that have not ended):
        those that were delivered first, else in the order in which they were pushed."""
        ...

    def flower_under_way(self, now: float) -> list[FlowerMessageRow]:
        """The messages of all runs that were delivered and wait for their answer, in order of device."""
        ...

    def flower_round_of(self, run: str, group_id: str) -> int | None:
        """The number of this group; None: no message of it was pushed."""
        ...

    def flower_rounds(self, run: str, now: float, after: int = 0, limit: int = 1000) -> list[FlowerRoundRow]:
        """The groups numbered above ``after``, at most ``limit``, in order: counted from their messages, or as they
        were stored when those were dropped. Messages that expire until ``now`` count as expired."""
        ...

    def flower_expired(self, run: str, now: float) -> int:
        """How many messages have expired until then without an answer."""
        ...

    def flower_reply(self, run: str, message: str) -> FlowerReplyRow | None: ...
    def flower_replies_of(self, run: str, after: str = "", limit: int = 1000) -> list[FlowerReplyRow]:
        """The replies of a run in order of the message's id, for paging."""
        ...

    def flower_replies(self, run: str, messages: Collection[str]) -> dict[str, FlowerReplyRow]:
        """Message -> its reply, of those of these messages that are answered."""
        ...


class FlowerWriter(Protocol):
    """Writes. Those of a run are made under its lock: in ``transaction(run)``."""

    def insert_flower_run(self, row: FlowerRunRow) -> None:
        """Conflict when the id is in use, by a run of either kind."""
        ...

    def change_flower_run(self, row: FlowerRunRow) -> None:
        """Replaces the row of this run. StoreError when there is none; Conflict when it has ended and this row has
        another status."""
        ...

    def put_flower_node(self, row: FlowerNodeRow) -> None:
        """Inserts or replaces. The device's row is locked until the transaction ends. Conflict when another device has
        the node id."""
        ...

    def drop_flower_nodes(self, before: float) -> None:
        """Deletes those that were last seen before this time."""
        ...

    def drop_flower_node(self, device: str) -> None: ...
    def put_flower_content(self, row: FlowerContentRow) -> None:
        """Inserts; of an existing row the time alone is changed."""
        ...

    def drop_flower_contents(self, run: str, digests: Iterable[str]) -> None: ...
    def insert_flower_messages(self, rows: Sequence[FlowerMessageRow]) -> None:
        """Conflict when the run has a message of this id, or one in this position, already."""
        ...

    def offer_flower_message(self, run: str, message: str, expires_at: float) -> None:
        """Offers an expired message again, as one that was not delivered."""
        ...

    def deliver_flower_message(self, run: str, message: str, at: float) -> None:
        """Notes when it was given to its device; an earlier time stays."""
        ...

    def insert_flower_reply(self, row: FlowerReplyRow) -> None:
        """The message is answered from now on. Conflict when it is already; StoreError when there is none."""
        ...

    def drop_flower_messages(self, run: str, rounds: Sequence[FlowerRoundRow]) -> None:
        """Deletes the messages, replies and contents of a run, and stores ``rounds`` in their place."""
        ...
