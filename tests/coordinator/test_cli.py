"""The coordinator's commands against a real server, as a user types them: text, JSON, and errors in one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import cli
from client_sdk.protocol.operators import EventView, RoundView, RunView
from client_sdk.tensors import BF16, to_bytes
from coordinator.commands.runs import how_to_load
from tests.coordinator.service.conftest import Server, server
from tests.coordinator.service.devices import model_bytes
from tests.coordinator.service.test_rounds import until
from tests.coordinator.service.test_workers import Worker
from tests.coordinator.test_blocks import flip

__all__ = ["server"]

PLAN = """
name = "marks"

[task]
learner = "tests:marks"

[cohort]
select = 1
goal = 1

[finish]
rounds = 2
"""


class Quorate:
    """Runs ``quorate`` in a folder of its own: in this process, since a new one takes most of a second to import it."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self.environment = {"QUORATE_URL": server.url}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in self.environment.items():
                patch.setenv(name, value)
            try:
                cli.main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def run_in_a_process(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "client_sdk.cli", *words]
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)

    def text(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *words: str) -> list:
        return [json.loads(line) for line in self.text(*words, "--json").splitlines()]

    def error(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 1
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert done.stderr.startswith("Error: ")
        return done.stderr.strip()


@pytest.fixture(scope="module")
def quorate(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Quorate:
    folder = tmp_path_factory.mktemp("operator")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "model.safetensors").write_bytes(model_bytes()[0])
    return Quorate(server, folder)


@pytest.mark.slow
def test_a_run_from_its_plan_to_its_checkpoint(server: Server, quorate: Quorate) -> None:
    (created,) = quorate.json("run", "create", "plan.toml", "--init", "model.safetensors")
    assert RunView.model_validate(created).origin == "model.safetensors"
    run = created["run"]
    device = server.device("marks")
    for _ in range(2):
        work = device.wait_for_work()
        device.put(work, device.body(work)).raise_for_status()
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["status"] == "finished")

    assert "finished" in quorate.text("status")
    assert "2 of 2 committed" in quorate.text("status", run)
    (shown,) = quorate.json("run", "show", run)
    view = RunView.model_validate(shown)
    (listed,) = quorate.json("run", "list")
    assert view in [RunView.model_validate(row) for row in listed]
    (rows,) = quorate.json("rounds", run)
    assert [RoundView.model_validate(row).status for row in rows] == ["committed", "committed"]
    assert quorate.text("rounds", run).count("committed") == 2
    assert [RoundView.model_validate(row).authority for row in rows] == ["inside", "inside"]
    for words in (("rounds", run), ("status", run), ("status",)):
        assert "so it could make devices up" in quorate.text(*words)
    log = [EventView.model_validate(row) for row in quorate.json("events", run)]
    assert [event.seq for event in log] == list(range(1, view.seq + 1))
    followed = quorate.json("events", run, "--follow", "--after", str(view.seq - 1))
    assert [row["seq"] for row in followed] == [view.seq]
    (fleet,) = quorate.json("devices")
    assert device.id in {row["device"] for row in fleet}
    assert device.id in quorate.text("devices")
    assert {row["device"]: row["rounds_joined"] for row in fleet}[device.id] == 2
    (matching,) = quorate.json("devices", "--match", device.id[:12])
    assert device.id in {row["device"] for row in matching}
    assert quorate.json("devices", "--state", "left") == [[]]
    assert quorate.text("devices", "--class", "phone").strip() == "No device is so."
    (heard,) = quorate.json("devices", "--run", run)
    assert {row["device"]: row["counted"] for row in heard["page"]}[device.id] == 2
    told = quorate.text("devices", "--run", run)
    assert device.id in told
    never = len(heard["page"]) - 1
    assert told.splitlines()[-1] == f"From round 1 on, {never} of {len(heard['page'])} devices never counted."
    assert "leave out --state, --class and --match" in quorate.error("devices", "--run", run, "--state", "away")

    (got,) = quorate.json("checkpoint", "get", run, "-o", "final.safetensors")
    assert got["digest"] == view.checkpoint
    assert hashlib.sha256((quorate.folder / "final.safetensors").read_bytes()).hexdigest() == view.checkpoint
    quorate.text("checkpoint", "get", run, "--version", "0", "-o", "first.safetensors")
    final = (quorate.folder / "final.safetensors").read_bytes()
    assert "final.safetensors exists; --force" in quorate.error(
        "checkpoint", "get", run, "--version", "0", "-o", "final.safetensors"
    )
    assert (quorate.folder / "final.safetensors").read_bytes() == final
    quorate.text("checkpoint", "get", run, "--version", "0", "-o", "final.safetensors", "--force")
    assert (quorate.folder / "final.safetensors").read_bytes() != final
    assert "is a folder" in quorate.error("checkpoint", "get", run, "-o", ".")
    assert "no folder nowhere" in quorate.error("checkpoint", "get", run, "-o", "nowhere/x.safetensors")
    assert (quorate.folder / "first.safetensors").read_bytes() == model_bytes()[0]
    assert view.checkpoint in quorate.text("checkpoint", "list", run)


