"""The word ``quorate``: its own commands against a real socket, the rooms' commands with and without the rooms."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from client_sdk import cli, terminal
from client_sdk.problems import problem
from client_sdk.protocol import CheckIn, Policy, SecureBounds, Task
from client_sdk.secagg.memory import Memory
from client_sdk.storage import FileStorage, read_history
from tests.client_sdk.http_script import HttpScript, script, serving
from tests.client_sdk.scripted import TOKEN

LEARNER = "my_learner_of_tests:train"


@pytest.fixture(autouse=True)
def _a_fresh_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUORATE_URL", "QUORATE_ENROLMENT_TOKEN", "QUORATE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cli, "_rooms", {})
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERMINAL_WIDTH", "120")


def quorate(*arguments: str) -> int:
    """Exit code of the command, run in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a learner."""
    (tmp_path / "my_learner_of_tests.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from client_sdk import Update

        __version__ = "0.1"

        def train(model, data, task):
            return Update({"w": np.ones_like(model["w"])}, examples=len(data))
        """)
    )
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 2), np.float32), y=np.zeros(10, np.int64))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def device(server: HttpScript, *more: str) -> list[str]:
    return ["device", "--url", server.url, "--data", "mine.npz", "--learner", LEARNER, "--folder", "d1", *more]


