"""What a disk gives back is not believed: each block is checked before its bytes are given."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coordinator.blobs import BlobError, BlobFolder, Damaged, FileBlobs, Missing, blocks
from coordinator.blobs.blocks import BLOCK, BlobHash, BlockTags, CheckedFile, Ranges
from coordinator.blobs.port import damaged

DATA = os.urandom(2 * BLOCK + 1000)
DIGEST = hashlib.sha256(DATA).hexdigest()
SHORT = b"a short one"


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


def file_of(blobs: FileBlobs, digest: str) -> Path:
    return blobs.folder / digest[:2] / digest


def flip(path: Path, at: int) -> None:
    """Flips a bit; size and times of the file stay."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 7])
@pytest.mark.parametrize("piece", [1000, BLOCK, 3 * BLOCK])
def test_sums_are_those_of_the_blocks_however_the_bytes_arrive(size: int, piece: int) -> None:
    data, found = DATA[:size], BlobHash()
    for start in range(0, size, piece):
        found.update(memoryview(data)[start : start + piece])
    assert (found.size, found.digest) == (size, hashlib.sha256(data).hexdigest())
    sums = found.end()
    wanted = [AESGCM(sums.key).encrypt(at.to_bytes(12, "big"), b"", data[at * BLOCK :][:BLOCK]) for at in range(3)]
    assert sums.tags == b"".join(wanted[: -(-size // BLOCK)])
    for index, start in enumerate(range(0, size, BLOCK)):
        block = data[start : start + BLOCK]
        assert sums.fits(index, block)
        assert not sums.fits(index, block[:-1] + bytes([block[-1] ^ 128]))
        assert not sums.fits(index, block[:-1])


def test_a_reader_gives_what_a_file_gives(blobs: FileBlobs) -> None:
    blobs.put(DATA)
    with blobs.open(DIGEST) as file:
        assert file.seek(0, os.SEEK_END) == len(DATA)
        assert file.read(1) == b""
        for at, count in ((0, 8), (BLOCK - 3, 6), (5, 2 * BLOCK), (len(DATA) - 4, 100), (len(DATA) + 9, 3)):
            file.seek(at)
            assert file.read(count) == DATA[at : at + count]
            assert file.tell() == at + len(DATA[at : at + count])
        file.seek(0)
        assert file.read() == DATA
        buffer = bytearray(10)
        file.seek(-4, os.SEEK_END)
        assert file.readinto(buffer) == 4  # type: ignore[attr-defined]
        assert buffer[:4] == DATA[-4:]
        with pytest.raises(OSError, match="before the beginning"):
            file.seek(-1)


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK, len(DATA) - 1])
def test_no_byte_of_a_damaged_block_is_given_and_others_are_until_it_is_found(blobs: FileBlobs, at: int) -> None:
    blobs.put(DATA)
    flip(file_of(blobs, DIGEST), at)
    good = [index for index in range(3) if index != at // BLOCK]
    with blobs.open(DIGEST) as file:
        for index in good:
            file.seek(index * BLOCK)
            assert file.read(100) == DATA[index * BLOCK : index * BLOCK + 100]
        assert blobs.damaged() == []
        file.seek(at // BLOCK * BLOCK)
        with pytest.raises(Damaged, match=DIGEST):
            file.read(1)
    assert blobs.damaged() == [DIGEST]
    assert not blobs.has(DIGEST)
    for ask in (blobs.open, blobs.size):
        with pytest.raises(Damaged):
            ask(DIGEST)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: flip(path, 3),
        lambda path: os.truncate(path, 4),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(DATA),
    ],
)
@pytest.mark.parametrize("data", [SHORT, DATA + b"longer"])
def test_a_file_that_is_another_is_damaged(blobs: FileBlobs, harm: Callable[[Path], None], data: bytes) -> None:
    digest = blobs.put(data)
    harm(file_of(blobs, digest))
    with pytest.raises(Damaged), blobs.open(digest) as file:
        file.read()
    assert blobs.damaged() == [digest]


def test_a_process_that_starts_and_one_that_shares_the_folder_know_what_is_damaged(blobs: FileBlobs) -> None:
    digest, other = blobs.put(DATA), FileBlobs(blobs.folder)
    flip(file_of(blobs, digest), 0)
    with pytest.raises(Damaged):
        blobs.open(digest).read()
    with pytest.raises(Damaged):
        other.open(digest)
    assert FileBlobs(blobs.folder).damaged() == other.damaged() == [digest]
    other.put(DATA)
    assert blobs.damaged() == other.damaged() == []
    assert blobs.open(digest).read() == DATA


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("data", [SHORT, DATA])
def test_the_right_bytes_repair_what_is_damaged_and_that_is_said(blobs: FileBlobs, data: bytes, found: bool) -> None:
    digest = blobs.put(data)
    flip(file_of(blobs, digest), 0)
    if found:
        with pytest.raises(Damaged):
            blobs.open(digest).read()
    with blobs.spool() as spool:
        spool.write(data)
        spool.commit(digest)
        assert spool.repaired
    assert blobs.open(digest).read() == data
    assert blobs.damaged() == []
    with blobs.spool() as spool:
        spool.write(data)
        spool.commit(digest)
        assert not spool.repaired


def test_repro_the_mark_of_damage_stays_until_the_right_bytes_have_their_name_for_good(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power in between left neither the mark nor the bytes: the blob was missing, and not damaged."""
    digest = blobs.put(DATA)
    flip(file_of(blobs, digest), 0)
    with pytest.raises(Damaged):
        blobs.open(digest).read()

    def lost(folder: Path) -> None:
        raise OSError("the power is lost")

    monkeypatch.setattr(blobs, "sync_folder", lost)
    with pytest.raises(BlobError):
        blobs.put(DATA)
    file_of(blobs, digest).unlink()  # what was not synced is gone
    assert FileBlobs(blobs.folder).damaged() == [digest]


def test_what_another_process_found_damaged_is_repaired_here(blobs: FileBlobs) -> None:
    other, digest = FileBlobs(blobs.folder), blobs.put(DATA)
    flip(file_of(blobs, digest), 0)
    with pytest.raises(Damaged):
        blobs.open(digest).read()
    with other.spool() as spool:
        spool.write(DATA)
        spool.commit()
        assert spool.repaired
    assert blobs.damaged() == other.damaged() == []


def test_a_reader_of_a_bad_file_condemns_it_once_and_none_that_has_taken_its_place(tmp_path: Path) -> None:
    said: list[str] = []
    blobs = FileBlobs(tmp_path / "blobs", notice=said.append)
    digest = blobs.put(DATA)
    path = file_of(blobs, digest)
    (good := tmp_path / "good").write_bytes(DATA)
    flip(path, 0)
    readers = [blobs.open(digest) for _ in range(3)]
    for reader in readers[:2]:
        with reader, pytest.raises(Damaged):
            reader.read(1)
    assert [text.split()[:4] for text in said] == [["blob", digest, "is", "damaged:"]]
    good.replace(path)
    assert blobs.damaged() == []
    with readers[2] as reader, pytest.raises(Damaged):
        reader.read(1)
    assert blobs.open(digest).read() == DATA
    assert blobs.damaged() == []


def test_a_file_that_somebody_copies_back_repairs_it(blobs: FileBlobs) -> None:
    digest = blobs.put(DATA)
    flip(file_of(blobs, digest), 0)
    with pytest.raises(Damaged):
        blobs.open(digest).read()
    file_of(blobs, digest).write_bytes(DATA)
    assert blobs.damaged() == []
    assert blobs.open(digest).read() == DATA
    assert FileBlobs(blobs.folder).damaged() == []


@pytest.mark.parametrize("harm", [lambda path: flip(path, 40), Path.unlink, lambda path: path.write_bytes(b"x")])
def test_sums_that_are_lost_or_damaged_condemn_nothing(blobs: FileBlobs, harm: Callable[[Path], None]) -> None:
    digest = blobs.put(DATA)
    sums = Path(f"{file_of(blobs, digest)}.sums")
    before = sums.read_bytes()
    harm(sums)
    for process in (blobs, FileBlobs(blobs.folder)):
        assert process.open(digest).read() == DATA
        assert process.damaged() == []
    assert len(sums.read_bytes()) == len(before)


def test_sums_of_another_blob_condemn_nothing(blobs: FileBlobs) -> None:
    digest, other = blobs.put(DATA), blobs.put(DATA[1:] + b"1")
    Path(f"{file_of(blobs, digest)}.sums").write_bytes(Path(f"{file_of(blobs, other)}.sums").read_bytes())
    assert FileBlobs(blobs.folder).open(digest).read() == DATA


def test_another_blob_with_its_sums_under_this_name_is_damaged(blobs: FileBlobs) -> None:
    """A backup that was copied back under a wrong name."""
    other = blobs.put(DATA[::-1])
    blobs.put(DATA)
    for tail in ("", ".sums"):
        Path(f"{file_of(blobs, DIGEST)}{tail}").write_bytes(Path(f"{file_of(blobs, other)}{tail}").read_bytes())
    with blobs.open(DIGEST) as file, pytest.raises(Damaged, match=DIGEST):
        file.read(1)


def test_nothing_of_a_deleted_blob_is_left(blobs: FileBlobs) -> None:
    kept, damaged = blobs.put(DATA), blobs.put(DATA + b"x")
    flip(file_of(blobs, damaged), 0)
    with pytest.raises(Damaged):
        blobs.open(damaged).read()
    for digest in (kept, damaged):
        blobs.delete(digest)
        with pytest.raises(Missing):
            blobs.open(digest)
    assert blobs.damaged() == []
    assert [path for path in blobs.folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("data", "at_start"), [(DATA[:BLOCK], 1.0), (DATA, 0.01)])
def test_a_read_costs_one_pass_of_sha_256_at_most(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch, data: bytes, at_start: float
) -> None:
    """None in the process that has stored the blob; ``at_start``: after a restart."""
    digest, hashed = blobs.put(data), [0]

    class Counted:
        @staticmethod
        def sha256(given: bytes = b"") -> Any:
            hashed[0] += len(given)
            return hashlib.sha256(given)

    monkeypatch.setattr(blocks, "hashlib", Counted)
    for process, most in ((blobs, 0.0), (FileBlobs(blobs.folder), at_start)):
        hashed[0] = 0
        with process.open(digest) as file:
            assert file.read() == data
        assert hashed[0] <= most * len(data)


def test_a_reader_holds_two_blocks(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.put(DATA)
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: read.append(at) or real(fd, count, at))
    with blobs.open(DIGEST) as file:
        for index in (0, 1, 0, 1, 2, 0):
            file.seek(index * BLOCK + 5)
            file.read(1)
    assert read == [0, BLOCK, 2 * BLOCK, 0]


def test_a_block_that_is_read_wrong_is_read_again_and_never_given(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.put(DATA)
    wrong, pread = [b"", b"x"], os.pread
    monkeypatch.setattr(os, "pread", lambda *asked: wrong.pop() if wrong else pread(*asked))
    with blobs.open(DIGEST) as file:
        with pytest.raises(BlobError, match="reads differently each time"):
            file.read(1)
        wrong.append(b"x")
        assert file.read(9) == DATA[:9]
    assert blobs.damaged() == []


def test_a_disk_that_cannot_be_read_condemns_nothing(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.put(SHORT)

    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", fails)
        with pytest.raises(BlobError, match="Input/output"), blobs.open(hashlib.sha256(SHORT).hexdigest()) as file:
            file.read()
    assert blobs.damaged() == []


def test_a_look_at_the_end_before_the_rest_is_read_costs_no_second_pass(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As codecs do whose seed lies behind the values."""
    blobs.put(DATA)
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: read.append(at) or real(fd, count, at))
    with blobs.open(DIGEST) as file:
        file.read(100)
        file.seek(-32, os.SEEK_END)
        file.read(32)
        file.seek(100)
        while file.read(1000):
            pass
    assert sorted(read) == [0, BLOCK, 2 * BLOCK]


def test_a_blob_that_another_process_has_repaired_is_named_when_it_is_damaged_again(tmp_path: Path) -> None:
    lines: list[str] = []
    blobs = FileBlobs(tmp_path / "blobs", notice=lines.append)
    digest = blobs.put(SHORT)
    for times in (1, 2):
        flip(file_of(blobs, digest), 3)
        with blobs.open(digest) as file, pytest.raises(Damaged):
            file.read()
        assert [f"{digest} is damaged" in line for line in lines] == [True] * times
        FileBlobs(blobs.folder).put(SHORT)


def test_a_folder_of_blobs_is_read_and_not_changed(tmp_path: Path) -> None:
    digest = FileBlobs(tmp_path / "blobs").put(b"some bytes")
    before = sorted(tmp_path.rglob("*"))
    blobs = BlobFolder(tmp_path / "blobs")
    assert blobs.has(digest)
    with blobs.open(digest) as file:
        assert file.read() == b"some bytes"
    for absent in ("0" * 64, "../" + digest, ""):
        assert not blobs.has(absent)
        with pytest.raises(BlobError):
            blobs.open(absent)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("size", [10, (1 << 20) + 10])
def test_a_folder_of_blobs_gives_no_wrong_byte_and_marks_nothing(tmp_path: Path, size: int) -> None:
    blobs = FileBlobs(tmp_path)
    digest = blobs.put(bytes(size))
    flip(file_of(blobs, digest), size - 1)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Damaged, match=digest), BlobFolder(tmp_path).open(digest) as file:
        file.read()
    assert sorted(tmp_path.rglob("*")) == before


