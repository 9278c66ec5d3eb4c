"""Storage: one contract for both kinds, and what files do when the power goes at the wrong moment."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_sdk.device.checkpoint_cache import CheckpointCache, FileCheckpoints, MemoryCheckpoints, WrongBytes
from client_sdk.device.record import Joined, Record, Storage, StorageError
from client_sdk.device.storage import FileStorage, MemoryStorage, read_history
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.secagg.errors import Superseded
from client_sdk.secagg.memory import Memory
from tests.client_sdk.device.scripted import ScriptedCoordinator

BODY = b"an update"
DIGEST = hashlib.sha256(BODY).hexdigest()


MEMORY = Memory(revocations=3, spent=frozenset({b"m" * 32}), plain=frozenset({"clinic:risk"}))


def record(**changes: Any) -> Record:
    return Record.model_validate({"key_seed": "11" * 32, "coordinator": "http://c.test", **changes})


def joined(number: int, **changes: Any) -> Joined:
    fields: dict[str, Any] = {
        "run": "run-1",
        "round": number,
        "attempt": 0,
        "device": "d0",
        "coordinator": "http://c.test",
        "plan_digest": "ab" * 32,
        "learner": "clinic:risk",
        "checkpoint": "cd" * 32,
        "result": "receipt",
        "joined_at": 1.0,
        "ended_at": 2.0,
    }
    return Joined.model_validate(fields | changes)


class StorageContract:
    """What every storage keeps."""

    def make(self, folder: Path) -> Storage:
        raise NotImplementedError

    def test_a_new_storage_is_empty(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assert storage.load() is None
        assert storage.history() == []

    def test_what_was_saved_is_loaded(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assignment = ScriptedCoordinator().offered()
        storage.save(record(assignment=assignment, assigned_at=5.5))
        assert storage.load() == record(assignment=assignment, assigned_at=5.5)

    def test_an_update_lives_until_the_record_names_it_no_more(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        storage.save(record(update_digest=DIGEST), BODY)
        with storage.update(DIGEST) as file:
            assert file.read() == BODY
        storage.save(record(update_digest=DIGEST, assigned_at=3.0))
        with storage.update(DIGEST) as file:
            assert file.read() == BODY
        storage.save(record())
        with pytest.raises(StorageError):
            storage.update(DIGEST)

    def test_history_is_in_order_and_a_repeated_line_counts_once(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        for number in (1, 2, 2, 3):
            storage.save(record(), joined=joined(number))
        assert [entry.round for entry in storage.history()] == [1, 2, 3]

    def test_memory_of_secure_rounds_outlives_records(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assert storage.load_secure().encoded == Memory().encoded
        storage.keep(lambda _: MEMORY)
        storage.save(record(coordinator="http://another.test"))
        assert storage.load_secure().encoded == MEMORY.encoded

    def test_a_change_is_of_the_newest_memory_and_its_result_is_given_back(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        stale = storage.load_secure()
        storage.keep(lambda _: MEMORY)
        found = storage.keep(lambda newest: replace(newest, revocations=9))
        assert found == replace(MEMORY, revocations=9) == storage.load_secure()
        assert stale == Memory()
        assert storage.keep(lambda newest: newest) == found

    def test_a_change_that_raises_stores_nothing_and_lets_the_next_one_in(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        storage.keep(lambda _: MEMORY)

        def refused(newest: Memory) -> Memory:
            assert newest == MEMORY
            raise Superseded

        for _ in range(2):
            with pytest.raises(Superseded):
                storage.keep(refused)
        assert storage.keep(lambda newest: newest) == MEMORY

    def test_repro_changes_of_many_threads_are_applied_one_after_another(self, tmp_path: Path) -> None:
        """Each reads, waits and adds one: what overlapped would be lost."""
        storage = self.make(tmp_path)

        def one_more(newest: Memory) -> Memory:
            time.sleep(0.0005)
            return replace(newest, revocations=newest.revocations + 1)

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: storage.keep(one_more).revocations, range(32)))
        assert sorted(found) == list(range(1, 33))
        assert storage.load_secure().revocations == 32

    def test_the_same_round_number_of_another_run_or_attempt_is_another_line(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        for entry in (joined(1), joined(1, run="run-2"), joined(1, run="run-2", attempt=1)):
            storage.save(record(), joined=entry)
        assert len(storage.history()) == 3


class TestMemoryStorage(StorageContract):
    def make(self, folder: Path) -> Storage:
        return MemoryStorage()


class TestFileStorage(StorageContract):
    def make(self, folder: Path) -> Storage:
        return FileStorage(folder / "device")


def test_everything_is_the_owners_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with FileStorage(tmp_path / "device") as storage:
            storage.save(record(update_digest=DIGEST), BODY, joined(1))
            storage.keep(lambda _: MEMORY)
            ref = CheckpointRef(version=0, digest=DIGEST, bytes=len(BODY))
            with storage.checkpoints.download(ref) as download:
                download.write(BODY)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "device").stat().st_mode) == 0o700
    for path in (tmp_path / "device").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with FileStorage("~/app/quorate") as storage:
        assert storage.folder == tmp_path / "home" / "app" / "quorate"
        assert storage.folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    with pytest.raises(StorageError, match="which folder is home"):
        FileStorage("~nobody-of-this-name/app")


def test_one_process_a_folder(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save(record())
        with pytest.raises(StorageError, match=f"in use by another device.*process {os.getpid()}.*folder of its own"):
            FileStorage(tmp_path)
        output = subprocess.run(
            [
                sys.executable,
                "-c",
                f"from client_sdk.device.storage import FileStorage; FileStorage({str(tmp_path)!r})",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "in use by another device" in output.stderr
    FileStorage(tmp_path).close()


def test_a_killed_process_leaves_the_folder_free(tmp_path: Path) -> None:
    code = f"""
