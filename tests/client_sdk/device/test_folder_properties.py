"""A device's folder in which a file was changed: it is refused in a sentence, or read, and then written the same."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from client_sdk.device.record import StorageError
from client_sdk.device.storage import FileStorage
from tests.client_sdk.device.scripted import ScriptedCoordinator
from tests.client_sdk.device.test_storage import BODY, DIGEST, MEMORY, joined, record
from tests.client_sdk.protocol.mutated import mutated

FULL = record(assignment=ScriptedCoordinator().offered(), assigned_at=5.5, secure=MEMORY)
LINES = [joined(number) for number in (1, 2, 3)]
DOCUMENT = FULL.model_dump(mode="json")


NO_SYNC = patch("os.fsync", lambda descriptor: None)
"""These tests lose no power, and a disk's answer takes longer than all the rest."""


def refusal(read: Callable[[], object]) -> str:
    """The sentence with which it is refused; empty where it is read."""
    try:
        read()
    except StorageError as error:
        return str(error)
    return ""


@NO_SYNC
@given(mutated(DOCUMENT).map(json.dumps).map(str.encode) | st.binary(max_size=80))
def test_a_changed_record_is_refused_or_read(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, FileStorage(folder) as storage:
        storage.save(FULL)
        (Path(folder) / "record.json").write_bytes(content)
        refused = refusal(storage.load)
        assert "\n" not in refused
        if not refused:
            found = storage.load()
            assert found is not None
            storage.save(found)
            assert storage.load() == found


@NO_SYNC
@given(st.data())
def test_rounds_are_recorded_behind_whatever_the_history_ends_with(data: st.DataObject) -> None:
    """Whole lines that can be read stay, each once; a line without an end is overwritten; the next round is added."""
    whole = b"".join(line.model_dump_json().encode() + b"\n" for line in LINES)
    left = whole[: data.draw(st.integers(0, len(whole)))]
    with tempfile.TemporaryDirectory() as folder, FileStorage(folder) as storage:
        storage.save(record())
        (Path(folder) / "history.jsonl").write_bytes(left)
        storage.save(record(), joined=joined(4))
        assert storage.history() == [*LINES[: left.count(b"\n")], joined(4)]


@NO_SYNC
@given(st.binary(max_size=60))
def test_no_bytes_in_the_history_stop_the_device(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, FileStorage(folder) as storage:
        storage.save(record(update_digest=DIGEST), BODY)
        (Path(folder) / "history.jsonl").write_bytes(content)
        storage.save(record(), joined=joined(4))
        assert storage.load() == record()
        assert "cannot be read" in refusal(storage.history) or storage.history()[-1] == joined(4)
