"""A device serves messages by a ClientApp in a process of its own: answers, errors, hangs, crashes, and its state."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from client_sdk.flower.app_process import AppNotLoaded, AppProcess
from client_sdk.flower.journal import NodeJournal
from client_sdk.flower.serving import SECURE_ONLY, FlowerDevice
from client_sdk.flower.work import FlowerNotice
from client_sdk.protocol.flower import FlowerTask
from client_sdk.protocol.problems import Problem, problem
from tests.client_sdk.flower.apps import CLIENT, CLIENTAPP, write_app
from tests.client_sdk.flower.messages import APP, LATE, ScriptedPort
from tests.rotating import in_parts, on_day

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def app_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def process(app_dir: Path) -> Iterator[AppProcess]:
    with AppProcess(app_dir, CLIENTAPP) as process:
        yield process


class Node:
    """A device under test, and what it said."""

    def __init__(self, folder: Path, process: AppProcess, **options: Any) -> None:
        self.port = ScriptedPort(folder)
        self.stop = Event()
        self.port.after = self.stop.set
        self.notices: list[FlowerNotice] = []
        self._folder, self._process, self._options = folder, process, options
        self.restart()

    def restart(self) -> None:
        """As after a crash: what it knows is its journal."""
        self.journal = NodeJournal(self._folder / "journal")
        self.device = FlowerDevice(
            self.port,
            APP,
            self._process,
            self.journal,
            node_config={"partition-id": 3, "num-partitions": 4},
            stop=self.stop,
            on_notice=self.notices.append,
            **self._options,
        )

    def serve(self) -> int:
        self.stop.clear()
        return self.device.serve()

    def calls(self, message: str) -> int:
        """How often the ClientApp had trained, as its reply says."""
        return int(self.port.content(message)["metrics"]["calls"])

    def texts(self, kind: str) -> list[str]:
        return [notice.text for notice in self.notices if notice.kind == kind]


@pytest.fixture
def node(tmp_path: Path, process: AppProcess) -> Node:
    return Node(tmp_path, process)


def test_the_app_works_on_a_message_with_its_context(node: Node) -> None:
    message = node.port.add(1)
    assert node.serve() == 1
    content = node.port.content(message)
    np.testing.assert_array_equal(content["arrays"].to_numpy_ndarrays()[0], np.ones(4) + 3 + 0.5)
    assert dict(content["metrics"]) == {"num-examples": 10, "calls": 1, "node": 77}


def test_the_app_sees_the_metadata_that_the_server_app_has_set(node: Node) -> None:
    shown, own = (node.port.add(number, "query.metadata", grouped=own) for number, own in enumerate((False, True)))
    node.serve()
    assert [node.port.content(message)["told"]["group"] for message in (shown, own)] == ["", "1"]
    assert dict(node.port.content(own)["times"]) == {"created_at": 1.0, "ttl": 3600.0}
    assert {notice.group for notice in node.notices if notice.message is not None} == {"1"}


def test_an_app_makes_messages_on_its_node_as_under_flower(node: Node) -> None:
    message = node.port.add(1, "query.metadata")
    node.serve()
    told = node.port.content(message)["told"]
    assert (told["made_by"], told["made_in"]) == (77, 5)


def test_its_state_lives_through_messages_and_restarts(node: Node, process: AppProcess) -> None:
    first, second = node.port.add(1), node.port.add(2)
    node.serve()
    assert (node.calls(first), node.calls(second)) == (1, 2)
    node.restart()
    process.close()
    third = node.port.add(3)
    node.serve()
    assert node.calls(third) == 3


def test_the_process_stays_alive_between_messages(node: Node) -> None:
    messages = [node.port.add(number, "query") for number in (1, 2)]
    node.serve()
    assert len({node.port.content(message)["metrics"]["pid"] for message in messages}) == 1


def test_a_reply_that_was_not_acknowledged_is_sent_again_the_same_bytes(node: Node) -> None:
    message = node.port.add(1)
    node.port.refuse = lambda message: problem("busy", "try later").problem
    node.serve()
    node.restart()
    node.port.refuse = lambda message: None
    node.port.add(1)
    node.serve()
    first, *others = node.port.replies[message]
    assert others
    assert all(other == first for other in others)
    follower = node.port.add(2)
    node.serve()
    assert node.calls(follower) == 2


def test_a_message_whose_reply_came_too_late_does_not_train_again_when_it_is_pushed_again(node: Node) -> None:
    late = node.port.add(1)
    node.port.refuse = lambda message: LATE if message == late else None
    other = node.port.add(2)
    node.serve()
    node.port.refuse = lambda message: None
    node.port.add(1)
    node.serve()
    assert (node.calls(late), node.calls(other)) == (1, 2)
    assert len(set(node.port.replies[late])) == 1


def test_a_message_that_was_answered_long_ago_gets_an_error_and_no_second_change(node: Node) -> None:
    first = node.port.add(1)
    node.port.add(2)
    node.serve()
    node.port.add(1)  # a coordinator that lost what it had acknowledged
    node.serve()
    assert node.port.errors[first].code == 4
    follower = node.port.add(3)
    node.serve()
    assert node.calls(follower) == 3


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    in_parts(
        [
            ("train.fails", 2, "<class 'ZeroDivisionError'>:<'no examples'>"),
            ("train.exits", 2, "<class 'SystemExit'>:<'enough'>"),
            ("train.returns", 2, "The ClientApp returned a int, not a Message."),
            ("train.unknown", 2, "<class 'ValueError'>:<'No train function registered with name 'unknown''>"),
            ("evaluate", 2, "<class 'ValueError'>:<'No evaluate function registered with name 'default''>"),
            ("train.large", 4, "start the run with a larger --max-reply."),
            ("train.leaves", 8, "The process of the ClientApp ended with status 3 while it worked on this message."),
            ("train.asks", 2, "<class 'EOFError'>"),
            ("train.odd", 2, "<class 'FileNotFoundError'>:<'no file caf?.npy'>"),
            ("train.unsayable", 2, "Unsayable'>:<'its text raises KeyError'>"),
            ("train.dies", 8, "was ended by SIGKILL (the system may have been short of memory)"),
        ],
        of=2,
    ),
)
def test_what_goes_wrong_is_an_error_reply_and_the_state_is_as_it_was(
    node: Node, kind: str, code: int, reason: str
) -> None:
    before, message, after = node.port.add(1), node.port.add(2, kind), node.port.add(3)
    node.serve()
    error = node.port.errors[message]
    assert error.code == code
    assert reason in error.reason
    assert (node.calls(before), node.calls(after)) == (1, 2)


def test_a_message_of_another_app_never_reaches_the_app(node: Node) -> None:
    message = node.port.add(1, app=APP.changed(digest="1" * 64))
    node.serve()
    assert node.port.errors[message].reason == "This device has not got tests/counting 1.0.0 (111111111111)."
    after = node.port.add(2)
    node.serve()
    assert node.calls(after) == 1


def test_a_device_for_secure_rounds_only_never_runs_the_app(tmp_path: Path, process: AppProcess) -> None:
    node = Node(tmp_path, process, withheld=lambda: SECURE_ONLY)
    message = node.port.add(1)
    node.serve()
    assert "Flower runs are plain" in node.port.errors[message].reason
    assert node.journal.runs == []


def test_an_error_that_the_app_itself_replies_keeps_its_code(node: Node) -> None:
    message = node.port.add(1, "train.errs")
    node.serve()
    assert (node.port.errors[message].code, node.port.errors[message].reason) == (77, "not today")


@on_day(1, of=2)
def test_an_app_that_hangs_is_stopped_when_the_time_of_its_message_is_over(node: Node) -> None:
    message, after = node.port.add(1, "train.hangs", expires_in_s=1.5), node.port.add(2)
    node.serve()
    assert node.port.errors[message].code == 8
    assert "The ClientApp was stopped: it had not finished after 1 s" in node.port.errors[message].reason
    assert node.calls(after) == 1


@on_day(0, of=2)
def test_repro_an_app_that_hangs_while_it_is_loaded_again_holds_the_device_no_longer_than_its_message(
    tmp_path: Path,
) -> None:
    again = tmp_path / "again"
    client = f"import pathlib, time\nif pathlib.Path({str(again)!r}).exists():\n    time.sleep(600)\n{CLIENT}"
    with AppProcess(write_app(tmp_path / "app", client), CLIENTAPP) as process:
        node = Node(tmp_path, process)
        node.port.add(1, "train.dies")
        process.start()
        again.touch()
        held = node.port.add(2, expires_in_s=2.0)
        node.serve()
        assert node.port.errors[held].code == 1
        assert "was still being loaded when the message's time was over" in node.port.errors[held].reason
        again.unlink()
        after = node.port.add(3)
        node.serve()
        assert node.calls(after) == 1


def test_repro_the_time_in_which_a_content_was_fetched_is_over_for_the_app(node: Node) -> None:
    fetch = node.port.fetch

    def slowly(task: FlowerTask) -> Path | Problem:
        time.sleep(1.0)
        return fetch(task)

    node.port.fetch = slowly  # type: ignore[method-assign]
    message = node.port.add(1, "train.hangs", expires_in_s=2.0)
    began = time.monotonic()
    node.serve()
    assert time.monotonic() - began < 2.6
    assert node.port.errors[message].code == 8


def test_while_the_app_works_the_device_says_that_it_is_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_sdk.flower.serving.PRESENCE_S", 0.2)
    message = node.port.add(1, "train.hangs", expires_in_s=2.0)
    node.serve()
    busy = [poll for poll in node.port.polls if poll.busy is not None]
    assert {poll.busy for poll in busy} == {message}
    assert {poll.hold_s for poll in busy} == {0.0}
    assert len(busy) >= 3


@on_day(1, of=2)
def test_a_stop_ends_it_within_a_second_also_while_the_app_hangs(tmp_path: Path, app_dir: Path) -> None:
    stop = Event()
    with AppProcess(app_dir, CLIENTAPP, stopped=stop.is_set) as own:
        node = Node(tmp_path, own)
        node.device._stop = node.stop = stop
        node.port.add(1, "train.hangs")
        own.start()
        threading.Timer(1.0, stop.set).start()
        began = time.monotonic()
        assert node.device.serve() == 0
        assert time.monotonic() - began < 10.0
        assert own.pid is None
    assert not node.port.errors


def test_a_run_that_is_over_loses_its_journal(node: Node) -> None:
    node.port.add(1)
    node.port.refuse = lambda message: problem("unknown-run", "there is no run r").problem
    node.serve()
    assert node.journal.runs == []


def test_a_run_that_has_ended_loses_its_journal_and_its_work_is_stopped(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_sdk.flower.serving.PRESENCE_S", 0.2)
    first = node.port.add(1)
    node.serve()
    assert node.port.polls[-1].runs == {"r": 5}
    assert node.calls(first) == 1
    node.port.over = ("r", "unknown")
    hanging = node.port.add(2, "train.hangs", expires_in_s=600.0)
    node.port.after = node.stop.set
    node.port.refuse = lambda message: LATE
    node.stop.clear()
    node.device.answer(node.port.tasks[0])
    assert node.texts("stopped") == ["The run is over, and the ClientApp was stopped."]
    assert hanging not in node.port.errors
    assert node.journal.runs == []


def test_a_wait_names_runs_whose_journal_is_deleted(node: Node) -> None:
    node.port.add(1)
    node.port.over = ("r",)
    node.serve()
    assert node.journal.runs == []


def test_waiting_is_said_once_with_its_reason(node: Node) -> None:
    waits = iter(range(3))

    def after() -> None:
        if next(waits, None) is None:
            node.stop.set()

    node.port.after = after
    node.device.serve()
    assert node.texts("waiting") == ["There is no Flower run."]


def test_an_app_that_cannot_be_loaded_is_named_at_the_start(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", client="import a_module_that_is_not_there\n")
    with AppProcess(app, CLIENTAPP) as process, pytest.raises(AppNotLoaded, match="a_module_that_is_not_there"):
        process.start()
