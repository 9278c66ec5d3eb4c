"""A head of the audit that was written down elsewhere names what the rows cannot show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk.identity import DeviceKey
from coordinator.cli import app
from coordinator.datafolder import AUDIT_KEY_FILE
from coordinator.key_file import made_or_read
from coordinator.store.chain import AuditHead, BadAuditHead, signed
from tests.coordinator.store import rows
from tests.coordinator.verify.audit_world import LAST, checked, cut, forged, goes_on, head_of, written
from tests.coordinator.verify.history import doctored


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once; each test has a copy."""
    return written(tmp_path_factory.mktemp("played"))


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "data"))


def test_a_cut_audit_lacks_the_head_that_was_written_down(folder: Path) -> None:
    head = head_of(folder)
    with doctored(folder) as doctor:
        cut(doctor)
    assert checked(folder) == [], "the rows alone cannot show it"
    assert checked(folder, head) == ["it ends with row 4, before the head of row 6 that was written down: it was cut"]
    goes_on(folder, 5)
    assert checked(folder) == []
    assert checked(folder, head) == [
        "row 6 has another link than the head of row 6 that was written down: it was computed anew"
    ]


def test_an_audit_rewritten_with_the_key_lacks_the_head_that_was_written_down(folder: Path) -> None:
    """Who has the database and the key can forge everything but what is elsewhere."""
    head = head_of(folder)
    with doctored(folder) as doctor:
        doctor.sql("UPDATE audit SET by = 'paul' WHERE number = 2")
        forged(doctor, 1, made_or_read(folder / AUDIT_KEY_FILE))
    assert checked(folder) == []
    assert checked(folder, head) == [
        "row 6 has another link than the head of row 6 that was written down: it was computed anew"
    ]


def test_a_head_of_another_audit_is_named(folder: Path) -> None:
    row = rows.audit("other", link=head_of(folder).link)
    other = AuditHead.of(LAST, signed(LAST, row, DeviceKey.create()))
    (wrong,) = checked(folder, other)
    assert wrong.endswith("a key that was not given")


def test_each_form_of_head_is_taken_once_and_an_altered_one_is_refused(folder: Path) -> None:
    text = str(head_of(folder))
    assert AuditHead.parse(text) == head_of(folder)
    parts = text.split(":")
    altered = [[*parts[:place], other, *parts[place + 1 :]] for place, other in [(1, "5"), (2, "0" * 64), (3, "1.5")]]
    for changed in [*altered, [*parts[:4], DeviceKey.create().public_hex, parts[5]]]:
        with pytest.raises(BadAuditHead, match="was altered"):
            AuditHead.parse(":".join(changed))
    unlike = [":".join(["audit", count, *parts[2:]]) for count in ("06", "-6", "0", "", "9" * 19 + "9")]
    for bad in (
        text.upper(),
        text + ":",
        text[:-2],
        *unlike,
        "audit:6",
        "audit:6:x:1.0:y:z",
        "",
        text.replace(":", "::"),
    ):
        with pytest.raises(BadAuditHead, match="is not audit:COUNT:"):
            AuditHead.parse(bad)
    assert AuditHead.parse(f" {text}\n") == head_of(folder), "as a line of a file"


# ---------------------------------------------------------------- the command


def test_command_takes_keys_and_heads(folder: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
        return result.exit_code, result.output

    code, output = run()
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("the audit ends at ")]
    head = line.removeprefix("the audit ends at ")
    file = tmp_path / "heads.txt"
    file.write_text(f"{head}\n\n" + json.dumps({"count": LAST, "head": head}) + '\n{"runs": 2}\n')
    for given in (head, str(file)):
        assert run("--head", given)[0] == 0
    public = made_or_read(folder / AUDIT_KEY_FILE).public_hex
    assert run("--audit-key", public)[0] == 0
    assert run("--audit-key", str(folder / AUDIT_KEY_FILE), "--audit-key", DeviceKey.create().public_hex)[0] == 0
    code, output = run("--audit-key", DeviceKey.create().public_hex)
    assert code == 1
    assert "invariant audit: row 1 is signed by" in output
    with doctored(folder) as doctor:
        cut(doctor)
    assert run()[0] == 0
    code, output = run("--head", str(file), "--json")
    assert code == 1
    assert '"invariant":"audit","run":"","round":0,"what":"it ends with row 4' in output
    assert '{"runs":2,"wrong":2,"blobs":false,"heads":2}' in output


def test_command_refuses_what_is_no_head_and_no_key(folder: Path, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for arguments, says in [
        (["--head", str(head_of(folder)).replace(":6:", ":5:")], "was altered"),
        (["--head", "audit:6:x:1.0:y:z"], "audit:COUNT"),
        (["--head", str(empty)], "cannot be read"),
        (["--head", str(binary)], "cannot be read"),
        (["--head", str(tmp_path / "nowhere")], "RUN:SEQ:LINK"),
        (["--audit-key", "nowhere"], "--audit-key"),
        (["--audit-key", str(binary)], "has no Ed25519 key"),
    ]:
        result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
        assert result.exit_code == 1
        assert says in result.stderr
