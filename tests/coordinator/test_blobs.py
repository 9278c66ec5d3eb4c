"""Blobs: the contract on files and in memory; on files also what a full disk and a crash leave behind."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import (
    BlobError,
    Blobs,
    DigestMismatch,
    DiskFull,
    FileBlobs,
    MemoryBlobs,
    Missing,
    TooLarge,
    files,
)

DATA = b"what device 7 learned in round 3" * 100
DIGEST = hashlib.sha256(DATA).hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class BlobsContract:
    def test_bytes_come_back_under_their_digest(self, blobs: Blobs) -> None:
        assert not blobs.has(DIGEST)
        assert blobs.put(DATA) == DIGEST
        assert blobs.has(DIGEST)
        assert blobs.size(DIGEST) == len(DATA)
        assert blobs.open(DIGEST).read() == DATA
        with blobs.open(DIGEST) as file:
            assert file.read() == DATA
            file.seek(5)
            assert file.read(3) == DATA[5:8]

    def test_equal_content_is_one_blob(self, blobs: Blobs) -> None:
        blobs.put(DATA)
        with blobs.spool() as spool:
            spool.write(DATA)
            assert spool.commit(DIGEST) == DIGEST
        assert blobs.put(DATA) == DIGEST
        assert list(blobs.digests()) == [DIGEST]

    def test_nothing_at_all_is_a_blob_too(self, blobs: Blobs) -> None:
        digest = blobs.put(b"")
        assert digest == hashlib.sha256(b"").hexdigest()
        assert blobs.size(digest) == 0
        assert blobs.open(digest).read() == b""

    def test_digests_are_listed_in_order(self, blobs: Blobs) -> None:
        assert list(blobs.digests()) == []
        put = [blobs.put(bytes([n])) for n in range(40)]
        assert list(blobs.digests()) == sorted(put)

    @pytest.mark.parametrize("digest", [DIGEST, DIGEST.upper(), "", "ab", "../../etc/passwd", "spool/x", DIGEST + "\n"])
    def test_what_is_not_there_is_missing(self, blobs: Blobs, digest: str) -> None:
        blobs.put(b"something else")
        assert not blobs.has(digest)
        for ask in (blobs.open, blobs.size):
            with pytest.raises(Missing):
                ask(digest)
        blobs.delete(digest)

    def test_blobs_have_the_age_at_which_they_were_last_stored(self, blobs: Blobs) -> None:
        began = time.time()
        digests = sorted([blobs.put(DATA), blobs.put(b"other")])
        assert list(blobs.stored_before(began - 60)) == []
        assert list(blobs.stored_before(began + 60)) == digests
        self.age(blobs, DIGEST, 7200)
        assert list(blobs.stored_before(began - 3600)) == [DIGEST]
        blobs.put(DATA)
        assert list(blobs.stored_before(began - 3600)) == []
        blobs.delete(DIGEST)
        assert DIGEST not in blobs.stored_before(began + 60)

    def age(self, blobs: Any, digest: str, seconds: float) -> None:
        """Lets a blob be so many seconds older."""
        raise NotImplementedError

    def test_a_deleted_blob_is_gone_and_can_come_back(self, blobs: Blobs) -> None:
        blobs.put(DATA)
        reader = blobs.open(DIGEST)
        blobs.delete(DIGEST)
        blobs.delete(DIGEST)
        assert not blobs.has(DIGEST)
        assert list(blobs.digests()) == []
        with pytest.raises(Missing):
            blobs.open(DIGEST)
        assert reader.read() == DATA, "a reader that has it open reads on"
        reader.close()
        assert blobs.put(DATA) == DIGEST
        assert blobs.open(DIGEST).read() == DATA

    def test_a_spool_counts_and_digests_as_bytes_arrive(self, blobs: Blobs) -> None:
        with blobs.spool() as spool:
            assert (spool.size, spool.digest) == (0, hashlib.sha256(b"").hexdigest())
            spool.write(DATA[:10])
            spool.write(bytearray(DATA[10:20]))
            spool.write(memoryview(DATA)[20:30])
            assert (spool.size, spool.digest) == (30, hashlib.sha256(DATA[:30]).hexdigest())
            assert not blobs.has(spool.digest)
            spool.write(DATA[30:])
            assert spool.commit() == DIGEST
        assert blobs.open(DIGEST).read() == DATA

    def test_a_spool_is_read_before_it_is_committed(self, blobs: Blobs) -> None:
        with blobs.spool() as spool:
            spool.write(DATA)
            assert spool.handle.read(4) == DATA[:4]
            assert spool.handle.read() == DATA[4:], "one handle, where it was left"
            spool.commit(DIGEST)
            assert spool.commit(DIGEST) == DIGEST, "again is fine"
        assert blobs.open(DIGEST).read() == DATA

    def test_a_spool_that_is_not_committed_leaves_nothing(self, blobs: Blobs) -> None:
        with blobs.spool() as spool:
            spool.write(DATA)
        with pytest.raises(KeyError), blobs.spool() as spool:  # noqa: PT012
            spool.write(DATA)
            raise KeyError("validation found something")
        assert not blobs.has(DIGEST)
        assert list(blobs.digests()) == []

    def test_other_bytes_than_announced_are_not_stored(self, blobs: Blobs) -> None:
        with blobs.spool() as spool:
            spool.write(DATA + b"!")
            with pytest.raises(DigestMismatch, match="was announced"):
                spool.commit(DIGEST)
        assert list(blobs.digests()) == []

    def test_the_limit_holds_while_bytes_arrive(self, blobs: Blobs) -> None:
        with blobs.spool(limit=100) as spool:
            spool.write(DATA[:60])
            with pytest.raises(TooLarge, match="100 bytes"):
                spool.write(DATA[60:101])
            with pytest.raises(BlobError):
                spool.commit()
        assert list(blobs.digests()) == [], "what fitted is not stored as if it were all"
        with blobs.spool(limit=100) as spool:
            spool.write(DATA[:100])
            spool.commit()
        assert len(list(blobs.digests())) == 1

    def test_threads_may_store_the_same_and_other_bytes(self, blobs: Blobs) -> None:
        def work(mark: int) -> None:
            for n in range(5):
                blobs.put(DATA)
                blobs.put(bytes([n]))
                blobs.put(bytes([mark, n]))

        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        digests = list(blobs.digests())
        assert len(digests) == 1 + 5 + 30
        assert all(hashlib.sha256(blobs.open(digest).read()).hexdigest() == digest for digest in digests)


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs(time.time)

    def age(self, blobs: MemoryBlobs, digest: str, seconds: float) -> None:
        blobs._stored_at[digest] -= seconds


class TestFileBlobs(BlobsContract):
    """Of short bytes, whose spool has no file."""

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> FileBlobs:
        return FileBlobs(tmp_path / "blobs")

    def age(self, blobs: FileBlobs, digest: str, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(blobs.folder / digest[:2] / digest, (then, then))


@pytest.mark.usefixtures("no_memory")
class TestFileBlobsOfLongBytes(TestFileBlobs):
    """Their spool is a file."""


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spools have a file from their first byte."""
    monkeypatch.setattr(files, "_IN_MEMORY", 0)


