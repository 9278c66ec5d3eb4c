"""``quorate device show``, ``rotate`` and ``leave``: what they print, change, and keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_sdk.credentials.identity_keys import key_id
from client_sdk.device.storage import FileStorage, read_history, read_record
from client_sdk.protocol.devices import Task
from client_sdk.protocol.problems import problem
from client_sdk.secagg.memory import Memory
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.commands.token_files import token_file
from tests.client_sdk.http.http_authority import HttpAuthority, authority
from tests.client_sdk.http.http_script import HttpScript, script, serving

pytestmark = pytest.mark.whole

LEARNER = "my_learner_of_tests:train"
MARKS = Memory(revocations=4, spent=frozenset({bytes(32)}), plain=frozenset({"other:net"}))


@pytest.fixture
def own() -> Iterator[HttpAuthority]:
    with authority() as served:
        yield served


@pytest.fixture
def server(own: HttpAuthority) -> Iterator[HttpScript]:
    coordinator = script(rounds=3, task=Task(learner=LEARNER))
    coordinator.authority = own
    with serving(coordinator) as served:
        yield served


def take_part(server: HttpScript, *more: str) -> None:
    options = ["--url", server.url, "--data", "mine.npz", "--learner", LEARNER, "--folder", "d1", "--rounds", "1"]
    assert quorate("device", *options, *more) == 0


@pytest.fixture
def device(workplace: Path, server: HttpScript, own: HttpAuthority, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a device that has joined one round."""
    take_part(server, "--token-file", token_file(own.text))
    capsys.readouterr()
    return workplace / "d1"


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert quorate("device", "show", "--folder", "d1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_show_names_id_key_authority_and_time_also_while_the_device_runs(
    device: Path, server: HttpScript, own: HttpAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileStorage(device):
        found = shown(capsys)
    (certificate,) = server.script.known.values()
    assert found == {
        "id": certificate.id,
        "key": certificate.public_key.hex(),
        "valid_until": found["valid_until"],
        "authority": own.url,
        "authority_key_sha256": own.issuer.trusted.digest.hex(),
        "coordinator": server.url,
        "registered": True,
        "next_key": False,
    }
    assert quorate("device", "show", "--folder", "d1") == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["id", certificate.id]


def test_show_of_a_folder_without_a_device_has_nothing(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FileStorage("d1").close()
    assert set(shown(capsys).values()) == {None, False}
    assert quorate("device", "show", "--folder", "nobody") == 1


# ---------------------------------------------------------------- rotate


def test_rotate_replaces_the_key_keeps_the_id_and_the_memory_of_secure_rounds(
    device: Path, server: HttpScript, own: HttpAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileStorage(device) as storage:
        storage.keep(lambda _: MARKS)
    before = shown(capsys)
    assert quorate("device", "rotate", "--folder", "d1") == 0
    said = capsys.readouterr().out
    after = shown(capsys)
    assert said.startswith(f"{before['id']} has another key now, {after['key']}; its old key is revoked.")
    assert after["id"] == before["id"]
    assert after["key"] != before["key"]
    assert own.served_now().revoked == (key_id(bytes.fromhex(str(before["key"]))),)
    take_part(server)
    assert [certificate.public_key.hex() for certificate in server.script.known.values()] == [after["key"]]
    with FileStorage(device) as storage:
        assert storage.load_secure() == MARKS


def test_a_rotation_that_was_interrupted_goes_on_with_the_same_key(
    device: Path, own: HttpAuthority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own.interfere = lambda path: (_ for _ in ()).throw(problem("busy", "Not now."))
    monkeypatch.setattr("time.sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    assert quorate("device", "rotate", "--folder", "d1") == 130
    assert "Not now. Trying again in 1 s; Ctrl-C stops, and the next start goes on." in capsys.readouterr().err
    half = read_record(device)
    assert half is not None
    own.interfere = lambda path: None
    assert shown(capsys)["next_key"] is True
    assert quorate("device", "rotate", "--folder", "d1") == 0
    whole = read_record(device)
    assert whole is not None
    assert (whole.key_seed, whole.next_key_seed) == (half.next_key_seed, "")


def test_a_new_folder_cannot_be_rotated(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FileStorage("d1").close()
    assert quorate("device", "rotate", "--folder", "d1") == 1
    assert capsys.readouterr().err.startswith("Error: This device has no certificate; ")


# ---------------------------------------------------------------- leave


def check_left(device: Path, server: HttpScript, own: HttpAuthority) -> None:
    assert server.script.known == {}
    assert len(own.served_now().revoked) == 1
    (left,) = own.holders
    with own.answers.ledger.reading() as rows:
        holder = rows.holder(left)
    assert holder is not None
    assert holder.state == "left"
    assert sorted(path.name for path in device.iterdir()) == [
        "answers.json",
        "history.jsonl",
        "left.json",
        "lock",
        "secure.bin",
    ]
    with FileStorage(device) as storage:
        assert storage.load_secure() == MARKS
    assert [entry.result for entry in read_history(device)] == ["receipt"]


def test_leave_tells_both_deletes_here_and_says_what_is_kept(
    device: Path, server: HttpScript, own: HttpAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileStorage(device) as storage:
        storage.keep(lambda _: MARKS)
    assert quorate("device", "leave", "--folder", "d1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "This device has left. Its key, certificate, update and checkpoints are deleted. What is kept:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["Here", "At the coordinator", "At the authority"]
    check_left(device, server, own)
    assert quorate("device", "leave", "--folder", "d1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "left"
    assert quorate("device", "leave", "--folder", "d1") == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0].startswith("This device has left before.")
    assert again[1:] == lines[1:], "it says what the first call did"


@pytest.mark.parametrize("where", ["/v1/devices/left", "/v1/certificates/left"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_leaving_that_was_interrupted_is_finished_by_leaving_again(
    device: Path,
    server: HttpScript,
    own: HttpAuthority,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    when: str,
) -> None:
    """The power goes as a request is about to be sent, or when it was answered and the answer is lost."""
    from client_sdk.http.authority import AuthorityClient
    from client_sdk.http.exchange import Exchange

    with FileStorage(device) as storage:
        storage.keep(lambda _: MARKS)
    owner, name = (Exchange, "send") if where.startswith("/v1/devices") else (AuthorityClient, "leave")
    genuine = getattr(owner, name)

    def interrupted(*given: object) -> object:
        if when == "after":
            genuine(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        assert quorate("device", "leave", "--folder", "d1") == 130
    assert read_record(device) is not None
    assert quorate("device", "leave", "--folder", "d1") == 0
    check_left(device, server, own)


def test_leaving_in_the_middle_of_a_rotation_leaves_no_valid_key(
    device: Path, server: HttpScript, own: HttpAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority had answered, and the device did not know: its new key would have stayed certified."""
    from client_sdk.http.authority import AuthorityClient

    genuine = AuthorityClient.rotate

    def lost(*given: object) -> object:
        genuine(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AuthorityClient, "rotate", lost)
        assert quorate("device", "rotate", "--folder", "d1") == 130
    assert quorate("device", "leave", "--folder", "d1") == 0
    assert len(own.served_now().revoked) == 2
    assert server.script.known == {}
    assert read_record(device) is None


@pytest.mark.parametrize("rotating", [False, True])
def test_a_device_that_an_operator_revoked_can_leave(
    device: Path, own: HttpAuthority, capsys: pytest.CaptureFixture[str], rotating: bool
) -> None:
    (holder,) = own.holders
    own.at = int(own.now())
    own.revoke(holder)
    if rotating:
        with FileStorage(device) as storage:
            record = storage.load()
            assert record is not None
            storage.save(record.changed(next_key_seed="33" * 32))
    assert quorate("device", "leave", "--folder", "d1") == 0
    assert read_record(device) is None


def test_leaving_in_the_middle_of_a_rotation_does_not_wait_for_the_authority(
    device: Path, own: HttpAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileStorage(device) as storage:
        record = storage.load()
        assert record is not None
        storage.save(record.changed(next_key_seed="33" * 32))
    own.interfere = lambda path: (_ for _ in ()).throw(problem("busy", "The authority restarts."))
    assert quorate("device", "leave", "--folder", "d1") == 1
    assert capsys.readouterr().err.startswith("Error: The authority restarts. Nothing was deleted here")
    assert read_record(device) == record.changed(next_key_seed="33" * 32)


def test_where_one_of_both_cannot_be_told_nothing_is_deleted(
    device: Path,
    server: HttpScript,
    own: HttpAuthority,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client_sdk.http.authority.TRIES", 1)
    own.interfere = lambda path: (_ for _ in ()).throw(problem("busy", "The authority restarts."))
    assert quorate("device", "leave", "--folder", "d1") == 1
    assert capsys.readouterr().err.startswith(
        "Error: The authority restarts. Nothing was deleted here; leave again later"
    )
    assert read_record(device) is not None
    own.interfere = lambda path: None
    server.close()
    assert quorate("device", "leave", "--folder", "d1") == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert quorate("device", "leave", "--folder", "d1", "--without-coordinator") == 0
    assert "all that it had, since it was not told" in capsys.readouterr().out
    assert read_record(device) is None


def test_after_leaving_a_new_token_makes_a_new_device_that_remembers_what_it_signed(
    device: Path, server: HttpScript, own: HttpAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileStorage(device) as storage:
        storage.keep(lambda _: MARKS)
    first = shown(capsys)["id"]
    assert quorate("device", "leave", "--folder", "d1") == 0
    take_part(server, "--token-file", token_file(own.text))
    assert shown(capsys)["id"] != first
    with FileStorage(device) as storage:
        assert storage.load_secure() == MARKS
    assert len(read_history(device)) == 2
