"""``quorate flower run`` as a user calls it: what it prints, how it ends, and what it says of faulty apps."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import forks
from tests.coordinator.service.conftest import Server
from tests.flower.folders import write_app
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEAD = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
"""
CLIENT = """
from time import sleep
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message: Message, context: Context) -> Message:
    if "hang" in message.content and context.node_config["partition-id"] == 1:
        sleep(3600)
    return Message(message.content, reply_to=message)
"""


def flower_run(app: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")} | variables
    return forks.run(["flower", "run", str(app), *options], timeout=500, env=environment)


def test_plain_lines_and_what_the_app_prints_goes_to_standard_error(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    print("hello from the app", context.run_config["word"])
    try:
        input("a number? ")
    except EOFError:
        print("nobody answers")
    nodes = list(grid.get_node_ids())
    records = RecordDict({"m": MetricRecord({"x": 1})})
    assert len(list(grid.send_and_receive([Message(records, node, "query", group_id="1") for node in nodes]))) == 2
"""
    )
    folder = write_app(tmp_path / "app", server=server, client=CLIENT, config={"word": "a"})
    done = flower_run(folder, "--simulation", "2", "--run", "trial", "--run-config", "word='b c'")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "The run trial of tests/tiny 1.2.0."
    assert lines[1].startswith("round 1, query: 2 of 2 replied, ")
    assert lines[2].startswith("Done: 1 rounds, 2 replies, 0 errors, ")
    assert len(lines) == 3
    assert "hello from the app b c" in done.stderr
    assert "nobody answers" in done.stderr


def test_app_that_raises_shows_its_own_frames_and_one_sentence(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    helper()

def helper():
    raise ValueError("too few layers")
"""
    )
    done = flower_run(write_app(tmp_path / "app", server=server), "--simulation", "1")
    assert done.returncode == 1
    assert "Traceback (the app's own frames, most recent call last):" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "Error: The ServerApp raised ValueError: too few layers (at server_app.py:13). Mend it, and start a new run."
    )
    assert "site-packages" not in done.stderr


def test_a_refusal_ends_the_command_and_it_says_what_can_become_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORATE_MAX_CHECKPOINT_BYTES", "4096")
    server_app = (
        HEAD
        + """
    context.state["large"] = MetricRecord({"x": [1.0] * 10_000})
"""
    )
    server = Server.start(tmp_path / "data")
    try:
        options = ("--run", "trial", "--coordinator", server.url)
        done = flower_run(write_app(tmp_path / "app", server=server_app), *options, QUORATE_API_KEY=server.key)
        assert done.returncode == 1
        *_, how, error = done.stderr.splitlines()
        assert how == (
            "Unless the run trial is over, --run trial goes on with it, and 'quorate flower stop trial' ends it."
        )
        assert error.startswith("Error: ")
        assert "4096" in error
        assert server.http.get("/v1/flower/runs/trial").json()["status"] == "running"
    finally:
        server.stop()


@on_day(0, of=3)
def test_client_app_that_hangs_does_not_hold_the_run_for_longer_than_the_timeout(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    nodes = list(grid.get_node_ids())
    records = RecordDict({"hang": MetricRecord({"x": 1})})
    replies = list(grid.send_and_receive([Message(records, node, "query", group_id="1") for node in nodes]))
    assert len(replies) == 2, replies
"""
    )
    folder = write_app(tmp_path / "app", server=server, client=CLIENT)
    done = flower_run(folder, "--simulation", "3", "--timeout", "20", "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["rounds"], last["replies"], last["errors"]) == (1, 2, 0)
    assert 20 <= last["seconds"] < 60


@on_day(1, of=3)
def test_hundred_nodes(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    nodes = list(grid.get_node_ids())
    assert len(nodes) == len(set(nodes)) == 100
    for group in "12":
        records = RecordDict({"m": MetricRecord({"x": 1})})
        replies = list(grid.send_and_receive([Message(records, node, "query", group_id=group) for node in nodes]))
        assert [reply.metadata.src_node_id for reply in replies] == nodes
"""
    )
    done = flower_run(write_app(tmp_path / "app", server=server, client=CLIENT), "--simulation", "100", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["replies"] == 200


@on_day(2, of=3)
def test_model_of_100_megabytes(tmp_path: Path) -> None:
    server = (
        "import numpy as np"
        + HEAD
        + """
    nodes = list(grid.get_node_ids())
    model = np.random.default_rng(0).random(12_500_000)
    records = RecordDict({"a": ArrayRecord([model])})
    replies = list(grid.send_and_receive([Message(records, node, "query", group_id="1") for node in nodes]))
    assert all(np.array_equal(reply.content["a"]["0"].numpy(), model) for reply in replies)
    assert len(replies) == 2
"""
    )
    done = flower_run(write_app(tmp_path / "app", server=server, client=CLIENT), "--simulation", "2", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--run-config", "rate=1"), "has no key 'rate' (it has none at all)"),
        (("--quorum", "1.5"), "--quorum: "),
        (("--coordinator", "http://127.0.0.1:9", "--run", "A B"), "run: should be up to 64 lower-case letters"),
    ],
)
def test_wrong_option_is_one_sentence(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = flower_run(write_app(tmp_path / "app"), *options)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert says in done.stderr
    assert done.stdout == ""


def test_folder_without_an_app_is_one_sentence(tmp_path: Path) -> None:
    done = flower_run(tmp_path, "--simulation", "2")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: There is no pyproject.toml in ")


def test_another_version_of_flwr_is_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other" / "flwr-1.43.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.43.0\n")
    (tmp_path / "other" / "flwr.py").write_text("raise SystemError('this flwr was imported')\n")
    done = flower_run(write_app(tmp_path / "app"), "--simulation", "1", PYTHONPATH=str(tmp_path / "other"))
    assert done.returncode == 1
    assert done.stderr == (
        "Error: flwr 1.43.0 is installed, and Quorate works with flwr 1.41 or 1.42: pip install 'quorate[flower]'\n"
    )