def test_bytes_that_are_no_file_are_read_by_ranges_and_checked() -> None:
    """As an object store would give them: a part of a blob costs the blocks that it lies in, and no others."""
    data, asked, closed = os.urandom(5 * BLOCK + 7), list[tuple[int, int]](), list[bool]()
    hashed = BlobHash()
    hashed.update(memoryview(data))

    def read(count: int, at: int) -> bytes:
        asked.append((count, at))
        return stored[at : at + count]

    def judge() -> BlockTags:
        raise damaged(hashed.digest)

    stored = data
    ranges = Ranges(len(data), read, lambda: closed.append(True))
    with CheckedFile(ranges, hashed.digest, hashed.end(), judge) as file:
        file.seek(2 * BLOCK - 3)
        assert file.read(6) == data[2 * BLOCK - 3 : 2 * BLOCK + 3]
        assert asked == [(BLOCK, BLOCK), (BLOCK, 2 * BLOCK)]
        file.seek(-7, os.SEEK_END)
        assert file.read() == data[-7:]
        assert asked[2:] == [(7, 5 * BLOCK)]
        stored = data[:-1] + bytes([data[-1] ^ 1])
        file.seek(5 * BLOCK)
        with pytest.raises(Damaged, match=hashed.digest):
            file.read()
    assert closed == [True]