def test_a_device_takes_part_and_remembers(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(script(rounds=2, task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--token", TOKEN, "--rounds", "1", "--shard", "2/3")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"This device has 3 examples and talks to {server.url}. Ctrl-C stops it."
        assert lines[1] == "Enrolled as d0."
        assert f"run-1 round 1: Selected to train {LEARNER}; 600 s to report." in lines
        assert "run-1 round 1: The update was accepted." in lines
        assert lines[-1] == "Stopped after 1 round. 'quorate device history' lists them."
        assert quorate(*device(server, "--rounds", "1", "--json")) == 0
        kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
        assert kinds == ["waiting", "assigned", "training", "trained", "receipt", "stopped"]
    assert quorate("device", "history", "--folder", "d1") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["run", "round", "learner", "result", "update", "weight", "seconds", "reason"]
    assert [row.split()[:4] for row in table[1:]] == [["run-1", str(n), LEARNER, "receipt"] for n in (1, 2)]
    assert quorate("device", "history", "--folder", "d1", "--json") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["round"] for entry in entries] == [1, 2]
    assert server.script.enrolments == 1


def test_address_and_token_come_from_the_environment_too(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(script(task=Task(learner=LEARNER))) as server:
        monkeypatch.setenv("QUORATE_URL", server.url)
        monkeypatch.setenv("QUORATE_ENROLMENT_TOKEN", TOKEN)
        assert quorate("device", "--data", "mine.npz", "--learner", LEARNER, "--rounds", "1") == 0
    assert [entry.result for entry in read_history("quorate-device")] == ["receipt"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--data", "nowhere.npz"], "There is no file nowhere.npz."),
        (["--shard", "9/3"], "'9/3' is not a share of the data; 3/400 means the third of 400 equal shares."),
        (["--learner", "nothing_here:train"], "needs the module nothing_here, which is not installed."),
        (["--url", "localhost:8470"], "'localhost:8470' is not a coordinator's URL; it looks like http://"),
        (["--allow", "no colon"], "'no colon' is not a learner's name; it looks like package:name."),
        ([], "This device is new: give it an enrolment token with --enrolment-token"),
        (["--token", "guess"], "This enrolment token is not valid."),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    workplace: Path, capsys: pytest.CaptureFixture[str], changes: list[str], sentence: str
) -> None:
    with serving(script(task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--rounds", "1", *changes)) == 1
    told = capsys.readouterr()
    assert told.err.startswith("Error: ")
    assert sentence in told.err
    assert len(told.err.splitlines()) == 1
    assert "Traceback" not in told.err


def test_a_device_without_data_is_told_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device") == 1
    assert "--data" in capsys.readouterr().err


def test_a_device_too_old_ends_with_one_sentence(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator = script(2, task=Task(learner=LEARNER))
    coordinator.interfere = lambda method, path: problem("protocol-version", "Upgrade this device's quorate.")
    with serving(coordinator) as server:
        assert quorate(*device(server, "--token", TOKEN)) == 1
    assert capsys.readouterr().err == "Error: Upgrade this device's quorate.\n"


def test_two_devices_in_one_folder_are_refused(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from client_sdk.storage import FileStorage

    with serving(script()) as server, FileStorage("d1"):
        assert quorate(*device(server, "--token", TOKEN)) == 1
    assert "in use by another device" in capsys.readouterr().err


def test_the_owner_lets_plain_plans_in_again(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileStorage(workplace / "d1") as storage:
        storage.save_secure(Memory(learners=frozenset({LEARNER, "other:net"})))
    with serving(script(task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--token", TOKEN, "--rounds", "1")) == 0
        assert f"This device has joined secure rounds of {LEARNER}; its owner alone" in capsys.readouterr().out
    assert quorate("device", "allow-plain", LEARNER, "--folder", "d1") == 0
    assert capsys.readouterr().out == (
        f"This device takes plain plans for {LEARNER} again, until it joins another secure round of it.\n"
    )
    with FileStorage(workplace / "d1") as storage:
        assert storage.load_secure().learners == {"other:net"}
    assert quorate("device", "allow-plain", LEARNER, "--folder", "d1") == 1
    assert capsys.readouterr().err == (
        f"Error: This device has joined no secure round of {LEARNER}; it has of: other:net.\n"
    )
    assert quorate("device", "allow-plain", LEARNER, "--folder", "nobody") == 1
    assert "There is no device in nobody" in capsys.readouterr().err


def test_bounds_on_secure_rounds_are_sent_where_they_are_set(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Policy] = []
    coordinator = script(2, task=Task(learner=LEARNER))
    genuine = coordinator.handle

    def listening(method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/checkins":
            asked.append(CheckIn.model_validate_json(body).policy)
        return genuine(method, path, token, body)

    coordinator.handle = listening  # type: ignore[method-assign]
    with serving(coordinator) as server:
        assert quorate(*device(server, "--token", TOKEN, "--rounds", "1")) == 0
        monkeypatch.setenv("QUORATE_SECURE_ONLY", "1")
        more = ["--smallest-cohort", "100", "--largest-norm", "2.5", "--largest-weight-cap", "50", "--strict-only"]
        assert quorate(*device(server, "--rounds", "1", *more)) == 0
    assert asked[0] == Policy()
    bounds = SecureBounds(smallest_cohort=100, largest_norm=2.5, largest_weight_cap=50, strict_only=True)
    assert asked[-1] == Policy(secure_only=True, secure=bounds)


def test_history_of_no_device_is_told(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device", "history", "--folder", "nobody") == 1
    assert capsys.readouterr().err == "Error: There is no device in nobody; name its folder with --folder.\n"


@pytest.mark.slow
def test_ctrl_c_ends_a_waiting_device_cleanly(workplace: Path) -> None:
    with serving(script(rounds=0)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_sdk.cli", *device(server, "--token", TOKEN)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(workplace)},
        )
        try:
            assert server.polling.wait(30)
            process.send_signal(signal.SIGINT)
            started = time.monotonic()
            out, err = process.communicate(timeout=20)
            assert time.monotonic() - started < 3
        finally:
            process.kill()
    assert process.returncode == 0
    assert out.splitlines()[-1].startswith("Stopped after 0 rounds.")
    assert err == "Stopping; once more ends it at once.\n"


# ------------------------------------------------------------ help and usage


@pytest.mark.parametrize("command", [["device"], ["device", "history"], ["evaluate"], []])
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate(*command, "--help") == 0
    assert "Example: quorate" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["device", "--no-such-option"], "No such option '--no-such-option'. See 'quorate device --help'."),
        (["device", "--rounds", "0"], "Invalid value for '--rounds': 0 is not in the range x>=1. See 'quorate device"),
        (["no-such-command"], "No such command 'no-such-command'. See 'quorate --help'."),
        (["evaluate"], "Missing argument 'RUN'. See 'quorate evaluate --help'."),
    ],
)
def test_wrong_usage_exits_with_2_and_one_sentence(
    command: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate(*command) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"Error: {sentence}")
    assert len(told.splitlines()) == 1


def test_the_word_alone_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate() == 2
    told = capsys.readouterr()
    assert "Example: quorate serve" in " ".join((told.out + told.err).split())
    assert "Error" not in told.err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("--version") == 0
    assert capsys.readouterr().out == f"quorate {version('quorate')}\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = "from client_sdk.terminal import say, spoken\n@spoken\ndef much():\n  while True: say('x' * 9999)\nmuch()"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as much:
        assert much.stdout is not None
        assert much.stderr is not None
        much.stdout.readline()
        much.stdout.close()
        told = much.stderr.read().decode()
    assert "Broken" not in told


def test_a_learner_that_fails_is_told_without_a_traceback(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "burning.py").write_text("def train(model, data, task):\n    raise RuntimeError('burnt')\n")
    with serving(script(task=Task(learner="burning:train"))) as server:
        assert quorate(*device(server, "--token", TOKEN, "--rounds", "1", "--learner", "burning:train")) == 0
    told = capfd.readouterr()
    assert "Withdrew: RuntimeError: burnt" in told.out
    assert "Traceback" not in told.out + told.err
    assert told.err.splitlines()[0].endswith("QUORATE_DEBUG=1 shows where")


# ------------------------------------------------------------ the other rooms


def rooms(monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Make these entry points the installed rooms."""
    found = [EntryPoint(name, value, cli.GROUP) for name, value in modules.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in found if name is None or entry.name == name]

    monkeypatch.setattr(cli, "entry_points", entry_points)


@pytest.mark.parametrize(("room", "command"), [(room, name) for room, names in cli.ROOMS.items() for name in names])
def test_commands_of_rooms_that_are_not_installed_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room: str, command: str
) -> None:
    rooms(monkeypatch)
    assert quorate(command, "create", "--port", "3") == 1
    told = capsys.readouterr().err
    assert told == f"Error: quorate {command} is not installed here: pip install 'quorate[{room}]'\n"
    assert quorate("--help") == 0
    assert re.search(rf"\b{command}\b", capsys.readouterr().out)


def test_a_room_that_lacks_a_package_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_without_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    rooms(monkeypatch, simulation="room_without_torch:app")
    assert quorate("demo") == 1
    told = capsys.readouterr().err
    assert "pip install 'quorate[simulation]'" in told
    assert "torch" in told


def test_a_rooms_commands_and_groups_stand_at_the_top(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_of_tests.py").write_text(
        textwrap.dedent("""
        import typer
        app = typer.Typer()
        sub = typer.Typer()

        @app.command()
        def serve(port: int = 1) -> None:
            print("serving on", port)

        @sub.command()
        def create() -> None:
            raise ValueError("the plan names no learner")

        @sub.command()
        def show() -> None:
            import fastapi_that_is_not_there
        app.add_typer(sub, name="run")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    rooms(monkeypatch, coordinator="room_of_tests:app")
    assert quorate("serve", "--port", "7") == 0
    assert capsys.readouterr().out == "serving on 7\n"
    assert quorate("run", "create") == 1
    assert capsys.readouterr().err == "Error: the plan names no learner\n"
    assert quorate("run", "show") == 1
    assert "fastapi_that_is_not_there" in capsys.readouterr().err


def test_a_broken_room_leaves_the_device_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_that_breaks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    rooms(monkeypatch, coordinator="room_that_breaks:app")
    assert quorate("--help") == 0
    told = capsys.readouterr()
    assert "device" in told.out
    assert "The commands of coordinator cannot be loaded" in told.err


def test_device_commands_import_no_other_room() -> None:
    code = (
        "import sys; from client_sdk import cli\n"
        "try: cli.main(['device', 'history', '--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'fastapi', 'sqlalchemy', 'flwr', 'coordinator', 'simulation'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# ------------------------------------------------------------ terminal


class NotAnErrorOfOurs(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (terminal.Failure("No."), "No."),
        (problem("late", "Too late."), "Too late."),
        (ValueError("a\nb"), "a b"),
        (FileNotFoundError(2, "No such file or directory", "plan.toml"), "No such file or directory: plan.toml."),
        (ModuleNotFoundError("x", name="sqlalchemy.orm"), "pip install 'quorate[coordinator]'"),
        (ModuleNotFoundError("x", name="strange"), "The Python module strange is not installed"),
        (NotAnErrorOfOurs("boom"), "A bug in quorate, please report it: NotAnErrorOfOurs: boom"),
    ],
)
def test_what_people_are_told(error: Exception, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    @terminal.spoken
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as end:
        command()
    assert end.value.exit_code == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.splitlines()) == 1


def test_with_debug_the_traceback_is_shown_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORATE_DEBUG", "1")

    @terminal.spoken
    def command() -> None:
        raise ValueError("no")

    with pytest.raises(typer.Exit):
        command()
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("Error: no\n")


def test_ctrl_c_exits_with_130() -> None:
    @terminal.spoken
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        command()
    assert end.value.exit_code == 130


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[Any]] = [["a", 1, None], ["long name", 0.123456, "x"]]
    terminal.say_table(["name", "value", "note"], rows)
    assert capsys.readouterr().out == "name       value   note\na          1       -\nlong name  0.1235  x\n"
    terminal.say_table(["name"], [])
    assert capsys.readouterr().out == "Nothing yet.\n"
    terminal.say_json([Task(learner="a:b"), {"n": 1}])
    (task, other) = json.loads(capsys.readouterr().out)
    assert (task["learner"], other) == ("a:b", {"n": 1})
