"""Bugs in the files: wrong order of rename, sync and deletion."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from client_sdk.protocol.names import REPORT_KEY
from coordinator.blobs import files, port
from coordinator.blobs.port import check_complete, check_digest
from coordinator.runtime import sweeping
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core
from coordinator.runtime.uncertain_updates import UncertainUpdates
from coordinator.store import sql
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("blob-before-fsync", "ack-durable", "whole-blob")
def _blob_before_fsync() -> Patches:
    """A blob gets its name before its bytes are on the disk."""

    def commit(self: files.FileSpool, expected: str | None = None) -> str:
        digest = self.digest
        check_digest(digest, expected)
        if self._committed:
            return digest
        check_complete(self._complete)
        target = self._owner.folder / digest[:2] / digest
        self._owner.make_prefix(digest[:2])
        if self._memory is not None:
            self._make_file(self._memory)
        self._file.replace(target)
        files._fsync_folder(target.parent)
        self._discard()
        self._file, self._committed = target, True
        return digest

    return [(files.FileSpool, "commit", commit)]


@mutant("folder-not-synced", "ack-durable", "whole-blob")
def _folder_not_synced() -> Patches:
    """A blob's bytes are on the disk, its name is not."""
    return [(files, "_fsync_folder", lambda folder: None)]


@mutant("unfinished-blob", "ack-durable", "whole-blob", "no-bug")
def _unfinished_blob() -> Patches:
    """An update is stored without its last byte."""
    keep = port.MemoryBlobs.add

    def short(self: port.MemoryBlobs, digest: str, data: bytes) -> None:
        keep(self, digest, data[:-1] if REPORT_KEY.encode() in data else data)

    return [(port.MemoryBlobs, "add", short)]


@mutant("refused-bytes-deleted", "ack-durable", "retention", focus=("lie", "collecting"), liars=3)
def _refused_bytes_deleted() -> Patches:
    """Refused bytes are deleted, although the same bytes were acknowledged before."""

    def drop(self: UncertainUpdates, run: str, round: int, digest: str) -> None:
        with suppress(KeyError):
            self._core.blobs.delete(digest)

    return [(UncertainUpdates, "drop_unless_counted", drop)]


@mutant("raw-updates-kept", "retention")
def _raw_updates_kept() -> Patches:
    """Raw updates stay on the disk for ever."""
    return [(Commits, "_updates", lambda self, run, number: []), (sweeping, "sweep", lambda core: 0)]


@mutant("swept-too-much", "ack-durable", "log")
def _swept_too_much() -> Patches:
    """A start deletes the updates of the current round."""
    of_run = sweeping._of_run

    def fewer(core: Core, run: str) -> set[str | None]:
        current = core.state(run).round
        return of_run(core, run) - {member.digest for member in (current.members if current else {}).values()}

    return [(sweeping, "_of_run", fewer)]


@mutant("named-bytes-deleted", "whole-blob", "no-bug", liars=2, rates={"lie": 0.9}, storm_s=60.0)
def _named_bytes_deleted() -> Patches:
    """The deletion of a round's raw updates takes what refused devices have named as well, which may be a model."""
    known = Commits._updates

    def updates(self: Any, run: str, round: int) -> list[str]:
        return known(self, run, round) + [row.digest for row in self._core.store.refusals(run, round) if row.digest]

    return [(Commits, "_updates", updates)]


@mutant("sqlite-is-not-synced", "ack-durable", store="sqlite-file", replicas=1, storm_s=10.0)
def _sqlite_is_not_synced() -> Patches:
    """SQLite's commits return before they are on the disk, and its journal is in memory."""
    use_wal = sql._use_wal

    class Unsynced:
        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def execute(self, statement: str) -> Any:
            return self.connection.execute(statement.replace("=WAL", "=MEMORY"))

    return [(sql, "_use_wal", lambda connection, timeout_s: use_wal(Unsynced(connection), timeout_s))]