def test_blobs_in_memory_without_a_clock_have_no_age() -> None:
    blobs = MemoryBlobs()
    blobs.put(DATA)
    assert list(blobs.stored_before(1e12)) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def test_the_layout_on_disk(folder: Path) -> None:
    blobs = FileBlobs(folder)
    blobs.put(DATA)
    assert files_in(folder) == [f"{DIGEST[:2]}/{DIGEST}"]
    assert stat.S_IMODE((folder / DIGEST[:2] / DIGEST).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((folder / DIGEST[:2]).stat().st_mode) == 0o700


def test_a_discarded_spool_leaves_no_file(folder: Path) -> None:
    blobs = FileBlobs(folder)
    with blobs.spool() as spool:
        spool.write(bytes(70_000))
        assert len(files_in(folder)) == 1
    assert files_in(folder) == []


def test_short_bytes_are_no_file_until_they_are_stored(folder: Path) -> None:
    blobs = FileBlobs(folder)
    with blobs.spool() as spool:
        spool.write(DATA)
        assert spool.handle.read() == DATA
        assert files_in(folder) == []
    with blobs.spool() as spool:
        spool.write(DATA)
        assert spool.commit() == DIGEST
    assert files_in(folder) == [f"{DIGEST[:2]}/{DIGEST}"]


def test_a_spool_that_outgrows_its_memory_has_all_of_its_bytes(folder: Path) -> None:
    blobs, piece = FileBlobs(folder), os.urandom(20_000)
    with blobs.spool() as spool:
        for _ in range(5):
            spool.write(piece)
        digest = spool.commit()
    assert blobs.open(digest).read() == piece * 5


def test_short_bytes_for_which_the_disk_has_no_room_are_refused_when_they_are_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(folder)
    with blobs.spool() as spool:
        spool.write(DATA)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", _failing(errno.ENOSPC))
            with pytest.raises(DiskFull):
                spool.commit()
        with pytest.raises(BlobError, match="nothing was stored"):
            spool.commit()
    assert files_in(folder) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "mkdir"])
