"""``quorate datacenter follow``: what is wrong is said before anything is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk import cli
from coordinator.datacenter import preflight
from coordinator.datacenter.machines import Follower
from coordinator.datacenter.preflight import PreflightReport
from tests.coordinator.datacenter.agents import write_data


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--folder", "g", "--node", "0", "--data", "a=proxy.npz"], "0 is not in the range 1<=x<=1023"),
        (["--folder", "g", "--node", "1"], "Name the data held here with --data"),
        (["--folder", "g", "--node", "1", "--data", "a=nosuch.npz"], "There is no file "),
        (["--folder", "g", "--node", "1", "--data", "a=proxy.npz", "--device", "tpu"], "'tpu' is no device"),
        (["--folder", "g", "--node", "1", "--data", "a=proxy.npz", "--lost-s", "0"], "is not in the range x>=2"),
        (["--node", "1", "--data", "a=proxy.npz"], "Missing option '--folder'"),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "proxy.npz", 5, seed=1)
    with pytest.raises(SystemExit) as end:
        cli.main(["datacenter", "follow", *options])
    output = capsys.readouterr()
    assert end.value.code in (1, 2)
    assert output.out == ""
    assert output.err.startswith("Error: ")
    assert output.err.count("\n") == 1
    assert sentence in output.err
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nnodes", "2"], "Say with --rdzv-endpoint HOST:PORT where the other machines reach this one."),
        (["--rdzv-endpoint", "a:1"], "--rdzv-endpoint is for several machines: say how many with --nnodes."),
        (["--nnodes", "2", "--rdzv-endpoint", "host"], "--rdzv-endpoint: 'host' is no HOST:PORT."),
        (["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:99999"], "'127.0.0.1:99999' is no HOST:PORT."),
        (["--nnodes", "2", "--rdzv-endpoint", "no-such.invalid:29500"], "finds no way to no-such.invalid."),
    ],
)
def test_a_leader_with_an_unreachable_address_gets_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "proxy.npz", 5, seed=1)
    with pytest.raises(SystemExit) as end:
        cli.main(["datacenter", "join", "--data", "a=proxy.npz", "--folder", "w", *options])
    output = capsys.readouterr()
    assert (end.value.code, output.out, output.err.count("\n")) == (1, "", 1)
    assert sentence in output.err


def test_a_number_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "proxy.npz", 5, seed=1)
    monkeypatch.setattr(preflight, "look", lambda wanted: PreflightReport(learners={}, examples={"a": 5}, gpus=0))
    with (
        Follower(Path("g"), 1, nproc=1, gpus=0, learners={}, examples={}, lost_s=10),
        pytest.raises(SystemExit) as end,
    ):
        cli.main(["datacenter", "follow", "--folder", "g", "--node", "1", "--data", "a=proxy.npz"])
    output = capsys.readouterr()
    assert (end.value.code, output.out) == (1, "")
    assert output.err == "Error: Another agent is machine 1 in g; give this one another number.\n"