def test_an_upload_and_the_status_say_that_they_repair_a_damaged_checkpoint(server: Server, quorate: Quorate) -> None:
    body = to_bytes({"marks": np.full(8, 0.25, np.float32)})
    (quorate.folder / "quarter.safetensors").write_bytes(body)
    (quorate.folder / "quarter.toml").write_text(PLAN.replace("tests:marks", "tests:quarter"))  # no device offers it
    create = ("run", "create", "quarter.toml", "--init", "quarter.safetensors")
    assert "damaged" not in quorate.text(*create)
    digest = hashlib.sha256(body).hexdigest()
    flip(server.folder / "blobs" / digest[:2] / digest, len(body) - 1)
    assert "had a damaged copy of this checkpoint; it is repaired" in quorate.text(*create)
    assert f"repaired    {digest}" in quorate.text("status", quorate.json(*create)[0]["run"])


@pytest.mark.slow
def test_a_run_is_paused_resumed_and_stopped(quorate: Quorate) -> None:
    run = quorate.json("run", "create", "plan.toml", "--init", "model.safetensors")[0]["run"]
    assert "paused" in quorate.text("run", "pause", run)
    assert quorate.json("run", "resume", run)[0]["status"] == "running"
    assert "is not exhausted" in quorate.error("run", "advance", run, "--by", "olga")
    not_barred = f"device phone-7 is not barred from run {run}"
    assert not_barred in quorate.error("run", "unbar", run, "phone-7", "--by", "olga")
    assert "there is no run" in quorate.error("run", "unbar", "nowhere", "phone-7", "--by", "olga")
    assert "stopped" in quorate.text("run", "stop", run)
    assert quorate.text("run", "rename", run, "digits, larger cohort").strip() == (
        f"Run {run} is shown as digits, larger cohort."
    )
    assert f"{run} (digits, larger cohort)" in " ".join(quorate.text("run", "list").split())
    assert f"{run} (digits, larger cohort) is stopped" in quorate.text("run", "show", run)
    assert quorate.json("run", "rename", run, "a\nb\u202e")[0]["name"] == "a b\\u202e", "on one line"
    assert "at most 64" in quorate.error("run", "rename", run, "x" * 65)


@pytest.mark.slow
def test_privacy_ledgers_are_created_shown_and_opened_to_devices_of_others(server: Server, quorate: Quorate) -> None:
    ledger = ("privacy", "ledger")
    assert "No run has lost anything yet" in quorate.text(*ledger, "show")
    assert 'ledger = "phones"' in quorate.text(*ledger, "create", "phones", "--epsilon", "8", "--delta", "1e-6")
    again = quorate.error(*ledger, "create", "phones", "--epsilon", "9", "--delta", "1e-6")
    assert "there is a privacy ledger phones already, and budgets stay" in again
    for wrong in (("Phones", "8", "1e-6"), ("tablets", "0", "1e-6"), ("tablets", "8", "1")):
        assert quorate.error(*ledger, "create", wrong[0], "--epsilon", wrong[1], "--delta", wrong[2])
    private = 'weighting = "equal"\n[privacy]\nclip = 1.0\nnoise = 4.0\ndelta = 1e-6\n'
    text = PLAN.replace("goal = 1", "goal = 1\nmost_rounds = 2") + f"[aggregation]\n{private}"
    (quorate.folder / "private.toml").write_text(text)
    run = quorate.json("run", "create", "private.toml", "--init", "model.safetensors")[0]["run"]
    why = ("--because", "a trial")
    assert "may take part" in quorate.text(*ledger, "allow", "phones", "--spent-in", f"run:{run}", *why)
    assert "already" in quorate.error(*ledger, "allow", "phones", "--spent-in", f"run:{run}", *why)
    assert "there is no privacy ledger old" in quorate.error(*ledger, "allow", "phones", "--spent-in", "old", *why)
    assert "is one ledger" in quorate.error(*ledger, "allow", "phones", "--spent-in", "phones", *why)
    shown = quorate.text(*ledger, "show", "phones")
    assert "phones: epsilon 0 of 8 at delta 1e-06" in shown
    assert f"allowed devices of run:{run} on" in shown
    assert "a trial" in shown
    assert {row["ledger"] for row in quorate.json(*ledger, "show")[0]} == {"phones", f"run:{run}"}
    assert "there is no privacy ledger nothing" in quorate.error(*ledger, "show", "nothing")
    (quorate.folder / "other.toml").write_text(text + 'ledger = "fones"\n')
    assert "did you mean phones?" in quorate.error("run", "create", "other.toml", "--init", "model.safetensors")
    assert "room for 2 more of these rounds" in " ".join(quorate.text("status", run).split())
    rows = [row["action"] for row in quorate.json("audit")[0]]
    assert rows.count("ledger.create done") == rows.count("ledger.allow done") == 1