import os, sys
from client_sdk.device.storage import FileStorage
FileStorage({str(tmp_path)!r})
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    FileStorage(tmp_path).close()


class Cut(BaseException):
    """The power went."""


def cut_at(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    """The ``count``-th call of ``os.<name>`` is the last thing that happens."""
    genuine: Callable[..., Any] = getattr(os, name)
    calls = iter(range(10**6))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == count:
            raise Cut
        return genuine(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
def test_a_crash_inside_a_save_leaves_the_old_record_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    old = record(update_digest=DIGEST)
    other = hashlib.sha256(b"another").hexdigest()
    new = record(update_digest=other, coordinator="http://new.test")
    crashed = 0
    for count in range(12):
        folder = tmp_path / f"{call}-{count}"
        with FileStorage(folder) as storage:
            storage.save(old, BODY, joined(1))
            with monkeypatch.context() as patch:
                cut_at(patch, call, count)
                try:
                    storage.save(new, b"another", joined(2))
                except Cut:
                    crashed += 1
        with FileStorage(folder) as storage:
            found = storage.load()
            assert found in (old, new)
            assert found is not None
            assert found.update_digest is not None
            with storage.update(found.update_digest) as file:
                assert file.read() == (BODY if found == old else b"another")
            rounds = [entry.round for entry in storage.history()]
            assert rounds == [1, 2] if found == new else rounds in ([1], [1, 2])
            storage.save(new, b"another", joined(2))
            assert [entry.round for entry in storage.history()] == [1, 2]
            assert sorted(path.name for path in folder.iterdir()) == sorted(
                ["history.jsonl", "lock", "record.json", f"update-{other}.bin"]
            )
    assert crashed >= {"fsync": 5, "replace": 2, "unlink": 1}[call]


def test_a_torn_last_line_of_the_history_is_left_out_and_then_overwritten(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save(record(), joined=joined(1))
        path = tmp_path / "history.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole + whole[: len(whole) // 2])
        assert [entry.round for entry in storage.history()] == [1]
        storage.save(record(), joined=joined(2))
        assert [entry.round for entry in storage.history()] == [1, 2]
        path.write_bytes(whole[:5])
        assert storage.history() == []
        storage.save(record(), joined=joined(3))
        assert [entry.round for entry in storage.history()] == [3]


def test_a_round_is_recorded_behind_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    """A newer version may have written the line: the device goes on, and reading the history is refused."""
    with FileStorage(tmp_path) as storage:
        storage.save(record(), joined=joined(1))
        path = tmp_path / "history.jsonl"
        path.write_bytes(path.read_bytes() + b'{"format": "another"}\n')
        storage.save(record(), joined=joined(2))
        lines = path.read_bytes().splitlines()
        assert [len(lines), Joined.model_validate_json(lines[2])] == [3, joined(2)]
        with pytest.raises(StorageError, match="a line of it is not a round joined"):
            storage.history()


def test_history_can_be_read_while_the_device_runs(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save(record(), joined=joined(1))
        assert read_history(tmp_path) == [joined(1)]
    assert read_history(tmp_path / "nowhere") == []


@pytest.mark.parametrize("damage", ["missing", "shorter", "flipped"])
def test_an_update_that_is_damaged_is_forgotten(tmp_path: Path, damage: str) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save(record(update_digest=DIGEST), BODY)
        path = tmp_path / f"update-{DIGEST}.bin"
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(BODY[:-1] if damage == "shorter" else BODY[:-1] + b"!")
        assert storage.load() == record()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "key_seed": "short"}', b'{"format": "x"}']
)
def test_the_error_for_a_record_that_cannot_be_read_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    with FileStorage(tmp_path) as storage:
        (tmp_path / "record.json").write_bytes(content)
        with pytest.raises(StorageError, match=r"record\.json cannot be read.*enrol anew"):
            storage.load()


def test_a_newer_record_is_not_guessed_at(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        (tmp_path / "record.json").write_text('{"format": 3}')
        with pytest.raises(StorageError, match="newer quorate"):
            storage.load()


def test_the_error_for_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be used"):
        FileStorage(tmp_path / "file" / "device")


def test_without_durability_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at(monkeypatch, "fsync", 0)
    with FileStorage(tmp_path, durable=False) as storage:
        storage.save(record(update_digest=DIGEST), BODY, joined(1))
        assert storage.load() == record(update_digest=DIGEST)


# ------------------------------------------------------------ checkpoints


def ref(content: bytes) -> CheckpointRef:
    return CheckpointRef(version=0, digest=hashlib.sha256(content).hexdigest(), bytes=len(content))


def keep(checkpoints: CheckpointCache, content: bytes) -> None:
    with checkpoints.download(ref(content)) as download:
        for start in range(0, len(content), 3):
            download.write(content[start : start + 3])


@pytest.fixture(params=["memory", "file"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointCache:
    return MemoryCheckpoints() if request.param == "memory" else FileCheckpoints(tmp_path / "checkpoints")


def test_a_checkpoint_is_kept_once_it_is_whole(checkpoints: CheckpointCache) -> None:
    assert checkpoints.get(ref(b"model").digest) is None
    keep(checkpoints, b"model")
    assert checkpoints.get(ref(b"model").digest) == b"model"


def test_the_last_two_checkpoints_are_kept(checkpoints: CheckpointCache) -> None:
    for content in (b"one", b"two", b"three"):
        keep(checkpoints, content)
    assert checkpoints.get(ref(b"one").digest) is None
    assert checkpoints.get(ref(b"two").digest) == b"two"
    assert checkpoints.get(ref(b"three").digest) == b"three"


def test_what_is_held_is_named_newest_first(checkpoints: CheckpointCache) -> None:
    assert checkpoints.held() == []
    for content in (b"one", b"two", b"three"):
        keep(checkpoints, content)
    assert checkpoints.held() == [ref(b"three").digest, ref(b"two").digest]


@pytest.mark.parametrize("sent", [b"mod", b"modem", b"", b"model and more"])
def test_other_bytes_are_thrown_away(checkpoints: CheckpointCache, sent: bytes) -> None:
    with pytest.raises(WrongBytes):
        with checkpoints.download(ref(b"model")) as download:
            download.write(sent)
    assert checkpoints.get(ref(b"model").digest) is None
    keep(checkpoints, b"model")
    assert checkpoints.get(ref(b"model").digest) == b"model"


def test_a_download_that_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    checkpoints = FileCheckpoints(tmp_path)

    def broken_off() -> None:
        with checkpoints.download(ref(b"a long model")) as download:
            download.write(b"a long")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        broken_off()
    with checkpoints.download(ref(b"a long model")) as download:
        assert download.received == 6
        download.write(b" model")
    assert checkpoints.get(ref(b"a long model").digest) == b"a long model"


def test_a_checkpoint_that_rotted_on_disk_is_not_given_out(tmp_path: Path) -> None:
    checkpoints = FileCheckpoints(tmp_path)
    keep(checkpoints, b"model")
    (tmp_path / f"{ref(b'model').digest}.safetensors").write_bytes(b"moder")
    assert checkpoints.get(ref(b"model").digest) is None
    assert list(tmp_path.iterdir()) == []


# Memory of secure rounds.


def test_an_older_memory_is_overwritten_before_it_is_let_go(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.keep(lambda _: MEMORY)
        (tmp_path / "kept").hardlink_to(tmp_path / "secure.bin")
        storage.keep(lambda _: Memory())
        assert storage.load_secure().encoded == Memory().encoded
        assert (tmp_path / "kept").read_bytes() == bytes(len(MEMORY.encoded))


def test_what_a_crash_left_half_written_is_overwritten_too(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.keep(lambda _: MEMORY)
    (tmp_path / "secure.bin.tmp").write_bytes(MEMORY.encoded)
    (tmp_path / "kept").hardlink_to(tmp_path / "secure.bin.tmp")
    with FileStorage(tmp_path) as storage:
        assert storage.load_secure().encoded == MEMORY.encoded
    assert (tmp_path / "kept").read_bytes() == bytes(len(MEMORY.encoded))
    assert not (tmp_path / "secure.bin.tmp").exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_crash_while_memory_is_saved_leaves_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """And never the old one where the new one was said to be kept."""
    crashed = 0
    for count in range(5):
        folder = tmp_path / str(count)
        with FileStorage(folder) as storage:
            storage.keep(lambda _: Memory())
            saved = False
            with monkeypatch.context() as patch:
                cut_at(patch, call, count)
                try:
                    storage.keep(lambda _: MEMORY)
                    saved = True
                except Cut:
                    crashed += 1
        with FileStorage(folder) as storage:
            found = storage.load_secure().encoded
            assert found == MEMORY.encoded or (found == Memory().encoded and not saved)
    assert crashed >= {"fsync": 3, "replace": 1}[call]


def test_a_change_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.keep(lambda newest: newest)
        assert not (tmp_path / "secure.bin").exists()
        storage.keep(lambda _: MEMORY)
        before = (tmp_path / "secure.bin").stat().st_ino
        storage.keep(lambda newest: newest)
        assert (tmp_path / "secure.bin").stat().st_ino == before


def test_an_update_that_is_not_needed_any_more_is_overwritten_before_it_is_deleted(tmp_path: Path) -> None:
    """In a secure round it is the device's contribution in the clear."""
    for end in ("dropped", "replaced", "forgotten"):
        folder = tmp_path / end
        with FileStorage(folder) as storage:
            storage.save(record(update_digest=DIGEST), BODY)
            (folder / "kept").hardlink_to(folder / f"update-{DIGEST}.bin")
            if end == "dropped":
                storage.save(record())
            elif end == "replaced":
                storage.save(record(update_digest=hashlib.sha256(b"another").hexdigest()), b"another")
            else:
                storage.forget()
            assert (folder / "kept").read_bytes() == bytes(len(BODY))
            assert not (folder / f"update-{DIGEST}.bin").exists()


@pytest.mark.parametrize("content", [b"", b"rubbish", MEMORY.encoded[:-1], bytes(len(MEMORY.encoded))])
def test_a_device_whose_memory_is_damaged_takes_part_in_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secure.bin").write_bytes(content)
    with FileStorage(tmp_path) as storage, pytest.raises(StorageError, match=r"cannot know what it signed"):
        storage.load_secure()
