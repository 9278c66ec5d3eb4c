"""An authority inside a coordinator: it is kept over restarts, at whatever URL, and only ever on loopback."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.enrolment_token import EnrolmentToken, enrolment_statement
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import CertificateRequest
from coordinator.authority.answering import AuthorityAnswers
from coordinator.authority.app import inside_authority
from coordinator.authority.folder import opened
from coordinator.datafolder import FolderError
from coordinator.settings import Settings

NOW = 1_790_000_000.0
URL = "http://127.0.0.1:8470"
APART = {
    "authority": "https://authority.example",
    "authority_key": "5c3d4c64b4a4dd4f11502bc9c80ca75f827dd97edae5f15fb7f764ea4b832239",
}


def token_in(file: Path) -> str:
    return file.read_text().strip()


def certified(folder: Path, text: str, key: DeviceKey) -> Certificate:
    token = EnrolmentToken.parse(text)
    with opened(folder) as (issuer, ledger):
        statement = enrolment_statement(issuer.trusted.id, token.secret_digest, bytes.fromhex(key.public_hex))
        asked = CertificateRequest(
            secret=token.secret.hex(), public_key=key.public_hex, proof=key.sign(statement).hex(), label=""
        )
        return Certificate.parse(bytes.fromhex(AuthorityAnswers(issuer, ledger).enrol(asked, NOW)().certificate))


def test_it_is_made_once_with_a_token_for_devices_and_one_for_workers(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "authority"
    with inside_authority(folder, URL, lambda: NOW) as inside:
        for holder, file in (("device", inside.device_token_file), ("worker", inside.worker_token_file)):
            text = token_in(file)
            token = EnrolmentToken.parse(text)
            assert (token.url, token.authority) == (URL, inside.trusted.digest)
            assert certified(folder, text, DeviceKey.create()).holder == holder
            path = folder / f"{holder}-token"
            assert path.read_text().strip() == text
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(FolderError, match="Another authority"), inside_authority(folder, URL, lambda: NOW):
            pass


def test_after_a_restart_at_another_port_the_tokens_hold_under_the_new_url(tmp_path: Path) -> None:
    folder, key = tmp_path / "authority", DeviceKey.create()
    with inside_authority(folder, URL, lambda: NOW) as first:
        before = first.trusted, token_in(first.device_token_file), token_in(first.worker_token_file)
        made = certified(folder, token_in(first.device_token_file), key)
    other = "http://127.0.0.1:9999"
    with inside_authority(folder, other, lambda: NOW + 5) as second:
        assert second.trusted == before[0]
        again = EnrolmentToken.parse(token_in(second.device_token_file))
        assert (again.url, again.secret) == (other, EnrolmentToken.parse(before[1]).secret)
        assert certified(folder, token_in(second.device_token_file), key) == made, (
            "the same key has the same certificate"
        )
        assert certified(folder, before[1], key) == made, "also by the token of before"
    with opened(folder) as (issuer, _):
        assert issuer.policy.url == other, "its operator's commands make tokens for this URL"


def test_a_token_that_is_damaged_or_old_is_replaced(tmp_path: Path) -> None:
    with inside_authority(tmp_path, URL, lambda: NOW) as first:
        before = token_in(first.device_token_file)
    (tmp_path / "device-token").write_text("junk")
    with inside_authority(tmp_path, URL, lambda: NOW) as second:
        replaced = token_in(second.device_token_file)
        assert replaced != before
        assert token_in(second.worker_token_file) == token_in(first.worker_token_file)
    later = NOW + 3_650 * 86_400
    with inside_authority(tmp_path, URL, lambda: later) as third:
        assert token_in(third.device_token_file) != replaced


@pytest.mark.parametrize(
    "beyond",
    [
        {
            "authority": "https://authority.example",
            "authority_key": "5c3d4c64b4a4dd4f11502bc9c80ca75f827dd97edae5f15fb7f764ea4b832239",
        },
        {"behind_proxy": ["127.0.0.1/32"], "public_url": "https://localhost"},
        {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k", "public_url": "https://fl.example.org"},
        {"tls_cert": "c", "tls_key": "k", "public_url": "https://fl.example.org"},
    ],
)
def test_it_is_refused_beyond_this_machine_in_one_sentence(beyond: dict[str, object]) -> None:
    Settings(**beyond)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="--dev-authority is for trials on this machine") as refused:
        Settings(dev_authority=True, **beyond)  # type: ignore[arg-type]
    assert len(refused.value.errors()) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"authority": "https://authority.example"}, "are given together"),
        ({"authority_key": APART["authority_key"]}, "are given together"),
        ({"authority": "http://authority.example", "authority_key": "00" * 32}, "by https only"),
        ({"authority": "https://authority.example", "authority_key": "00" * 32}, "low order"),
        ({"authority": "https://authority.example", "authority_key": "zz"}, "pattern"),
    ],
)
def test_an_authority_is_a_url_and_its_key(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(**given)  # type: ignore[arg-type]
