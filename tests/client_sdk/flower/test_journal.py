"""A message changes a node's state once, whatever is killed when; and the journal does not grow with its messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_sdk.device.record import StorageError
from client_sdk.device.storage import FileStorage
from client_sdk.flower.answer_file import AnswerHeader, write_answer
from client_sdk.flower.journal import LATE_KEPT, RUNS_KEPT, NodeJournal, RunKey
from tests.client_sdk.flower.messages import named

RUN = RunKey("r", 5)


def keep(
    journal: NodeJournal, number: int, state: bytes = b"state", reply: bytes = b"reply", run: RunKey = RUN
) -> None:
    """Answer message ``number``."""
    header = AnswerHeader(
        run=run.run,
        number=run.number,
        message=named(number),
        state_bytes=len(state),
        reply=named(0),
        reply_bytes=len(reply),
    )
    with journal.draft.open("wb") as file:
        write_answer(file, header, [state], [reply])
    journal.keep()


def state(journal: NodeJournal, run: RunKey = RUN) -> bytes | None:
    found = journal.state(run)
    return found.path.read_bytes()[found.state_at : found.reply_at] if found is not None else None


def reply(journal: NodeJournal, number: int) -> bytes | None:
    found = journal.answer(RUN, named(number))
    if found is None:
        return None
    with found.open_reply() as file:
        assert file.seek(0, os.SEEK_END) == found.header.reply_bytes
        file.seek(0)
        return file.read()


def test_an_answer_is_there_again_after_a_crash_with_the_state_that_belongs_to_it(tmp_path: Path) -> None:
    keep(NodeJournal(tmp_path), 1, b"one", b"first")
    again = NodeJournal(tmp_path)
    assert (state(again), reply(again, 1)) == (b"one", b"first")
    assert [answer.header.message for answer in again.unsent()] == [named(1)]


def test_a_crash_before_the_rename_leaves_the_old_state_and_no_draft(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    keep(journal, 1, b"one")
    journal.draft.write_bytes(b"half an answ")
    again = NodeJournal(tmp_path)
    assert state(again) == b"one"
    assert not again.draft.exists()


def test_an_acknowledged_reply_is_cut_off_and_its_state_stays(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    keep(journal, 1, b"one", b"r" * 1_000_000)
    answer = journal.answer(RUN, named(1))
    assert answer is not None
    journal.acknowledged(answer)
    for found in (journal, NodeJournal(tmp_path)):
        assert state(found) == b"one"
        assert (reply(found, 1), found.unsent(), found.is_over(RUN, named(1))) == (None, [], True)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.answer")) < 1000


def test_a_message_that_was_answered_long_ago_is_known(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    for number in range(10):
        keep(journal, number, f"{number}".encode())
        answer = journal.answer(RUN, named(number))
        assert answer is not None
        journal.acknowledged(answer)
    for found in (journal, NodeJournal(tmp_path)):
        assert all(found.is_over(RUN, named(number)) for number in range(10))
        assert not found.is_over(RUN, named(10))
        assert state(found) == b"9"
    assert len(list(tmp_path.rglob("*.answer"))) == 1


def test_late_answers_are_kept_for_a_server_that_starts_again_the_last_ones(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    for number in range(6):
        keep(journal, number, reply=f"reply {number}".encode())
    for found in (journal, NodeJournal(tmp_path)):
        kept = [number for number in range(6) if reply(found, number) is not None]
        assert kept == list(range(5 - LATE_KEPT, 6))
        assert [number for number in range(6) if found.is_over(RUN, named(number))] == list(range(5 - LATE_KEPT))


def test_an_id_that_a_crash_cut_does_not_shift_those_after_it(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    for number in range(LATE_KEPT + 2):
        keep(journal, number)
    with (tmp_path / RUN.folder / "over").open("ab") as file:
        file.write(b"cut")
    again = NodeJournal(tmp_path)
    keep(again, 50)
    last = NodeJournal(tmp_path)
    assert last.is_over(RUN, named(0))
    assert last.is_over(RUN, named(1))


def test_runs_are_apart_also_of_the_same_name(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path)
    keep(journal, 1, b"five")
    keep(journal, 1, b"six", run=RunKey("r", 6))
    assert state(journal) == b"five"
    journal.forget(RUN)
    assert (state(journal), state(journal, RunKey("r", 6))) == (None, b"six")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["r.6"]


def test_disk_is_bounded_by_the_runs_that_were_used_last(tmp_path: Path) -> None:
    journal = NodeJournal(tmp_path, durable=False)
    keep(journal, 0, b"first", run=RunKey("first", 1))
    for number in range(RUNS_KEPT - 1):
        keep(journal, number, run=RunKey("run", number + 2))
    keep(journal, 1, b"again", run=RunKey("first", 1))
    keep(journal, 1, run=RunKey("one-more", 500))
    assert len(journal.runs) == RUNS_KEPT
    assert state(journal, RunKey("first", 1)) == b"again"
    assert journal.state(RunKey("run", 2)) is None


def test_a_device_that_forgets_loses_its_journal_too(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        keep(NodeJournal(tmp_path / "flower"), 1)
        storage.forget()
    assert not (tmp_path / "flower").exists()


def test_a_damaged_answer_is_named_with_what_to_do(tmp_path: Path) -> None:
    keep(NodeJournal(tmp_path), 1)
    next(tmp_path.rglob("*.answer")).write_bytes(b"rubbish")
    with pytest.raises(StorageError, match=r"Move that folder away to begin with an empty Context\.state"):
        NodeJournal(tmp_path)
