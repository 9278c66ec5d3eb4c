"""The storage of a device's record: a folder that survives crashes, or memory for simulations.

The folder of ``FileStorage``, readable by its owner only::

    lock                      held by the one process that uses the folder
    record.json               Record; replaced as a whole: temporary file, fsync, rename, fsync of the folder
    ledger.json               what its data has told (``data_ledger``), where no file is named for that
    answers.json              how many answers that ledger had when this device last debited one
    secure.bin                its memory of secure rounds; replaced as a whole, under a lock, after which the older
                              file is overwritten with zeros
    revocations.bin           the authority's newest revocation list that was seen
    update-<digest>.bin       the update that awaits its receipt; written before the record that names it, overwritten
                              with zeros and deleted after a record that does not
    history.jsonl             one line for each round joined, appended before the record drops the round
    checkpoints/              the last checkpoints received; may be deleted at any time
    states/                   what it keeps for strategies (``client_sdk.device.states``)
    flower/                   of a device that serves Flower runs: its journal (``client_sdk.flower.journal``)

What overwriting does not reach, see below: encrypt the disk to be sure. Never restore ``secure.bin`` from
a backup: it records which survivor lists this device has signed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Self

from pydantic import ValidationError

from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.errors import BadCredential
from client_sdk.device.checkpoint_cache import CheckpointCache, FileCheckpoints, MemoryCheckpoints
from client_sdk.device.data_ledger import DataLedger, Debit, Declined, LedgerFile
from client_sdk.device.durable_folder import DurableFolder, explained
from client_sdk.device.record import RECORD_FORMAT, Joined, Record, StorageError
from client_sdk.device.states import MemoryStates, StateFolder, States
from client_sdk.protocol.devices import PrivacyBounds
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.memory import Memory

# ------------------------------------------------------------ storage


class MemoryStorage:
    """Storage for simulations and tests: survives a crashed session, not the process."""

    def __init__(self) -> None:
        self._checkpoints = MemoryCheckpoints()
        self._record: Record | None = None
        self._updates: dict[str, bytes] = {}
        self._history: list[Joined] = []
        self._secure = Memory()
        self.ledger = DataLedger()
        self._keeping = Lock()
        self._revocations: RevocationList | None = None
        self._states = MemoryStates()

    @property
    def checkpoints(self) -> CheckpointCache:
        return self._checkpoints

    @property
    def states(self) -> States:
        return self._states

    def load(self) -> Record | None:
        return self._record

    def save(self, record: Record, update: bytes | None = None, joined: Joined | None = None) -> None:
        wanted = record.update_digest
        remaining = {wanted: update} if wanted and update is not None else self._updates
        self._updates = {digest: body for digest, body in remaining.items() if digest == wanted}
        if joined is not None and not (self._history and self._history[-1].same_round(joined)):
            self._history.append(joined)
        self._record = record

    def load_secure(self) -> Memory:
        return self._secure

    def keep(self, change: Callable[[Memory], Memory]) -> Memory:
        with self._keeping:
            self._secure = change(self._secure)
            return self._secure

    def spend(self, debit: Debit, bounds: PrivacyBounds, *, ahead: bool = False) -> Declined | None:
        with self._keeping:
            declined = self.ledger.declines(debit, bounds)
            if declined is None and not ahead:
                self.ledger = self.ledger.debited(debit)
            return declined

    def load_revocations(self) -> RevocationList | None:
        return self._revocations

    def save_revocations(self, revocations: RevocationList) -> None:
        self._revocations = revocations

    def forget(self) -> None:
        self.keep(lambda newest: newest.marks)
        self._updates = {}
        self._states.forget()
        self._checkpoints = MemoryCheckpoints()
        self._record = None

    def update(self, digest: str) -> BinaryIO:
        if digest not in self._updates:
            raise StorageError(f"The update {digest[:12]} is not in this storage.")
        return io.BytesIO(self._updates[digest])

    def history(self) -> list[Joined]:
        return list(self._history)


class FileStorage:
    """Storage of a device or a worker in a folder, made with mode 0700 where it is missing; ``~`` is the user's home.

    ``durable=False`` leaves out every fsync: for simulated fleets, whose devices need not survive a power cut.
    ``ledger``: the file in which all folders with the same data count together (``LedgerFile``), and ``data`` what that
    is called for people; None: this one counts for itself. StorageError: the folder is in use by another process, or
    cannot be written.
    """

    def __init__(self, folder: Path | str, *, durable: bool = True, ledger: Path | None = None, data: str = "") -> None:
        try:
            self.folder = Path(folder).expanduser()
        except RuntimeError:
            raise StorageError(f"{folder} cannot be found: this system does not say which folder is home.") from None
        self._files = DurableFolder(self.folder, durable)
        with explained(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.folder)
            for leftover in self.folder.glob("*.tmp"):
                self._files.erase(leftover)
        self._checkpoints: CheckpointCache = FileCheckpoints(self.folder / "checkpoints")
        self._states = StateFolder(DurableFolder(self.folder / "states", durable))
        self._secure_path = self.folder / "secure.bin"
        self._answers_path = self.folder / "answers.json"
        self._ledger = LedgerFile(ledger or self.folder / "ledger.json", durable, data)
        self._keeping = Lock()
        """Excludes other threads from the memory of secure rounds, as the folder's lock does other processes."""

    @property
    def checkpoints(self) -> CheckpointCache:
        return self._checkpoints

    @property
    def states(self) -> States:
        return self._states

    def load(self) -> Record | None:
        record = read_record(self.folder)
        if record is not None and record.update_digest is not None and not self._whole(record.update_digest):
            record = record.model_copy(update={"update_digest": None})
        return record

    def save(self, record: Record, update: bytes | None = None, joined: Joined | None = None) -> None:
        with explained(self.folder):
            if record.update_digest is not None and update is not None:
                self._files.replace(self._update_path(record.update_digest), update)
            if joined is not None:
                self._append(joined)
            self._files.replace(self.folder / "record.json", record.model_dump_json().encode())
            for old in self.folder.glob("update-*.bin"):
                if record.update_digest is None or old != self._update_path(record.update_digest):
                    self._files.erase(old)

    def load_secure(self) -> Memory:
        of_data = self._ledger.read().sums
        with explained(self.folder):
            if not self._secure_path.exists():
                return Memory(of_data=of_data)
            stored = self._secure_path.read_bytes()
        try:
            return replace(Memory.parse(stored), of_data=of_data)
        except SecaggError as error:
            raise StorageError(
                f"{self._secure_path} cannot be read, so this device cannot know what it signed in secure rounds: "
                f"{error}. Enrol it anew in another folder."
            ) from error

    def keep(self, change: Callable[[Memory], Memory]) -> Memory:
        with self._keeping:
            newest = self.load_secure()
            changed = change(newest)
            if changed is not newest:
                if (entered := changed.answered_since(newest)) is not None:
                    self._ledger.change(lambda ledger: ledger.summed(entered.at))
                with explained(self.folder):
                    self._files.replace_erasing(self._secure_path, changed.encoded)
            return changed

    def spend(self, debit: Debit, bounds: PrivacyBounds, *, ahead: bool = False) -> Declined | None:
        declined: list[Declined | None] = []

        def debited(newest: DataLedger) -> DataLedger:
            self._require_not_set_back(newest)
            declined.append(newest.declines(debit, bounds))
            return newest if ahead or declined[0] is not None else newest.debited(debit)

        answers = self._ledger.change(debited).answers
        if answers > self._answers().get(self._ledger.path.name, 0):
            known = {**self._answers(), self._ledger.path.name: answers}
            with explained(self.folder):
                self._files.replace(self._answers_path, json.dumps(known).encode())
        return declined[0]

    def load_revocations(self) -> RevocationList | None:
        path = self.folder / "revocations.bin"
        with explained(self.folder):
            content = path.read_bytes() if path.exists() else None
        try:
            return RevocationList.parse(content) if content is not None else None
        except BadCredential as error:
            raise StorageError(
                f"{path} cannot be read, so this device cannot know which revocation list it has seen: {error} "
                "Fetch the authority's list again: move this file away."
            ) from error

    def save_revocations(self, revocations: RevocationList) -> None:
        with explained(self.folder):
            self._files.replace(self.folder / "revocations.bin", revocations.encoded)

    def forget(self) -> None:
        with explained(self.folder):
            self.keep(lambda newest: newest.marks if newest.live else newest)
            for update in self.folder.glob("update-*.bin"):
                self._files.erase(update)
            self._states.forget()
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
            shutil.rmtree(self.folder / "flower", ignore_errors=True)
            record = self.folder / "record.json"
            if record.exists():
                self._files.erase(record)
            self._files.sync_folder()

    def update(self, digest: str) -> BinaryIO:
        with explained(self.folder):
            return self._update_path(digest).open("rb")

    def history(self) -> list[Joined]:
        return read_history(self.folder)

    def close(self) -> None:
        """Let another process use the folder."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> dict[str, int]:
        """Of each ledger that this device has debited: how many answers it had."""
        with explained(self.folder):
            text = self._answers_path.read_bytes() if self._answers_path.exists() else b"{}"
        try:
            return {str(name): int(answers) for name, answers in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError):
            raise StorageError(f"{self._answers_path} cannot be read, so {_UNKNOWN}") from None

    def _require_not_set_back(self, ledger: DataLedger) -> None:
        if ledger.answers < (known := self._answers().get(self._ledger.path.name, 0)):
            raise StorageError(
                f"{self._ledger.path} has {ledger.answers} answers, and had {known} before: it was set back or "
                f"removed, so {_UNKNOWN}"
            )

    def _update_path(self, digest: str) -> Path:
        return self.folder / f"update-{digest}.bin"

    def _whole(self, digest: str) -> bool:
        path = self._update_path(digest)
        if not path.exists():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest

    def _append(self, joined: Joined) -> None:
        path = self.folder / "history.jsonl"
        path.touch(0o600)
        with path.open("r+b") as file:
            whole, last = _last_whole_line(file)
            if last is not None and last.same_round(joined):
                return
            file.truncate(whole)
            file.seek(whole)
            file.write(joined.model_dump_json().encode() + b"\n")
            self._files.sync(file)
        self._files.sync_folder()


_UNKNOWN = (
    "this device cannot know what its data has lost in rounds with noise. Bring it back, or enrol the device anew in "
    "another folder."
)


def read_record(folder: Path | str) -> Record | None:
    """The record of the device of ``folder``, also while a device uses it; None where there is none."""
    path = Path(folder) / "record.json"
    with explained(Path(folder)):
        if not path.exists():
            return None
        text = path.read_bytes()
    try:
        written = json.loads(text).get("format", 0)
        if written > RECORD_FORMAT:
            raise StorageError(f"{path} was written by a newer quorate (format {written}); upgrade this device.")
        return Record.model_validate_json(text)
    except (ValidationError, ValueError, AttributeError, TypeError) as error:
        raise StorageError(f"{path} cannot be read ({type(error).__name__}); move it away to enrol anew.") from error


def read_history(folder: Path | str) -> list[Joined]:
    """The rounds joined by the device of ``folder``, oldest first; also while a device uses it. A torn last line is
    left out."""
    path = Path(folder) / "history.jsonl"
    with explained(Path(folder)):
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [Joined.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise StorageError(f"{path} cannot be read: a line of it is not a round joined.") from error


TAIL_BYTES = 65_536
"""How far from the file's end the last line is searched: more than the length of any line."""


def _last_whole_line(file: BinaryIO) -> tuple[int, Joined | None]:
    """Where the whole lines end (bytes), and the last of them."""
    end = file.seek(0, io.SEEK_END)
    start = max(0, end - TAIL_BYTES)
    file.seek(start)
    tail = file.read()
    newline = tail.rfind(b"\n")
    if newline < 0:
        return start, None
    line = tail[:newline].rsplit(b"\n", 1)[-1]
    try:
        return start + newline + 1, Joined.model_validate_json(line)
    except ValidationError:
        return start + newline + 1, None


def _lock(folder: Path) -> int:
    """An open descriptor that holds the folder's lock until it is closed, also by the end of the process."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        by = f" (process {holder})" if holder.isdigit() else ""
        raise StorageError(
            f"The folder {folder} is in use by another device or worker{by}; stop that one or give this one a folder "
            "of its own."
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
