"""``quorate authority`` as an operator types it: text, JSON, and errors in one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import cli
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.secagg.consent import SecurePolicy
from client_sdk.secagg.origin import First, require_origin
from client_sdk.tensors import to_bytes
from coordinator.authority.answering import AuthorityAnswers
from coordinator.authority.folder import opened
from tests.coordinator.authority.world import NOW, URL, AuthorityWorld, Holder


def quorate(*words: str) -> tuple[int, str, str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(["authority", *words])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def lines(*words: str) -> list[Any]:
    code, out, err = quorate(*words, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (made,) = lines("init", "--url", URL, "--data", str(tmp_path / "authority"))
    assert made["url"] == URL
    return str(tmp_path / "authority")


def enrolled(folder: str, token: str, name: str = "phone") -> Holder:
    """A device that the folder's authority certifies at the time of the tests' clock."""
    with opened(Path(folder)) as (issuer, ledger):
        world = AuthorityWorld()
        world.answers = AuthorityAnswers(issuer, ledger)
        holder = Holder(world, name)
        holder.enrol(EnrolmentToken.parse(token), label="clinic")
    return holder


def test_a_token_names_the_authority_that_show_shows(folder: str) -> None:
    (shown,) = lines("show", "--data", folder)
    (made,) = lines("token", "--data", folder, "--uses", "3", "--expires", "12h")
    token = EnrolmentToken.parse(made["token"])
    assert (token.url, token.authority.hex()) == (URL, shown["sha256"])
    assert made["lasts_s"] == 12 * 3600
    code, out, _ = quorate("token", "--data", folder)
    assert code == 0
    assert EnrolmentToken.parse(out.strip()).authority.hex() == shown["sha256"]
    code, out, _ = quorate("show", "--data", folder)
    assert shown["public_key"] in out
    assert shown["sha256"] in out


def test_who_is_enrolled_is_listed_revoked_and_audited(folder: str) -> None:
    (made,) = lines("token", "--data", folder, "--expires", "365d", "--label", "clinics")
    phone = enrolled(folder, made["token"])
    (row,) = lines("devices", "--data", folder)
    assert (row["id"], row["state"], row["label"], row["key"]) == (phone.id, "valid", "clinic", phone.key_id.hex())
    assert phone.id in quorate("devices", "--data", folder)[1]
    (found,) = lines("revoke", phone.id, "--data", folder)
    assert found["list"] >= NOW // 2
    (row,) = lines("devices", "--data", folder)
    assert (row["state"], row["key"]) == ("revoked", None)
    me = f"operator uid {os.getuid()}"
    happened = [(entry["who"], entry["event"], entry["what"]) for entry in lines("audit", "--data", folder)]
    assert happened == [
        (me, "token", "for 1 devices clinics"),
        (f"device {phone.id}", "enrolled", phone.id),
        (me, "revoked", phone.id),
    ]
    assert "revoked" in quorate("audit", "--data", folder, "--last", "1")[1]


def test_a_token_is_for_workers_where_that_is_said(folder: str) -> None:
    (made,) = lines("token", "--data", folder, "--worker", "--expires", "365d")
    assert enrolled(folder, made["token"], "cluster").id.startswith("w")


def test_a_token_can_be_written_into_a_new_file_of_its_owner(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "clinics.token"
    code, out, err = quorate("token", "--data", folder, "--output", str(file))
    assert (code, out, err) == (0, f"The token is in {file}: give it by --token-file.\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert EnrolmentToken.parse(text.strip()).url == URL
    made = [entry for entry in lines("audit", "--data", folder) if entry["event"] == "token"]
    for name in (str(file), str(tmp_path / "nowhere" / "t")):
        code, out, err = quorate("token", "--data", folder, "--output", name)
        assert (code, out, err) == (1, "", f"Error: {name} exists, or has no folder: name a new file.\n")
    assert file.read_text() == text
    assert [entry for entry in lines("audit", "--data", folder) if entry["event"] == "token"] == made, "none was made"
    (shown,) = lines("token", "--data", folder, "-o", str(tmp_path / "other"), "--uses", "2")
    assert shown == {"token": None, "file": str(tmp_path / "other"), "uses": 2, "lasts_s": 86_400}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("init", "--url", "http://authority.example"), "https only"),
        (("token", "--expires", "soon"), "30m, 12h or 7d"),
        (("token", "--label", "two\nlines"), "64 printable"),
        (("revoke", "d0"), "No valid key has the id d0"),
        (("serve", "--proof", "clinic:oidc"), "no enrolment proof|No installed package"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(folder: str, words: tuple[str, ...], sentence: str) -> None:
    where = folder + "-other" if words[0] == "init" else folder
    code, out, err = quorate(*words, "--data", where)
    assert (code, out) == (1, "")
    assert len(err.strip().splitlines()) == 1
    assert any(part in err for part in sentence.split("|")), err


def test_a_folder_without_an_authority_is_said_so(tmp_path: Path) -> None:
    for words in (("show",), ("devices",), ("token",), ("serve",)):
        code, _, err = quorate(*words, "--data", str(tmp_path))
        assert code == 1
        assert "quorate authority init" in err


def test_a_signature_under_a_first_model_is_of_its_tensors_alone(folder: str, tmp_path: Path) -> None:
    file, again = tmp_path / "model.safetensors", tmp_path / "again.safetensors"
    model = {"w": np.arange(6, dtype=np.float32), "v": np.ones(2, np.float32)}
    file.write_bytes(to_bytes(model))
    again.write_bytes(to_bytes(model, {"about": "another file of the same tensors"}))
    (shown,), (made,) = lines("show", "--data", folder), lines("sign", str(file), "--data", folder)
    assert lines("sign", str(again), "--data", folder) == [made]
    assert quorate("sign", str(file), "--data", folder)[1] == made["signature"] + "\n"
    first = First(signed=bytes.fromhex(made["model"]))
    signature, pinned = bytes.fromhex(made["signature"]), bytes.fromhex(shown["public_key"])
    require_origin(first, signature, SecurePolicy(origins="signed"), pinned)
    file.write_bytes(b"no model")
    code, out, err = quorate("sign", str(file), "--data", folder)
    assert (code, out) == (1, "")
    assert "is not a safetensors file that can be signed" in err


def test_a_signature_under_a_later_model_is_of_its_run_and_version(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(to_bytes({"w": np.arange(6, dtype=np.float32)}))
    later = ("--run", "mnist", "--version", "3")
    (shown,), (made,) = lines("show", "--data", folder), lines("sign", str(file), *later, "--data", folder)
    first = First(version=3, signed=bytes.fromhex(made["model"]))
    signature, pinned = bytes.fromhex(made["signature"]), bytes.fromhex(shown["public_key"])
    require_origin(first, signature, SecurePolicy(), pinned, "mnist")
    for words in (later[:2], later[2:]):
        code, out, err = quorate("sign", str(file), *words, "--data", folder)
        assert (code, out) == (1, "")
        assert "--run and --version go together" in err
