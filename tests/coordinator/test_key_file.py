"""A key file is made once, read by its owner only, and named when it cannot be used."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.hazmat.primitives.serialization import load_pem_private_key as load

from client_sdk.identity import DeviceKey
from coordinator.key_file import KeyFileError, made_or_read, pem_of, public_key


def test_a_key_is_made_once_with_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    first = made_or_read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made_or_read(path).seed == first.seed
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]


def test_all_who_make_it_at_the_same_time_get_the_same_key(tmp_path: Path) -> None:
    found: list[str] = []
    barrier = threading.Barrier(4)

    def make() -> None:
        barrier.wait()
        found.append(made_or_read(tmp_path / "key.pem").public_hex)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert set(found) == {made_or_read(tmp_path / "key.pem").public_hex}


def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made_or_read(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match=r"^Others can read .*chmod 600\.$"):
        made_or_read(path)
    path.chmod(0o600)
    curve = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data in (b"", b"\xff", curve, pem_of(DeviceKey.create())[:-40]):
        path.write_bytes(data)
        with pytest.raises(KeyFileError, match=r"has no Ed25519 key\. Restore it"):
            made_or_read(path)
        assert path.read_bytes() == data, "a file that is there is never replaced"
    with pytest.raises(KeyFileError, match="No such file or directory"):
        made_or_read(tmp_path / "nowhere" / "key.pem")
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(KeyFileError, match="Is a directory"):
        made_or_read(tmp_path / "folder")


def test_a_public_key_is_named_by_its_digits_or_a_file_with_either_half(tmp_path: Path) -> None:
    key = made_or_read(tmp_path / "key.pem")
    half = load((tmp_path / "key.pem").read_bytes(), password=None).public_key()
    (tmp_path / "key.pub").write_bytes(half.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for text in (key.public_hex, key.public_hex.upper(), str(tmp_path / "key.pem"), str(tmp_path / "key.pub")):
        assert public_key(text) == key.public_hex
    for text in ("", key.public_hex[:-1], "\0", str(tmp_path)):
        with pytest.raises(KeyFileError, match="is no key of 64 hexadecimal digits, and no file"):
            public_key(text)
