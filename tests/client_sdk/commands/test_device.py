"""``quorate device`` against a real socket: it takes part, remembers, and says in one sentence what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client_sdk.device.storage import FileStorage, read_history
from client_sdk.protocol.devices import PrivacyTerms, Task
from client_sdk.protocol.problems import problem
from client_sdk.secagg.memory import Memory
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.commands.token_files import token_file
from tests.client_sdk.http.http_authority import shared
from tests.client_sdk.http.http_script import HttpScript, script, serving

ROOT = Path(__file__).parents[3]
LEARNER = "my_learner_of_tests:train"


def device(server: HttpScript, *more: str) -> list[str]:
    return ["device", "--url", server.url, "--data", "mine.npz", "--learner", LEARNER, "--folder", "d1", *more]


def test_a_device_takes_part_and_remembers(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(script(rounds=2, task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--token-file", token_file(), "--rounds", "1", "--shard", "2/3")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"d1: This device has 3 examples and talks to {server.url}. Ctrl-C stops it."
        assert re.fullmatch(
            r"d1: Enrolled as d[0-9a-f]{16}; the certificate is valid until 20..-..-.. ..:.. UTC\.", lines[1]
        )
        assert f"d1: run-1 round 1: Selected to train {LEARNER}; 600 s to report." in lines
        assert "d1: run-1 round 1: The update was accepted." in lines
        assert lines[-1] == "d1: Stopped after 1 round. 'quorate device history' lists them."
        assert quorate(*device(server, "--rounds", "1", "--json")) == 0
        output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {line["device"] for line in output} == {"d1"}
        assert [line["kind"] for line in output] == ["waiting", "assigned", "training", "trained", "receipt", "stopped"]
        assert {line.get("device") for line in output[:-1]} == {"d1"}
    assert quorate("device", "history", "--folder", "d1") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "run",
        "round",
        "learner",
        "result",
        "update",
        "weight",
        "event",
        "seconds",
        "authority",
        "reason",
    ]
    assert [row.split()[8] for row in table[1:]] == ["apart", "apart"]
    assert [row.split()[:4] for row in table[1:]] == [["run-1", str(n), LEARNER, "receipt"] for n in (1, 2)]
    assert quorate("device", "history", "--folder", "d1", "--json") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["round"] for entry in entries] == [1, 2]
    assert server.script.registrations == 1


def test_address_and_token_come_from_the_environment_too(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(script(task=Task(learner=LEARNER))) as server:
        monkeypatch.setenv("QUORATE_URL", server.url)
        monkeypatch.setenv("QUORATE_ENROLMENT_TOKEN", shared().text)
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
        ([], "This device has no certificate; start it with --token-file FILE"),
        (["--token-file", "guess"], "The token file guess cannot be read: No such file or directory."),
        (["--who-file", "nowhere"], "There is no file nowhere: --who-file names what proves who this device is."),
    ],
)
def test_errors_are_one_sentence(
    workplace: Path, capsys: pytest.CaptureFixture[str], changes: list[str], sentence: str
) -> None:
    with serving(script(task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--rounds", "1", *changes)) == 1
    output = capsys.readouterr()
    assert output.err.startswith("Error: ")
    assert sentence in output.err
    assert len(output.err.splitlines()) == 1
    assert "Traceback" not in output.err


def test_the_error_for_a_device_without_data_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device") == 1
    assert "--data" in capsys.readouterr().err


def test_a_device_too_old_ends_with_one_sentence(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator = script(2, task=Task(learner=LEARNER))
    coordinator.interfere = lambda method, path: problem("protocol-version", "Upgrade this device's quorate.")
    with serving(coordinator) as server:
        assert quorate(*device(server, "--token-file", token_file())) == 1
    assert capsys.readouterr().err == "Error: d1: Upgrade this device's quorate.\n"


def test_two_devices_in_one_folder_are_refused(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from client_sdk.device.storage import FileStorage

    with serving(script()) as server, FileStorage("d1"):
        assert quorate(*device(server, "--token-file", token_file())) == 1
    assert "in use by another device" in capsys.readouterr().err


def test_the_owner_lets_plain_plans_in_again(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileStorage(workplace / "d1") as storage:
        storage.keep(lambda _: Memory(plain=frozenset({"other:net"})))
    with serving(script(task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--token-file", token_file(), "--rounds", "1")) == 0
        assert f"its owner alone can let its data go in clear for {LEARNER}" in capsys.readouterr().out
    assert quorate("device", "allow-plain", LEARNER, "--folder", "d1") == 0
    assert capsys.readouterr().out == (
        f"This device's data may go in clear for {LEARNER} again, until it joins a secure round of it.\n"
    )
    with FileStorage(workplace / "d1") as storage:
        assert storage.load_secure().plain == {LEARNER, "other:net"}
        storage.keep(lambda _: Memory())
    assert quorate("device", "allow-plain", LEARNER, "--folder", "d1") == 1
    assert capsys.readouterr().err == ("Error: This device has joined no secure round, so its data may go in clear.\n")
    assert quorate("device", "allow-plain", LEARNER, "--folder", "nobody") == 1
    assert "There is no device in nobody" in capsys.readouterr().err


def test_an_owner_sees_what_the_data_have_lost_and_bounds_it(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = PrivacyTerms(noise=2.0, most_rounds=10)
    shown = ("device", "privacy", "--folder", "d1", "--sums-folder", "sums")
    assert quorate(*shown) == 0
    assert capsys.readouterr().out == "No data of this user has been in a round yet.\n"
    mine = ("--sums-folder", "sums", "--most-epsilon", "4")
    with serving(script(rounds=3, task=Task(learner=LEARNER), privacy=noise)) as server:
        assert quorate(*device(server, "--token-file", token_file(), "--rounds", "3", *mine)) == 0
        assert "would lose epsilon 4.441; its owner allows epsilon 4 at delta 1e-06." in capsys.readouterr().out
    assert quorate(*shown, "--most-epsilon", "4") == 0
    first, head, row = capsys.readouterr().out.splitlines()
    assert first.endswith("mine.npz 1/1: epsilon 3.542 at delta 1e-06; 4 is the most")
    assert head.split() == ["coordinator", "run", "device", "rounds", "answers", "zcdp", "rounds_left"]
    assert row.split()[1::2] == ["run-1", "2", "0.25"]
    assert row.split()[-1] == "0"
    assert quorate(*shown, "--json", "--delta", "1e-9") == 0
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (round(told["epsilon"], 3), told["runs"][0]["rounds_left"]) == (4.437, 8)
    for wrong in (["--delta", "1"], ["--delta", "0"]):
        assert quorate(*shown, *wrong) == 1
        assert "--delta is above 0 and below 1" in capsys.readouterr().err
    assert quorate("device", "--data", "mine.npz", "--most-epsilon", "0") == 1
    assert "--most-epsilon and --private-only are above 0" in capsys.readouterr().err


def test_history_of_no_device_is_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device", "history", "--folder", "nobody") == 1
    assert capsys.readouterr().err == "Error: There is no device in nobody; name its folder with --folder.\n"


@pytest.mark.slow
def test_ctrl_c_ends_a_waiting_device_cleanly(workplace: Path) -> None:
    with serving(script(rounds=0)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_sdk.cli", *device(server, "--token-file", token_file())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{workplace}{os.pathsep}{ROOT}"},
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
    assert out.splitlines()[-1].startswith("d1: Stopped after 0 rounds.")
    assert err == "d1: Stopping; once more ends it at once.\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "environment", "threads"),
    [([], {}, "1"), (["--threads", "3"], {}, "3"), ([], {"OMP_NUM_THREADS": "2"}, "2")],
)
def test_a_device_computes_with_one_thread_unless_its_owner_says_otherwise(
    workplace: Path, options: list[str], environment: dict[str, str], threads: str
) -> None:
    (workplace / "counting.py").write_text(
        "import os, sys\n"
        "import numpy as np\n"
        "from client_sdk import Update\n"
        "def train(model, data, task):\n"
        "    open('threads', 'w').write(os.environ['OMP_NUM_THREADS'] + os.environ['OPENBLAS_NUM_THREADS'])\n"
        "    return Update({'w': np.ones_like(model['w'])}, examples=len(data))\n"
    )
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    with serving(script(task=Task(learner="counting:train"))) as server:
        subprocess.run(
            [
                *(sys.executable, "-m", "client_sdk.cli"),
                *device(server, "--token-file", token_file(), "--rounds", "1", "--learner", "counting:train"),
                *options,
            ],
            env={**others, **environment, "PYTHONPATH": f"{workplace}{os.pathsep}{ROOT}"},
            check=True,
            timeout=60,
        )
    assert (workplace / "threads").read_text() == threads * 2


def test_missing_data_is_reported_before_learners_are_imported(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A learner that imports torch takes seconds."""
    (workplace / "slow_to_import.py").write_text("raise RuntimeError('imported')\n")
    for command in (["device"], ["evaluate", "run-1"]):
        assert quorate(*command, "--data", "nowhere.npz", "--learner", "slow_to_import:train") == 1
        assert capsys.readouterr().err.endswith("There is no file nowhere.npz.\n")


