"""What a storage keeps of a device's enrolment: the revocation list, and what stays after leaving."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk.device.record import AuthorityRef, Record, Storage, StorageError
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.secagg.memory import Advertisements, Live, Memory, Step
from client_sdk.secagg.roster import AttemptSecrets
from client_sdk.secagg.shares import SharePair
from tests.client_sdk.credentials.world import revocations
from tests.client_sdk.secagg.attempt import entropy

SEED = "11" * 32
PAIR = SharePair(bytes(33), bytes(33))
LIVE = Live(
    step=Step.MASKED,
    header=b"h",
    advertised=b"a",
    secrets=AttemptSecrets.draw(entropy("storage")),
    roster=b"r",
    bundle=b"b",
    held={1: PAIR},
    vector=b"secret parts",
)
MARKS = Memory(
    revocations=7,
    spent=frozenset({bytes(32)}),
    advertisements={bytes([1]) * 32: Advertisements(count=2, last_at=5.0)},
    order={bytes([2]) * 32: (3, 1)},
    plain=frozenset({"clinic:risk"}),
)


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else FileStorage(tmp_path / "device")


def test_a_revocation_list_is_kept(storage: Storage) -> None:
    assert storage.load_revocations() is None
    storage.save_revocations(revocations(7))
    storage.save_revocations(revocations(8))
    assert storage.load_revocations() == revocations(8)


def test_a_damaged_revocation_list_is_not_taken_for_none(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save_revocations(revocations(7))
        (tmp_path / "revocations.bin").write_bytes(b"?")
        with pytest.raises(StorageError, match=r"revocations\.bin cannot be read"):
            storage.load_revocations()


def test_forgetting_deletes_key_update_and_checkpoints_and_keeps_every_mark(storage: Storage) -> None:
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    storage.save(
        Record(key_seed=SEED, authority=AuthorityRef(url="https://a", digest=digest), update_digest=digest), b""
    )
    with storage.checkpoints.download(CheckpointRef(version=0, digest=digest, bytes=0)):
        pass
    storage.keep(lambda _: MARKS.moved(bytes(32), None, LIVE))
    storage.save_revocations(revocations(7))
    for _ in range(2):
        storage.forget()
        assert storage.load() is None
        assert storage.checkpoints.get(digest) is None
        assert storage.load_secure() == MARKS
        assert storage.load_revocations() == revocations(7)
        with pytest.raises(StorageError):
            storage.update(digest)


def test_no_file_holds_the_key_after_forgetting(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        storage.save(Record(key_seed=SEED))
        kept = (tmp_path / "record.json").open("rb")
        storage.keep(lambda _: MARKS.moved(bytes(32), None, LIVE))
        storage.forget()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "secure.bin"]
    assert b"secret parts" not in (tmp_path / "secure.bin").read_bytes()
    with kept:
        assert kept.read().strip(b"\0") == b"", "the file was overwritten before it was deleted"
