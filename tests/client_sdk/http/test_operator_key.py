"""Which API key an operator's client sends, and that it sends none to a process that is not the user's."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import httpx2
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.http.operator_key import find_key, forget_key, note_key
from client_sdk.protocol.problems import ProblemError

URL = "http://127.0.0.1:8470"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("QUORATE_KEY_FILE", "QUORATE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "quorate" / "keys"


def written(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


def test_the_first_that_is_given_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_key(URL) is None
    note_key(URL, written(tmp_path / "noted", "noted key"))
    assert find_key(f"{URL}/") == "noted key"
    monkeypatch.setenv("QUORATE_API_KEY", "key of the environment")
    assert find_key(URL) == "key of the environment"
    monkeypatch.setenv("QUORATE_KEY_FILE", str(written(tmp_path / "file", "key of its file")))
    assert find_key(URL) == "key of its file"
    assert find_key(URL, written(tmp_path / "named", "named key")) == "named key"


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    for content, words in ((None, "cannot be read: No such file"), ("", "has no key"), ("a\x00b", "has no key")):
        path = tmp_path / "key"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ValueError, match=words):
            find_key(URL, path)


def test_a_note_is_for_one_url_and_for_its_user(tmp_path: Path, state: Path) -> None:
    note = note_key(URL, written(tmp_path / "key", "a key"))
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert "a key" not in note.read_text(), "it names the file, and has no key"
    assert find_key("http://127.0.0.1:8471") is None
    assert find_key("https://127.0.0.1:8470") is None
    forget_key(URL)
    assert find_key(URL) is None


def test_a_coordinator_that_moved_is_not_found_at_its_old_address(tmp_path: Path, state: Path) -> None:
    """Somebody else may listen there now."""
    key = written(tmp_path / "key", "a key")
    note_key(URL, key)
    note_key("http://127.0.0.1:9000", key)
    assert find_key(URL) is None
    assert find_key("http://127.0.0.1:9000") == "a key"
    assert len(list(state.iterdir())) == 1


@pytest.mark.parametrize("process", [2**22 + 1, 1 if os.geteuid() else None, "7", -1.5, 2**70])
def test_a_note_of_a_process_that_is_gone_or_another_users_gives_no_key(tmp_path: Path, process: object) -> None:
    note = note_key(URL, written(tmp_path / "key", "a key"))
    note.write_text(json.dumps({**json.loads(note.read_text()), "process": process}))
    assert find_key(URL) is None
    forget_key(URL)
    assert note.exists(), "it is not this process's"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"process": 1}'])
def test_a_note_that_cannot_be_read_gives_no_key(tmp_path: Path, content: str) -> None:
    note = note_key(URL, written(tmp_path / "key", "a key"))
    note.write_text(content)
    assert find_key(URL) is None


def test_the_client_sends_its_key_with_each_kind_of_request(tmp_path: Path) -> None:
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers.get("authorization", ""))
        return httpx2.Response(404, json={"type": "/problems/unknown-checkpoint", "title": "", "status": 404})

    http = httpx2.Client(base_url=URL, transport=httpx2.MockTransport(answer))
    client = OperatorClient(URL, key_file=written(tmp_path / "key", "a key"), http=http)
    for ask in (client.runs, lambda: list(client.events("a")), lambda: client.checkpoint("0" * 64)):
        with pytest.raises(ProblemError):
            ask()
    assert sent == ["Bearer a key"] * 3


def test_a_client_without_a_key_says_how_to_give_one() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, json={"type": "/problems/unauthenticated", "title": "", "status": 401})

    client = OperatorClient(URL, http=httpx2.Client(base_url=URL, transport=httpx2.MockTransport(answer)))
    for ask in (client.runs, lambda: list(client.events("a")), lambda: client.checkpoint("0" * 64)):
        with pytest.raises(ProblemError, match=r"no API key for the coordinator at .*: give --key-file FILE, or set "):
            ask()


def test_a_key_for_the_numeric_address_is_named_and_not_sent_to_localhost(tmp_path: Path) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert "authorization" not in request.headers
        return httpx2.Response(401, json={"type": "/problems/unauthenticated", "title": "", "status": 401})

    note_key("http://127.0.0.1:8470", written(tmp_path / "key", "a key"))
    at_localhost = "http://localhost:8470"
    http = httpx2.Client(base_url=at_localhost, transport=httpx2.MockTransport(answer))
    with pytest.raises(ProblemError, match=r"yours is for http://127\.0\.0\.1:8470, which is the address"):
        OperatorClient(at_localhost, http=http).runs()
