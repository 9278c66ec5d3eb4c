"""A node's journal: the answers to messages, and with them the node's Context.state in each run.

::

    <run>.<number>/00000012-<message>.answer     an AnswerFile; the newest one has the node's state
    <run>.<number>/over                          ids of messages whose answer is not kept any more, 32 bytes each
    draft                                        an answer that is being written

An answer is written, made durable and renamed before its reply is sent, and the state changes by the same rename. So a
crash before it leaves the old state, and the message is worked on again; a crash after it leaves the new state and the
reply, whose same bytes are sent. A message that has changed the state never does so again: its answer is sent, or,
where that is not kept any more, an error.

The reply is cut off its file when the coordinator has it. Answers that came too late are kept, the last ``LATE_KEPT``
of a run, because a ServerApp that starts again may push their messages again.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from client_sdk.device.durable_folder import DurableFolder, explained
from client_sdk.device.record import StorageError
from client_sdk.flower.answer_file import AnswerFile, read_answer

LATE_KEPT = 2
RUNS_KEPT = 64
"""Of how many runs the journal is kept, those that were used last: a run whose end this device was not told of."""

_DRAFT = "draft"
_OVER = "over"


@dataclass(frozen=True, slots=True)
class RunKey:
    """A run: a name may be given again, its number is never."""

    run: str
    number: int

    @property
    def folder(self) -> str:
        return f"{self.run}.{self.number}"


@dataclass(slots=True)
class _Kept:
    """What the journal has of one run."""

    folder: Path
    answers: list[AnswerFile] = field(default_factory=list)
    """In the order in which they were made."""
    unsent: set[str] = field(default_factory=set)
    """Messages whose reply is there and was not acknowledged."""
    over: set[str] = field(default_factory=set)
    made: int = 0
    """The number of the newest answer."""


class NodeJournal:
    """The journal in ``folder``, which one process uses at a time. ``durable=False`` leaves out every fsync: for
    simulated nodes. StorageError where the folder cannot be used."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder = folder
        self._durable = durable
        self._runs: dict[RunKey, _Kept] = {}
        with explained(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / _DRAFT).unlink(missing_ok=True)
            found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in found:
                run, _, number = path.name.rpartition(".")
                if path.is_dir() and number.isdigit():
                    self._runs[RunKey(run, int(number))] = _read(path)

    @property
    def draft(self) -> Path:
        """Where the next answer is written, before ``keep``."""
        return self._folder / _DRAFT

    def state(self, key: RunKey) -> AnswerFile | None:
        """The file that has the node's state in this run; None: it has none yet."""
        kept = self._runs.get(key)
        return kept.answers[-1] if kept is not None and kept.answers else None

    def answer(self, key: RunKey, message: str) -> AnswerFile | None:
        """The answer to this message, where its reply is there."""
        kept = self._runs.get(key)
        if kept is None or message not in kept.unsent:
            return None
        return next(answer for answer in kept.answers if answer.header.message == message)

    def is_over(self, key: RunKey, message: str) -> bool:
        """Whether this message has changed the state, and its reply is not here any more."""
        kept = self._runs.get(key)
        if kept is None or message in kept.unsent:
            return False
        return message in kept.over or any(answer.header.message == message for answer in kept.answers)

    def unsent(self) -> list[AnswerFile]:
        """The newest answer of each run, where the coordinator has not acknowledged it."""
        newest = [kept.answers[-1] for kept in self._runs.values() if kept.answers]
        return [answer for answer in newest if self.answer(_key(answer), answer.header.message) is not None]

    def keep(self) -> AnswerFile:
        """Make the answer in ``draft`` durable, and with it the node's new state."""
        with explained(self._folder):
            drafted = read_answer(self.draft)
            key = _key(drafted)
            kept = self._runs.pop(key, None) or _Kept(self._folder / key.folder)
            kept.folder.mkdir(mode=0o700, exist_ok=True)
            name = f"{kept.made + 1:08}-{drafted.header.message}.answer"
            files = DurableFolder(kept.folder, self._durable)
            if self._durable:
                with self.draft.open("r+b") as file:
                    files.sync(file)
            self.draft.replace(kept.folder / name)
            files.sync_folder()
            if not kept.made:
                DurableFolder(self._folder, self._durable).sync_folder()
            answer = AnswerFile(kept.folder / name, drafted.header, drafted.state_at)
            kept.made += 1
            kept.answers.append(answer)
            kept.unsent.add(answer.header.message)
            self._runs[key] = kept
            self._drop_old(kept, files)
        for old in list(self._runs)[:-RUNS_KEPT]:
            self.forget(old)
        return answer

    def acknowledged(self, answer: AnswerFile) -> None:
        """The coordinator has the reply: its bytes are not needed here."""
        kept = self._runs.get(_key(answer))
        if kept is None or answer.header.message not in kept.unsent:
            return
        kept.unsent.discard(answer.header.message)
        if answer.header.reply_bytes:
            with explained(self._folder):
                os.truncate(answer.path, answer.reply_at)

    def forget(self, key: RunKey) -> None:
        """The run is over: delete what the journal has of it."""
        kept = self._runs.pop(key, None)
        if kept is not None:
            shutil.rmtree(kept.folder, ignore_errors=True)

    @property
    def runs(self) -> list[RunKey]:
        """Runs of which the journal has something, the one that was used last at the end."""
        return list(self._runs)

    def _drop_old(self, kept: _Kept, files: DurableFolder) -> None:
        """Delete the answers before the newest one, but for the last that came too late."""
        older = kept.answers[:-1]
        late = [answer for answer in older if answer.header.message in kept.unsent][-LATE_KEPT:]
        dropped = [answer for answer in older if answer not in late]
        ids = [answer.header.message for answer in dropped]
        if ids:
            with (kept.folder / _OVER).open("ab") as file:
                file.write(b"".join(bytes.fromhex(message) for message in ids))
                files.sync(file)
        for answer in dropped:
            answer.path.unlink()
        kept.over.update(ids)
        kept.unsent.difference_update(ids)
        kept.answers = [*late, kept.answers[-1]]


def _key(answer: AnswerFile) -> RunKey:
    return RunKey(answer.header.run, answer.header.number)


def _read(folder: Path) -> _Kept:
    kept = _Kept(folder)
    for path in sorted(folder.glob("*.answer")):
        try:
            answer = read_answer(path)
        except ValueError as error:
            raise StorageError(
                f"{path} cannot be read, so this device does not know its state in the run {folder.name}: {error}. "
                "Move that folder away to begin with an empty Context.state."
            ) from None
        kept.answers.append(answer)
        kept.made = int(path.name.partition("-")[0])
        length = path.stat().st_size
        if length == answer.reply_at + answer.header.reply_bytes and (answer.header.reply_bytes or answer.header.error):
            kept.unsent.add(answer.header.message)
    over = folder / _OVER
    if over.exists():
        ids = over.read_bytes()
        whole = len(ids) // 32 * 32
        if whole < len(ids):  # a crash cut the last id, whose answer is still there
            os.truncate(over, whole)
        kept.over = {ids[start : start + 32].hex() for start in range(0, whole, 32)}
    return kept
