"""The owner's key that ``quorate serve`` makes: in its folder, found by the user's own commands, and made again where
it was revoked."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.problems import ProblemError
from coordinator.access import LOCAL_OWNER
from coordinator.service import process
from coordinator.service.process import OWNER_KEY_FILE, noted, owner_key
from tests.coordinator.service.conftest import Server
from tests.coordinator.world import World

URL = "http://127.0.0.1:8470"


def test_it_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    access = World(0).coordinator.access
    path = owner_key(tmp_path, access)
    text = path.read_text()
    assert path == tmp_path / OWNER_KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    operator = access.operator(text.strip())
    assert (str(operator), operator.expires_at) == ("owner *", None)
    owner_key(tmp_path, access)
    assert path.read_text() == text
    (row,) = access.keys.listed(LOCAL_OWNER)
    assert (row.created_by, row.label) == ("quorate serve", f"owner-key of {tmp_path}"[:120])


@pytest.mark.parametrize("content", ["", "junk", "qk_" + "0" * 16 + "_" + "0" * 64, "\xff"])
def test_a_file_without_a_valid_key_gets_one(tmp_path: Path, content: str) -> None:
    access = World(0).coordinator.access
    (tmp_path / OWNER_KEY_FILE).write_text(content)
    (tmp_path / OWNER_KEY_FILE).chmod(0o644)
    path = owner_key(tmp_path, access)
    assert access.operator(path.read_text().strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_revoked_one_is_drawn_anew_at_the_next_start(tmp_path: Path) -> None:
    access = World(0).coordinator.access
    old = owner_key(tmp_path, access).read_text().strip()
    access.keys.revoke(LOCAL_OWNER, old.split("_")[1])
    new = owner_key(tmp_path, access).read_text().strip()
    assert new != old
    assert access.operator(new)
    with pytest.raises(ProblemError, match="was revoked"):
        access.operator(old)


def test_where_it_cannot_be_noted_the_coordinator_serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(process.log, "warning", lambda event, **_: warnings.append(event), raising=False)
    (tmp_path / "state").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with noted(URL, tmp_path / OWNER_KEY_FILE):
        pass
    assert warnings == ["commands do not find the owner's key by themselves; give them --key-file"]


def test_commands_of_the_same_user_find_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with OperatorClient(server.url) as client:
        assert isinstance(client.runs(), list)
    monkeypatch.setenv("XDG_STATE_HOME", "/nowhere")
    with OperatorClient(server.url) as client, pytest.raises(ProblemError, match="give --key-file FILE"):
        client.runs()
    with OperatorClient(server.url, key_file=server.folder / OWNER_KEY_FILE) as client:
        assert isinstance(client.runs(), list)