@pytest.mark.slow
def test_scores_are_listed(server: Server, quorate: Quorate) -> None:
    run = quorate.json("run", "create", "plan.toml", "--init", "model.safetensors")[0]["run"]
    assert "quorate evaluate" in quorate.text("metrics", run)
    digest = server.http.get(f"/v1/runs/{run}").json()["checkpoint"]
    report = {"version": 0, "digest": digest, "score": {"examples": 9, "metrics": {"accuracy": 0.25}}}
    server.http.post(f"/v1/runs/{run}/metrics", json=report).raise_for_status()
    assert quorate.json("metrics", run)[0][0]["value"] == 0.25
    assert "0.25" in quorate.text("metrics", run)


@pytest.mark.slow
def test_rounds_show_their_kind_and_why(server: Server, quorate: Quorate) -> None:
    section = '[datacenter]\ndata = "proxy"\npatience = 1\n'
    (quorate.folder / "center.toml").write_text(PLAN.replace("goal = 1", "goal = 1\nselect_s = 0.05") + section)
    run = quorate.json("run", "create", "center.toml", "--init", "model.safetensors")[0]["run"]
    ends_at = time.monotonic() + 10
    while server.http.get(f"/v1/runs/{run}").json()["phase"] != "leasing":
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    assert "no worker has it yet" in " ".join(quorate.text("rounds", run).split())
    worker = Worker(server, "cluster 2")
    name = worker.id
    assert worker.poll(20, learners={"tests:marks": "1"}).json()["kind"] == "lease"
    shown = " ".join(quorate.text("rounds", run).split())
    assert "federated" in shown
    assert "datacenter" in shown
    assert "1 federated round in a row had to be abandoned" in shown
    assert f"{name} (lease 1): step 0" in shown
    assert "no worker has it yet" not in shown
    assert "round 2 is training, in the datacenter" in quorate.text("status", run)
    assert [row["state"] for row in quorate.json("worker", "list")[0] if row["worker"] == name] == ["leased"]
    listed = quorate.text("worker", "list")
    assert "cluster 2" in listed
    assert quorate.text("worker", "revoke", name) == f"{name} is revoked.\n"
    assert "no worker 'w0'" in quorate.error("worker", "revoke", "w0")


@pytest.mark.slow
def test_a_run_that_stands_still_says_why_in_one_line(server: Server, quorate: Quorate) -> None:
    run = server.create_run("still")
    device = server.device("still", 3)
    reason = "The loss is NaN\n\x1b[2J at this learning rate."
    device.withdraw(device.wait_for_work(), reason).raise_for_status()
    shown = "1 device withdrew: The loss is NaN \\x1b[2J at this learning rate"
    line = f"the last round was abandoned, because 1 of 1 devices withdrew; 0 are left and the quorum is 1. {shown}"
    assert f"  stalled     {line}\n" in quorate.text("status", run)
    assert line in " ".join(quorate.text("status").split())
    assert shown in " ".join(quorate.text("rounds", run).split())
    assert quorate.json("rounds", run)[0][0]["departures"] == shown
    assert "\x1b" not in quorate.text("events", run)
    quorate.text("run", "stop", run)


@pytest.mark.slow
def test_errors_are_one_sentence(quorate: Quorate) -> None:
    assert "nobody" in quorate.error("status", "nobody")
    assert "missing.toml" in quorate.error("run", "create", "missing.toml", "--init", "model.safetensors")
    assert "none.safetensors" in quorate.error("run", "create", "plan.toml", "--init", "none.safetensors")
    assert "not both" in quorate.error("run", "create", "plan.toml", "--init", "model.safetensors", "--learner", "a:b")
    (quorate.folder / "strange.toml").write_text(PLAN.replace("tests:marks", "nobody:knows"))
    assert "nobody" in quorate.error("run", "create", "strange.toml")
    (quorate.folder / "broken.toml").write_text(PLAN.replace("goal = 1", "goal = 2"))
    assert "goal (2) is above select (1)" in quorate.error(
        "run", "create", "broken.toml", "--init", "model.safetensors"
    )
    run = quorate.json("run", "create", "plan.toml", "--init", "model.safetensors")[0]["run"]
    assert "no version 99" in quorate.error("checkpoint", "get", run, "--version", "99", "-o", "x")
    assert "quorate serve" in quorate.error("status", "--url", "http://127.0.0.1:1")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run", "list", "--json"), ("status", "nobody"), ("run", "make")])
