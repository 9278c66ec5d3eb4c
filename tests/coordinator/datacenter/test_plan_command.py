"""``quorate datacenter plan``: what it prints, and what it says to wrong options."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

from coordinator.datacenter import calibration
from coordinator.datacenter.calibration import Calibration, calibrate
from tests.client_sdk.commands.run_cli import quorate

LARGE = (
    *("datacenter", "plan", "--params", "8.3e9", "--layers", "72", "--hidden", "3072", "--devices", "64"),
    *("--precision", "mixed", "--between", "ethernet100", "--cards", "8"),
)


def test_plans_refusals_algorithms_and_the_section_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate(*LARGE, "--show", "3") == 0
    out = capsys.readouterr().out
    assert "8.3e9 parameters, 72 layers of 3,072, 24 heads" in out
    assert "tensor 16: 24 heads do not divide by 16" in out
    assert "All-reduce over 64 ranks, by size: doubling, halving-doubling from 558 KB, hierarchical from 656 KB." in out
    rows = out.partition("fastest first:\n")[2].splitlines()[1:4]
    assert all(len(row.split()) == 17 for row in rows)
    section = out.partition("For the plan:\n")[2]
    assert tomllib.loads(section) == {
        "datacenter": {"nproc": 64, "shard": "optimizer", "batch_size": 512, "accumulate": 4}
    }


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate(*LARGE, "--show", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [plan["plan"]["shard"] for plan in found["plans"]] == ["optimizer", "gradients", "full"]
    assert found["machines"]["between"]["beta_s"] == pytest.approx(1 / 12.5e9)
    assert found["refused"][0]["family"] == "data 64, tensor 1, pipeline 1, shard none"
    assert [row["devices"] for row in found["devices"]] == [64, 32, 16, 8, 4, 2]
    assert found["all_reduce"][-1]["algorithm"] == "hierarchical"
    assert found["calibration"] is None


def test_a_number_of_parameters_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("datacenter", "plan", "--params", "6.9e9", "--json") == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert (model["layers"], model["hidden"], model["heads"]) == (32, 4096, 32)
    assert quorate("datacenter", "plan", "--layers", "72", "--hidden", "3072", "--devices", "64", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"]["params"] == pytest.approx(8.31e9, rel=1e-3)


@pytest.mark.slow
def test_a_learner_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--learner", "quorate:mnist-mlp", "--devices", "2", "--memory", "24 GiB", "--link", "12.5@30")
    assert quorate("datacenter", "plan", *arguments) == 0
    out = capsys.readouterr().out
    assert "5.089e4 parameters; a batch of 512" in out
    assert "23.2 GB of each may be used" in out  # nine tenths of 25.8
    assert "tensor 2: the model's heads are not known" in out
    assert "With local steps, which is another algorithm:" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "Say which model: --params 8.3e9, or --layers and --hidden, or --learner NAME."),
        (("--params", "1e9", "--layers", "8"), "Give --layers and --hidden together."),
        (("--params", "0"), "--params must be from 1 to 1e+15, not 0."),
        (("--params", "nan"), "--params must be from 1 to 1e+15, not nan."),
        (("--params", "1e9", "--learner", "a:b"), "A learner's parameters are counted: leave out"),
        (("--learner", "nobody:knows"), "nobody:knows"),
        (("--params", "1e9", "--memory", "much"), "--memory is a size such as 80GB or 24GiB, not 'much'."),
        (("--params", "1e9", "--link", "wire"), "A link is one of nvlink, nvlink2, pcie,"),
        (("--params", "1e9", "--between", "1.2.3"), "A link is one of nvlink, nvlink2, pcie,"),
        (
            ("--params", "1e9", "--precision", "int8"),
            "precision is one of bfloat16, float16, float32, mixed, not int8.",
        ),
        (("--params", "1e9", "--optimizer", "best"), "optimizer is one of adam, lamb,"),
        (("--params", "1e9", "--link", "0"), "A link is one of nvlink, nvlink2, pcie,"),
        (("--params", "1e9", "--memory", "0"), "memory and flops must be above 0."),
        (("--params", "1e9", "--global-batch", "1000000000"), "global-batch must be from 1 to 1e+08, not 1e+09."),
        (("--params", "1e9", "--devices", "12"), "12 devices do not fill machines of 8."),
        (("--params", "1e9", "--heads", "7"), "hidden (2048) must be a multiple of heads (7)"),
        (("--params", "1e9", "--flops", "0"), "memory and flops must be above 0."),
        (("--params", "1e9", "--overlap", "2"), "headroom is from 0 to below 1, and overlap from 0 to 1."),
        (("--params", "1e12", "--devices", "1"), "No plan fits: more devices, more memory,"),
    ],
)
def test_wrong_options_get_one_sentence(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate("datacenter", "plan", *options) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("Error: ")
    assert len(error.splitlines()) == 1


def test_what_was_measured_takes_the_place_of_the_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Calibration(
        alpha_s=3e-4, beta_s=6e-10, fit_error=0.1, error=0.27, flops=2e10, step_s=0.1, predicted_step_s=0.08
    )
    monkeypatch.setattr(calibration, "calibrate", lambda: found)
    arguments = ("datacenter", "plan", "--params", "1e6", "--devices", "2", "--calibrate")
    assert quorate(*arguments) == 0
    sentence = "Measured: 300 us and 0.60 ns a byte, off by 27% at most at sizes between. A step of two processes: "
    assert capsys.readouterr().out.startswith(sentence + "predicted 80.0 ms, measured 100.0 ms, off by 20%.\n")
    assert quorate(*arguments, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["machines"]["link"] == {"alpha_s": 3e-4, "beta_s": 6e-10}
    assert printed["calibration"]["step_error"] == pytest.approx(0.2)


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys\nfrom client_sdk import cli\n"
        "try:\n    cli.main(['datacenter', 'plan', '--params', '1e9', '--json'])\nexcept SystemExit as end:\n"
        "    assert not end.code\nassert not {'torch', 'numpy', 'psutil'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.datacenter
def test_two_processes_are_measured_and_predicted() -> None:
    """How near the figures are to each other is for an idle machine to show: here they are of the right kind."""
    found = calibrate([2**k for k in range(10, 17)])
    assert 0 < found.link.alpha_s < 1
    assert found.beta_s >= 0
    assert found.flops > 1e6
    assert found.error >= 0
    assert found.step_error == pytest.approx(abs(found.predicted_step_s / found.step_s - 1))
    assert found.predicted_step_s > found.alpha_s
