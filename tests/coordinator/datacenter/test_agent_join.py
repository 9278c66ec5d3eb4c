"""``quorate datacenter join`` against a real coordinator: refusals, a round given back, a round lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk import cli
from client_sdk.data import entry_of
from client_sdk.device.storage import read_record
from client_sdk.http.operator import OperatorClient
from client_sdk.tensors import to_bytes
from coordinator.datacenter.agent import preflight_request
from tests.coordinator.datacenter.agents import NAME, Command, agent, gone, write_data, write_learner
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

PLAN: dict[str, Any] = {
    "name": "joined",
    "task": {"learner": NAME},
    "datacenter": {"data": "proxy", "every": 1, "steps": 5000, "batch_size": 10, "nproc": 1, "lease_s": 2},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a learner and data, in which commands run."""
    write_learner(tmp_path)
    write_data(tmp_path / "proxy.npz", 50, seed=1)
    monkeypatch.chdir(tmp_path)
    for name in ("QUORATE_URL", "QUORATE_ENROLMENT_TOKEN", "QUORATE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_data_is_offered_by_the_name_that_it_was_given_alone(place: Path) -> None:
    named = preflight_request(["proxy=mnist"], [], 1, "cpu").data
    assert named == {"proxy": "mnist"}
    pinned = preflight_request(["mnist", "mine=proxy.npz"], [], 1, "cpu").data
    assert set(pinned) == {"mnist", f"quorate:mnist@{entry_of('mnist').version}", "mine"}


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one sentence with which ``join`` ends."""
    with pytest.raises(SystemExit) as end:
        cli.main(["datacenter", "join", *options])
    output = capsys.readouterr()
    assert (end.value.code, output.out) == (1, "")
    assert output.err.startswith("Error: ")
    assert output.err.count("\n") == 1
    return output.err[len("Error: ") : -1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--data", "a=proxy.npz"], "This worker has no certificate; start it with --token-file FILE"),
        (
            ["--token-file", "proxy.npz", "--data", "a=proxy.npz"],
            "There is no enrolment token in the token file proxy.npz",
        ),
        ([], "Name the data held here with --data"),
        (["--data", "nosuch"], "There is no data 'nosuch'; there are adult, "),
        (["--data", "proxy=nosuch.npz"], "There is no file "),
        (["--data", "My Data=proxy.npz"], "'My Data' is no name that a plan can use"),
        (["--data", "a=proxy.npz", "--data", "a=mnist"], "--data: a is given twice."),
        (["--data", "a=proxy.npz", "--device", "tpu"], "'tpu' is no device"),
        (["--data", "a=proxy.npz", "--coordinator", "ftp://x"], "is not a coordinator's URL"),
    ],
)
def test_errors_are_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert sentence in refusal(capsys, *options)


@on_day(0, of=2)
def test_a_worker_that_is_not_certified_or_was_revoked_is_refused(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--data", "a=proxy.npz", "--coordinator", server.url, "--token-file"]
    assert "is for a device; a worker needs one" in refusal(capsys, *usual, server.token_file)
    refusal(capsys, *usual, server.worker_token_file, "--learner", "nosuch:x", "--label", "to be revoked")
    with OperatorClient(server.url) as operator:
        (made,) = [one for one in operator.workers() if one.label == "to be revoked"]
        operator.revoke_worker(made.worker)
    assert "was revoked by an operator" in refusal(capsys, *usual, server.worker_token_file)


@pytest.mark.slow
def test_an_authority_or_coordinator_that_does_not_answer_ends_it_with_a_sentence(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--data", "a=proxy.npz", "--coordinator", "http://127.0.0.1:9", "--token-file"]
    assert "The coordinator at http://127.0.0.1:9 cannot be reached" in refusal(
        capsys, *usual, server.worker_token_file
    )


@on_day(0, of=2)
@pytest.mark.datacenter
def test_what_this_machine_lacks_is_reported_before_it_polls(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    (place / "cut.npz").write_bytes((place / "proxy.npz").read_bytes()[:100])
    usual = ["--token-file", server.worker_token_file, "--coordinator", server.url, "--data", "a=proxy.npz"]
    assert "needs the module nosuch, which is not installed" in refusal(capsys, *usual, "--learner", "nosuch:x")
    assert "cut.npz is not an .npz file" in refusal(capsys, *usual, "--data", "b=cut.npz")
    (place / "hidden").mkdir()
    (place / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place / "hidden"))
        assert "which is not installed: pip install 'quorate[datacenter]'" in refusal(capsys, *usual)
    if not torch.cuda.is_available():
        assert "A GPU was asked for, and torch finds none" in refusal(capsys, *usual, "--device", "cuda")


@on_day(1, of=4)
@pytest.mark.datacenter
def test_a_stopped_agent_gives_its_round_back_and_a_lost_round_is_no_longer_trained(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(place))
    from fallback_learner import learner  # type: ignore[import-not-found]

    started: list[Command] = []
    try:
        with OperatorClient(server.url) as operator:
            started.append(first := agent(place, server.url, server.worker_token_file))
            run = operator.create_run(PLAN, operator.upload_checkpoint(to_bytes(learner.initial(1))), "a test").run
            assert first.wait_for("ready")["examples"] == {"proxy": 50}
            first.wait_for("started")
            ranks = first.family()
            assert ranks
            for _ in range(2):  # as `timeout` does: to the process, and to its group
                first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(30) == 0
            first.wait_for("given-back", round=1)
            assert first.messages[-1] == {"kind": "stopped", "rounds": 0}
            assert gone(ranks)
            assert operator.run(run).phase == "leasing", "at once, not when the lease would have ended"

            started.append(second := agent(place, server.url, server.worker_token_file, "--folder", "second"))
            assert second.wait_for("leased")["text"].endswith("(lease 2, fence 2).")
            second.wait_for("started")
            ranks = second.family()
            assert ranks
            operator.stop(run)
            second.wait_for("lost")
            assert gone(ranks)
            assert second.process.poll() is None, "the agent waits for the next round"
            view = operator.round(run, 1)
            assert (view.kind, view.status) == ("datacenter", "abandoned")
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(30) == 0
    finally:
        for command in started:
            command.end()


@on_day(3, of=4)
@pytest.mark.datacenter
def test_an_agent_that_wakes_up_after_its_lease_has_gone_to_another_changes_nothing(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(place))
    from fallback_learner import learner  # type: ignore[import-not-found]

    plan = {**PLAN, "name": "asleep", "finish": {"rounds": 1}}
    plan["datacenter"] = {**PLAN["datacenter"], "steps": 60, "lease_s": 6}
    started: list[Command] = []
    try:
        with OperatorClient(server.url) as operator:
            started.append(first := agent(place, server.url, server.worker_token_file, "--folder", "first"))
            first.wait_for("ready")
            run = operator.create_run(plan, operator.upload_checkpoint(to_bytes(learner.initial(1))), "a test").run
            first.wait_for("saved")
            ranks = first.family()
            first.process.send_signal(signal.SIGSTOP)
            started.append(second := agent(place, server.url, server.worker_token_file, "--folder", "second"))
            assert second.wait_for("leased")["text"].endswith("(lease 2, fence 2).")
            assert second.wait_for("started")["step"] == 0, "another machine begins from the checkpoint"
            assert second.wait_for("committed")["text"].endswith("is version 1.")
            first.process.send_signal(signal.SIGCONT)
            first.wait_for("lost")
            assert gone(ranks)
            view = operator.round(run, 1)
            assert view.lease is not None
            other = read_record(place / "second")
            assert other is not None
            assert other.registered is not None
            assert (view.status, view.version, view.lease.worker) == ("committed", 1, other.registered.device)
            assert [line.version for line in operator.checkpoints(run)] == [0, 1]
            for command in started:
                command.process.send_signal(signal.SIGTERM)
            assert [command.process.wait(30) for command in started] == [0, 0]
    finally:
        for command in started:
            command.end()