def test_a_process_of_its_own_prints_the_same_and_ends_with_the_same_code(
    quorate: Quorate, words: tuple[str, ...]
) -> None:
    one, other = quorate.run(*words), quorate.run_in_a_process(*words)
    while one.stdout != (again := quorate.run(*words)).stdout:  # the run has begun to say why it waits
        one, other = again, quorate.run_in_a_process(*words)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
    assert one.stdout or one.stderr.startswith("Error: ")


@pytest.mark.parametrize(
    "words",
    [
        ("serve",),
        ("run", "create"),
        ("run", "list"),
        ("run", "show"),
        ("run", "pause"),
        ("run", "resume"),
        ("run", "stop"),
        ("run", "rename"),
        ("run", "advance"),
        ("run", "unbar"),
        ("status",),
        ("rounds",),
        ("metrics",),
        ("devices",),
        ("events",),
        ("checkpoint", "list"),
        ("checkpoint", "get"),
        ("plan", "check"),
        ("worker", "list"),
        ("worker", "revoke"),
    ],
)
def test_every_command_has_help_with_an_example_and_json(words: tuple[str, ...]) -> None:
    from typer.testing import CliRunner

    from coordinator.cli import app

    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert f"quorate {' '.join(words)}" in " ".join(shown.output.split())
    assert "Example:" in shown.output
    assert "--json" in shown.output


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16])
def test_the_way_to_load_a_checkpoint_loads_it_in_a_bare_install(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    file = tmp_path / "my model.safetensors"
    tensors = {"w": np.zeros(3, dtype), "steps": np.array([1])}
    file.write_bytes(to_bytes(tensors))
    code = "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None\nimport client_sdk.tensors, pathlib\n"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}print({how_to_load(file)}['steps'])"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[1]\n"


# ------------------------------------------------------------ access


@pytest.mark.slow
def test_an_owner_gives_a_key_that_reads_one_run_and_takes_it_back(server: Server, tmp_path: Path) -> None:
    quorate = Quorate(server, tmp_path)
    server.create_run("lent")
    said = quorate.text("keys", "create", "--role", "viewer", "--scope", "lent", "--label", "a wall", "-o", "wall.key")
    assert "viewer lent, until " in said
    assert stat.S_IMODE((tmp_path / "wall.key").stat().st_mode) == 0o600
    text = (tmp_path / "wall.key").read_text().strip()
    assert text not in said
    lent = ("--key-file", "wall.key")
    assert "lent is running" in quorate.text("status", "lent", *lent)
    assert [view["run"] for view in json.loads(quorate.text("status", "--json", *lent))] == ["lent"]
    for words in (("run", "pause", "lent"), ("keys", "list"), ("audit",), ("worker", "revoke", "w1")):
        refused = quorate.run(*words, *lent)
        assert refused.returncode == 1
        assert "this needs the role" in refused.stderr
    key = text.split("_")[1]
    (row,) = (line for line in quorate.text("keys", "list").splitlines() if line.startswith(key))
    assert all(part in row for part in ("viewer", "lent", "a wall", "key:"))
    assert quorate.text("keys", "revoke", key) == f"{key} is revoked.\n"
    assert "was revoked" in quorate.run("status", "lent", *lent).stderr
    done = [line for line in quorate.text("audit").splitlines() if f"key={key}" in line]
    assert ["key.create done" in done[0], "key.revoke" in done[1], "key.revoke done" in done[2]] == [True] * len(done)
    (tmp_path / "heads").write_text(quorate.text("audit", "--head") + quorate.text("audit", "--head", "--json"))
    verified = quorate.text("verify", str(server.folder), "--head", "heads", "--json").splitlines()
    assert json.loads(verified[-1])["heads"] == 2
    again = quorate.run("keys", "create", "--role", "viewer", "-o", "wall.key")
    assert "wall.key exists" in again.stderr
    shown = json.loads(quorate.text("keys", "create", "--role", "owner", "--days", "1", "--json"))
    assert shown["text"].startswith(f"qk_{shown['key']}_")
    assert shown["text"] not in quorate.text("keys", "list", "--json")