def test_a_device_without_a_label_is_named_by_its_folder(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(script(task=Task(learner=LEARNER))) as server:
        assert quorate(*device(server, "--token-file", token_file(), "--rounds", "1", "--label", "ward 7")) == 0
        assert {line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()} == {"ward 7"}


def test_a_learner_that_fails_is_reported_without_a_traceback(
    workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (workplace / "burning.py").write_text("def train(model, data, task):\n    raise RuntimeError('burnt')\n")
    with serving(script(task=Task(learner="burning:train"))) as server:
        assert (
            quorate(*device(server, "--token-file", token_file(), "--rounds", "1", "--learner", "burning:train")) == 0
        )
    output = capfd.readouterr()
    assert "Withdrew: RuntimeError: burnt" in output.out
    assert "Traceback" not in output.out + output.err
    assert output.err.splitlines()[0].endswith("QUORATE_DEBUG=1 shows where")


def test_an_error_of_a_device_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was ``{"kind":"error","text":...}``, in the log of several devices."""
    asked = ("device", "--data", "none.npz", "--folder", str(tmp_path / "ward"))
    assert quorate(*asked, "--label", "ward 7", "--json") == 1
    error = json.loads(capsys.readouterr().err)
    assert error == {"device": "ward 7", "kind": "error", "text": "There is no file none.npz."}
