"""The authority's folder: whose files they are, and that a key, a policy or a ledger is never silently another one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_sdk.credentials.certificate import RevocationList
from coordinator.authority import folder as folders
from coordinator.authority.folder import AuthorityFolderError, make_authority, opened
from coordinator.authority.issuer import AuthorityPolicy
from tests.coordinator.authority.world import NOW, URL

POLICY = AuthorityPolicy(url=URL, certificate_days=30, list_hours=6)


def test_a_new_folder_is_its_owners_only_and_opens_as_it_was_made(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "authority"
    made = make_authority(folder, POLICY, at=NOW)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with opened(folder) as (issuer, ledger):
        assert (issuer.trusted, issuer.policy) == (made.trusted, POLICY)
        with ledger.reading() as rows:
            encoded = rows.last_list()
        assert encoded is not None
        RevocationList.parse(encoded).require_signed(made.trusted)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert b"BEGIN PRIVATE KEY" in (folder / "authority.pem").read_bytes()


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    make_authority(tmp_path, POLICY, at=NOW)
    (tmp_path / "authority.pem").chmod(0o640)
    with pytest.raises(AuthorityFolderError, match="chmod 600"), opened(tmp_path):
        pass


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    make_authority(tmp_path, POLICY, at=NOW)
    before = (tmp_path / "authority.pem").read_bytes()
    with pytest.raises(AuthorityFolderError, match="has an authority already"):
        make_authority(tmp_path, POLICY, at=NOW)
    assert (tmp_path / "authority.pem").read_bytes() == before


def test_what_died_before_the_key_was_written_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = folders.write_private

    def dies(path: Path, data: bytes) -> None:
        if path.name == "authority.pem":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(folders, "write_private", dies)
    with pytest.raises(KeyboardInterrupt):
        make_authority(tmp_path, POLICY, at=NOW)
    monkeypatch.undo()
    with pytest.raises(AuthorityFolderError, match="There is no authority"), opened(tmp_path):
        pass
    made = make_authority(tmp_path, POLICY, at=NOW)
    with opened(tmp_path) as (_, ledger), ledger.reading() as rows:
        RevocationList.parse(rows.last_list() or b"").require_signed(made.trusted)


def test_a_lost_ledger_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    make_authority(tmp_path, POLICY, at=NOW)
    for path in tmp_path.glob("authority.sqlite3*"):
        path.unlink()
    with pytest.raises(AuthorityFolderError, match="restore it from a backup"), opened(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("authority.toml", 'url = "http://authority.example"', "https only"),
        ("authority.toml", "not toml", "cannot be read"),
        ("authority.pem", "not a key", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content: str, words: str) -> None:
    make_authority(tmp_path, POLICY, at=NOW)
    (tmp_path / name).write_text(content)
    with pytest.raises(AuthorityFolderError, match=words), opened(tmp_path):
        pass


def test_a_policy_is_written_and_read() -> None:
    assert AuthorityPolicy.from_toml(POLICY.to_toml()) == POLICY