def test_a_full_disk_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    blobs = FileBlobs(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _failing(code))
        with pytest.raises(DiskFull, match="disk is full"):
            blobs.put(DATA)
    assert files_in(folder) == []
    assert blobs.put(DATA) == DIGEST, "space was made"


def _failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.usefixtures("no_memory")
def test_a_disk_that_fills_up_in_the_middle_never_passes_for_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten bytes fit. The running digest has seen all of them, so only the spool knows that the file is short."""
    blobs = FileBlobs(folder)
    room = 10
    real = os.write

    def write(fd: int, view: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(fd, view[:room])
        room -= done
        return done

    with monkeypatch.context() as patch, blobs.spool() as spool:
        patch.setattr(os, "write", write)
        with pytest.raises(DiskFull):
            spool.write(DATA)
        assert spool.digest == DIGEST
        with pytest.raises(BlobError):
            spool.commit(DIGEST)
    assert files_in(folder) == []


def test_short_writes_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, view: real(fd, view[:7]))
    assert FileBlobs(folder).put(DATA) == DIGEST
    assert (folder / DIGEST[:2] / DIGEST).read_bytes() == DATA


def test_another_error_of_the_disk_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FileBlobs(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _failing(errno.EIO))
        with pytest.raises(BlobError, match=r"^Could not use a blob: Input/output error\.$"):
            blobs.put(DATA)
    assert files_in(folder) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlobError, match="Could not use the blob folder"):
        FileBlobs(tmp_path / "file" / "blobs")


@pytest.mark.usefixtures("no_memory")
def test_leftovers_are_swept_at_the_start_and_live_spools_are_not(folder: Path) -> None:
    first = FileBlobs(folder)
    (folder / "spool" / "left by a crash").write_bytes(DATA[:50])
    with first.spool() as live:
        live.write(DATA * 30)
        second = FileBlobs(folder)
        (left,) = files_in(folder)
        assert left.startswith("spool/")
        assert left != "spool/left by a crash"
        digest = live.commit()
    assert second.open(digest).read() == DATA * 30


def test_a_leftover_that_another_process_swept_first_does_not_end_the_sweep(folder: Path) -> None:
    FileBlobs(folder)
    spool = folder / "spool"
    for number in range(8):
        (spool / f"gone{number}").symlink_to("nowhere")
        (spool / f"left{number}").touch()
    FileBlobs(folder)
    assert {file.name[:4] for file in spool.iterdir()} == {"gone"}


def test_a_spool_whose_file_a_sweep_took_before_it_was_locked_gets_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    blobs = FileBlobs(folder)
    real = fcntl.flock
    taken: list[str] = []

    def flock(fd: int, how: int) -> None:
        if not taken:
            taken.extend(files_in(folder))
            (folder / taken[0]).unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with blobs.spool() as spool:
        spool.write(DATA)
        assert spool.commit() == DIGEST
    assert len(taken) == 1
    assert files_in(folder) == [f"{DIGEST[:2]}/{DIGEST}"]


class _Crash(BaseException):
    """The process dies here."""


def _steps(monkeypatch: pytest.MonkeyPatch, die_at: int | None = None) -> list[str]:
    """Records the calls that reach the disk, and dies instead of the one numbered ``die_at``."""
    log: list[str] = []

    def watch(module: Any, name: str, describe: Callable[..., str]) -> None:
        real = getattr(module, name)

        def call(*given: Any, **named: Any) -> Any:
            if len(log) == die_at:
                raise _Crash
            log.append(describe(*given))
            return real(*given, **named)

        monkeypatch.setattr(module, name, call)

    def kind(fd: int) -> str:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return "file" if path.is_file() else "prefix" if len(path.name) == 2 else "root"

    watch(os, "write", lambda fd, _: "write")
    watch(os, "fsync", lambda fd: f"fsync {kind(fd)}")
    watch(os, "mkdir", lambda path, *_: "mkdir")
    watch(os, "replace", lambda *_: "rename")
    watch(os, "rename", lambda *_: "rename")
    return log


@pytest.mark.usefixtures("needs_proc", "no_memory")
def test_the_order_that_makes_a_blob_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FileBlobs(folder)
    with monkeypatch.context() as patch:
        log = _steps(patch)
        blobs.put(DATA)
        assert log == ["write", "mkdir", "fsync root", "fsync file", "rename", "fsync prefix"]
        log.clear()
        blobs.put(DATA)
        assert log == ["write", "fsync prefix"], "equal content is not synced again, but its name may not be yet"


@pytest.mark.usefixtures("needs_proc")
def test_short_bytes_become_durable_in_the_same_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FileBlobs(folder)
    with monkeypatch.context() as patch:
        log = _steps(patch)
        blobs.put(DATA)
        assert log == ["mkdir", "fsync root", "write", "fsync file", "rename", "fsync prefix"]
        log.clear()
        blobs.put(DATA)
        assert log == ["fsync prefix"]


@pytest.mark.usefixtures("needs_proc", "no_memory")
@pytest.mark.parametrize("step", range(6))
def test_a_crash_at_any_step_leaves_no_incomplete_blob(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    spool = FileBlobs(folder).spool()
    with monkeypatch.context() as patch:
        log = _steps(patch, die_at=step)
        with pytest.raises(_Crash):  # noqa: PT012
            spool.write(DATA)
            spool.commit()
    assert len(log) == step
    for name in files_in(folder):
        if not name.startswith("spool/"):
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == Path(name).name
    os.close(spool._fd)  # as the death of the process does; __exit__ never runs
    spool._fd = -1
    after = FileBlobs(folder)
    assert files_in(folder) == ([f"{DIGEST[:2]}/{DIGEST}"] if step == 5 else [])
    assert after.put(DATA) == DIGEST
    assert files_in(folder) == [f"{DIGEST[:2]}/{DIGEST}"]


def test_a_blob_of_the_wrong_length_is_replaced(folder: Path) -> None:
    """A restore or a broken disk truncated the file; a new copy of the bytes repairs it."""
    blobs = FileBlobs(folder)
    blobs.put(DATA)
    (folder / DIGEST[:2] / DIGEST).write_bytes(DATA[:5])
    blobs.put(DATA)
    assert blobs.open(DIGEST).read() == DATA


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this user may mount one."""
    import subprocess

    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    blobs = FileBlobs(small_disk / "blobs")
    kept = blobs.put(DATA)
    with pytest.raises(DiskFull):
        blobs.put(bytes(1_000_000))
    assert list(blobs.digests()) == [kept]
    assert files_in(small_disk) == [f"blobs/{kept[:2]}/{kept}"]
    assert blobs.put(DATA[:1000]) in list(blobs.digests()), "and there is room again"
