"""``quorate simulate``: the call from the terminal, its refusals in one sentence, its folder, its failing clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import cli
from simulation import History, partition, simulate
from simulation.commands.data import shared_out, some_of
from simulation.commands.simulate import ShareOptions
from simulation.learners import mnist_mlp
from tests.simulation import synthetic

pytestmark = pytest.mark.whole

PLAN = """
name = "small"
[task]
learner = "{learner}"
batch_size = 20
learning_rate = 0.2
[cohort]
select = 4
goal = 4
quorum = 0.5
[finish]
rounds = 3
"""

OWN = '''
"""A learner that fails on one client's data, in the first round only."""
import os
from torch import nn
from client_sdk.learning import Learner, accuracy

def loss(outputs, targets):
    if os.environ.get("BROKEN") and len(targets) == 7:
        raise KeyError("of the user's own")
    return nn.functional.cross_entropy(outputs, targets)

def learner():
    model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return Learner(model=model, loss=loss, metrics={"accuracy": accuracy})
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, a plan, a learner of the user's, and the terminal in it."""
    synthetic.write(tmp_path / "digits.npz")
    (tmp_path / "small.toml").write_text(PLAN.format(learner="quorate:mnist-mlp"))
    (tmp_path / "own.toml").write_text(PLAN.format(learner="own_learner_of_tests:learner"))
    (tmp_path / "own_learner_of_tests.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quorate", "simulate", "small.toml"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_learner_of_tests", raising=False)  # of a folder that is gone
    return tmp_path


def quorate(*arguments: str) -> int:
    """Exit code of ``quorate simulate``, run in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(["simulate", *arguments])
    return int(end.value.code or 0)


def test_it_is_the_call_from_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["--clients", "10", "--alpha", "0.5", "--held-out", "0.2", "--score-clients", "all", "--seed", "3"]
    assert quorate("small.toml", "--data", "digits.npz", *asked, "--json") == 0
    out, err = capsys.readouterr()
    message: dict[str, Any] = json.loads(out)
    with np.load(place / "digits.npz") as arrays:
        data, test = (arrays["x"], arrays["y"]), (arrays["x_test"], arrays["y_test"])
    clients = partition(data, 10, by="dirichlet", alpha=0.5, seed=3, held_out=0.2)
    history = simulate("small.toml", mnist_mlp(), clients, test=test, score_clients="all", seed=3)
    assert message["checkpoint"] == history.checkpoints[3].digest
    assert (message["run"], message["status"], message["committed"], message["interrupted"]) == (
        "small",
        "finished",
        3,
        False,
    )
    assert message["clients"]["count"] == 10
    assert [row["counted"] for row in message["rounds"]] == [4, 4, 4]
    assert message["rounds"][0]["opened_s"] == 0.0
    final = next(
        row for row in reversed(message["metrics"]) if (row["source"], row["name"]) == ("evaluator", "accuracy")
    )
    assert final["value"] == pytest.approx(history.final("accuracy"))
    assert {row["source"] for row in message["metrics"]} == {
        "evaluator",
        "clients",
        "clients.p10",
        "clients.p90",
        "training",
    }
    assert err.splitlines()[0].startswith("digits.npz: 10 clients, 480 training examples")
    assert [line.split(":")[0] for line in err.splitlines()[1:]] == ["round 1", "round 2", "round 3"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_gives_the_models_of_its_arrays(place: Path, ending: str, capsys: pytest.CaptureFixture[str]):
    with np.load(place / "digits.npz") as arrays:
        columns = {f"p{at}": [*arrays["x"].reshape(-1, 784)[:, at], *arrays["x_test"].reshape(-1, 784)[:, at]]
                   for at in range(784)}  # fmt: skip
        columns["split"] = ["train"] * len(arrays["x"]) + ["test"] * len(arrays["x_test"])
        columns["digit"] = [*arrays["y"].tolist(), *arrays["y_test"].tolist()]
    table = import_module("pyarrow").table(columns)
    if ending == "csv":
        import_module("pyarrow.csv").write_csv(table, "digits.csv")
    else:
        import_module("pyarrow.parquet").write_table(table, "digits.parquet")
    asked = ["--clients", "8", "--rounds", "2", "--json"]
    assert quorate("small.toml", "--data", f"digits.{ending}", "--target", "digit", *asked) == 0
    of_table: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert quorate("small.toml", "--data", "digits.npz", *asked) == 0
    of_arrays: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert of_table["checkpoint"] == of_arrays["checkpoint"]
    assert of_table["metrics"] == of_arrays["metrics"]


def test_a_folder_goes_on(place: Path, capsys: pytest.CaptureFixture[str]):
    common = ["small.toml", "--data", "digits.npz", "--clients", "8", "--by", "iid", "--folder", "kept", "--quiet"]
    assert quorate(*common, "--rounds", "1") == 0
    out, err = capsys.readouterr()
    assert "1 of 3 rounds committed" in out
    assert "The same command continues from here: quorate simulate small.toml" in out
    assert "quorate serve --data kept, and then quorate rounds small" in out
    assert not err
    assert quorate(*common, "--only", "client-3", "--round", "2") == 0
    assert capsys.readouterr().out.startswith("client-3 in round 2: 75 examples, 4 of 4 steps")
    assert quorate(*common, "--only", "client-3", "--round", "3") == 1
    assert "round 3 of run small in kept has not begun" in capsys.readouterr().err
    assert quorate(*common) == 0
    out, _ = capsys.readouterr()
    assert "3 of 3 rounds committed, finished (reached 3 rounds)" in out
    assert "goes on" not in out
    with History.open("kept") as history:
        assert len(history) == 3
        last = history.checkpoints[3].digest
    assert quorate(*common[:-3], "--quiet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == last, "in one go it is the same"


def test_pictures(place: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["--clients", "8", "--by", "shards", "--picture", "who.svg", "--plot", "run.png", "--rounds", "1"]
    assert quorate("small.toml", "--data", "digits.npz", *asked, "--test", "50") == 0
    assert (place / "who.svg").read_text().startswith("<svg")
    assert (place / "run.png").read_bytes()[:4] == b"\x89PNG"
    assert "1 of 3 rounds committed" in capsys.readouterr().out


def test_rounds_of_a_datacenter(place: Path, capsys: pytest.CaptureFixture[str]):
    section = '[datacenter]\ndata = "public"\nevery = 2\nsteps = 5\nbatch_size = 20\n'
    (place / "mixed.toml").write_text(PLAN.format(learner="quorate:mnist-mlp") + section)
    common = ["mixed.toml", "--data", "digits.npz", "--clients", "8", "--quiet", "--json"]
    assert quorate(*common, "--datacenter", "digits.npz") == 0
    output = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in output["rounds"]] == ["federated", "datacenter", "federated"]
    assert quorate(*common) == 1
    assert "There is no data 'public'" in capsys.readouterr().err
    assert quorate("small.toml", "--data", "digits.npz", "--datacenter", "digits.npz") == 1
    assert "the plan has no section [datacenter]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone.toml", "--data", "digits.npz"], "cannot read the plan gone.toml: No such file"),
        (["small.toml", "--data", "gone"], "There is no data 'gone'; there are adult, "),
        (["small.toml", "--data", "gone.npz"], "There is no file gone.npz."),
        (["small.toml", "--data", "digits.npz", "--by", "luck"], "no partition method luck; there are iid"),
        (["small.toml", "--data", "digits.npz", "--by", "natural"], "by='natural' needs users="),
        (["small.toml", "--data", "digits.npz", "--by", "iid", "--alpha", "1"], "alpha has no effect with by='iid'"),
        (["small.toml", "--data", "digits.npz", "--engine", "steam"], "no engine steam; there are serial, processes"),
        (["small.toml", "--data", "digits.npz", "--workers", "2"], 'workers are those of engine="processes"'),
        (["small.toml", "--data", "digits.npz", "--clients", "1"], "the plan's quorum is 2 reports and there are 1"),
        (["small.toml", "--data", "digits.npz", "--dropout", "2"], "dropout=2.0 is a probability"),
        (["small.toml", "--data", "digits.npz", "--dropout", "1"], "25 rounds in a row were abandoned"),
        (["small.toml", "--data", "digits.npz", "--score-clients", "some"], "--score-clients some: give a whole"),
        (["small.toml", "--data", "digits.npz", "--plot", "gone/run.png"], "There is no folder gone for the picture"),
        (["small.toml", "--data", "digits.npz", "--plot", "run.doc"], "run.doc must end in .png or .svg or .pdf"),
        (["small.toml", "--data", "digits.npz", "--picture", "who.png"], "who.png must end in .svg"),
        (["small.toml", "--data", "digits.npz", "--init", "small.toml"], "small.toml is not a checkpoint"),
        (["small.toml", "--data", "digits.npz", "--only", "client-01"], "--only and --round go together"),
        (["small.toml", "--data", "digits.npz", "--only", "nobody", "--round", "1"], "there is no client 'nobody'"),
        (["other.toml", "--data", "digits.npz"], "nowhere_in_tests"),
    ],
)
def test_refusals_are_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    (place / "other.toml").write_text(PLAN.format(learner="nowhere_in_tests:learner"))
    assert quorate(*arguments, "--quiet") == 1
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert err.startswith("Error: ")
    assert sentence in err


def test_a_failing_client_shows_its_own_traceback_and_how_to_run_it_again(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with np.load("digits.npz") as arrays:
        np.savez("odd.npz", x=arrays["x"][:87], y=arrays["y"][:87])  # 87 in batches of 20: one of 7
    monkeypatch.setenv("BROKEN", "1")
    monkeypatch.setattr(sys, "argv", ["quorate", "simulate", "own.toml", "--data", "odd.npz", "--json"])
    common = ["own.toml", "--data", "odd.npz", "--clients", "1", "--quiet"]
    (place / "own.toml").write_text(PLAN.format(learner="own_learner_of_tests:learner").replace("= 4", "= 1"))
    assert quorate(*common) == 1
    out, err = capsys.readouterr()
    assert not out
    assert 'raise KeyError("of the user\'s own")' in err
    last = err.splitlines()[-1]
    assert last.startswith("Error: client 'client-0' failed in round 1. To train just this client again: quorate simu")
    assert "--json" not in last
    again = last.split("quorate simulate own.toml --data odd.npz ")[1].split()
    assert again[:5] == ["--only", "client-0", "--round", "1", "--init"]
    assert quorate(*common, *again) == 1
    out, err = capsys.readouterr()
    assert 'raise KeyError("of the user\'s own")' in err
    assert err.splitlines()[-1].startswith("Error: client 'client-0' failed in round 1: The learner failed at step")
    monkeypatch.delenv("BROKEN")
    assert quorate(*common, *again) == 0
    assert capsys.readouterr().out.startswith("client-0 in round 1: 87 examples, 5 of 5 steps, loss ")
    assert quorate(*common, *again, "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps_planned"] == 5


def test_a_loss_that_fails_on_the_test_part_shows_its_own_traceback_above_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BROKEN", "1")
    assert quorate("own.toml", "--data", "digits.npz", "--clients", "4", "--test", "7", "--quiet") == 1
    out, err = capsys.readouterr()
    assert not out
    *above, last = err.splitlines()
    assert '    raise KeyError("of the user\'s own")' in above
    assert last.startswith(
        "Error: the model could not be scored on the test data: The learner failed on examples 0 to 6"
    )
    assert "Traceback" not in last


@pytest.mark.slow
def test_ctrl_c_says_where_it_stopped_and_how_it_goes_on(place: Path) -> None:
    (place / "long.toml").write_text(PLAN.format(learner="quorate:mnist-mlp").replace("rounds = 3", "rounds = 100000"))
    command = [sys.executable, "-c", "from client_sdk.cli import main; main()", "simulate", "long.toml"]
    command += ["--data", "digits.npz", "--folder", "kept"]
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as running:
        assert running.stderr is not None
        while not running.stderr.readline().startswith("round 2:"):
            assert running.poll() is None
        time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in out.splitlines()[0]
    assert any(line.startswith("Stopped in round ") for line in out.splitlines())
    assert "The same command continues from here: quorate " in out
    with History.open(place / "kept") as history:
        assert len(history) >= 2


# ------------------------------------------------------------ sharing out


class WithUsers:
    """A data set with users, as an entry point may give it."""

    def __init__(self) -> None:
        self.user_names = ("ann", "bob")
        self.train = self.test = type("Part", (), {"x": np.zeros((6, 2), np.float32), "y": np.arange(6) % 2})()

    def clients(self, min_examples: int = 2) -> dict[str, Any]:
        return dict.fromkeys(self.user_names[: 3 - min_examples], self)


def test_data_with_users_is_shared_out_by_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("simulation.commands.data.installed", lambda name: WithUsers())
    assert list(shared_out("told", ShareOptions(min_examples=1))[0]) == ["ann", "bob"]
    assert list(shared_out("told", ShareOptions())[0]) == ["ann"]
    assert len(shared_out("told", ShareOptions(clients=3, by="iid"))[0]) == 3
    assert "Dirichlet" in shared_out("told", ShareOptions(clients=2))[0].how
    with pytest.raises(ValueError, match="--alpha has no effect with --by natural of told: a client is a user"):
        shared_out("told", ShareOptions(alpha=0.3))
    with pytest.raises(ValueError, match="held-out examples already"):
        shared_out("told", ShareOptions(by="natural", held_out=0.1))


def test_the_test_part_is_drawn_once():
    part = type("Part", (), {"x": np.arange(100), "y": np.arange(100) * 2})()
    few, again, other = some_of(part, 7, 1), some_of(part, 7, 1), some_of(part, 7, 2)
    assert few is not None
    assert again is not None
    assert other is not None
    assert len(set(few.x.tolist())) == 7
    assert few.x.tolist() == again.x.tolist() != other.x.tolist()
    assert (few.y == 2 * few.x).all()
    assert some_of(part, "all", 1) is some_of(part, 100, 1) is part
    assert some_of(part, 0, 1) is some_of(None, 5, 1) is None
