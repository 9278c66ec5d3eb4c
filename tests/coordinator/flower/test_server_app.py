"""One start of a ServerApp: its Context, what is saved of it, and how its run ends."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from client_sdk.flower.app import AppError, read_app
from client_sdk.flower.records import decode
from client_sdk.protocol.flower import CreateFlowerRun, FlowerMessage, FlowerRunView
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.flower.server_app import ServerAppRaised, run_server_app
from coordinator.flower.tally import Notice, ServerAppEvent
from tests.flower.fake_link import MemoryLink
from tests.flower.folders import write_app

HEAD = """
from flwr.app import Context, Message, MetricRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

def ask(grid, node, value, group):
    message = Message(RecordDict({"m": MetricRecord({"value": value})}), node, "query", group_id=group)
    return list(grid.send_and_receive([message]))

@app.main()
def main(grid: Grid, context: Context) -> None:
"""
COUNTS = (
    HEAD
    + """
    done = int(context.state["done"]["rounds"]) if "done" in context.state else 0
    print("starts with", done)
    for number in range(context.run_config["rounds"]):
        ask(grid, 100, number, str(number))
        context.state["done"] = MetricRecord({"rounds": done + number + 1})
"""
)


def start(folder: Path, link: MemoryLink, **config: object) -> tuple[FlowerRunView, list[str]]:
    app = read_app(folder)
    told: list[ServerAppEvent] = []
    request = CreateFlowerRun(run="trial", app=app.app, config=app.run_config([f"{k}={v}" for k, v in config.items()]))
    view = run_server_app(app, request, link, told.append)
    return view, [one.text for one in told if isinstance(one, Notice)]


def test_context_is_that_of_flower(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    assert (context.run_id, context.node_id, context.node_config) == (77, 1, {}), context
    assert context.run_config == {"lr": 0.5, "rounds": 2}
    assert grid.run.run_id == 77
    assert list(grid.get_node_ids()) == [100, 101, 102]
"""
    )
    view, _ = start(write_app(tmp_path / "app", server=server, config={"lr": 0.1, "rounds": 2}), MemoryLink(), lr=0.5)
    assert view.status == "finished"


def test_state_is_saved_when_it_changes_and_given_to_the_next_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, link = write_app(tmp_path / "app", server=COUNTS, config={"rounds": 3}), MemoryLink()
    saved: list[str] = []
    original = link.save_state
    link.save_state = lambda run, state: (saved.append(state.content), original(run, state))[1]  # type: ignore[method-assign]
    view, _ = start(folder, link)
    assert view.state is not None
    assert decode(link.contents[view.state])["done"]["rounds"] == 3
    assert len(saved) == 3, "after the second and the third push, and at the end"
    start(folder, link)
    assert "starts with 3" in capfd.readouterr().out


def test_app_without_state_saves_none(tmp_path: Path) -> None:
    view, _ = start(write_app(tmp_path / "app", server=HEAD + "    ask(grid, 100, 1, '')\n"), MemoryLink())
    assert view.state is None


def test_started_again_says_how_much_was_served_and_where_it_ends(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    for number in range(context.run_config["rounds"]):
        ask(grid, 100, number if number != context.run_config["other"] else -1, str(number))
"""
    )
    folder, link = write_app(tmp_path / "app", server=server, config={"rounds": 3, "other": 9}), MemoryLink()
    trained: list[str] = []
    link.answer = lambda one, records: (trained.append(one.message), records)[1]
    assert start(folder, link)[1] == []
    link.runs.clear()
    _, said = start(folder, link, rounds=5)
    assert said == [
        (
            "The run trial was started before and has 3 messages. As long as the ServerApp sends the same ones again, "
            "their replies are served, and nobody trains twice."
        ),
        "All 3 messages of the earlier start were sent again and 3 replies were served: the run goes on from there.",
    ]
    assert len(trained) == 5
    link.runs.clear()
    _, said = start(folder, link, rounds=5, other=1)
    assert said[1] == (
        "From round 1 (query) on the ServerApp sends something else than before: 1 replies of the earlier start were "
        "served, 4 of its messages are not used, and the run goes on anew."
    )
    assert len(trained) == 9


def test_app_that_raises_ends_its_run_with_its_own_frames(tmp_path: Path) -> None:
    server = (
        HEAD
        + """
    deeper()

def deeper():
    raise KeyError("no such layer")
"""
    )
    link = MemoryLink()
    with pytest.raises(ServerAppRaised) as raised:
        start(write_app(tmp_path / "app", server=server), link)
    assert str(raised.value) == (
        "The ServerApp raised KeyError: 'no such layer' (at server_app.py:17). Mend it, and start a new run."
    )
    assert raised.value.frames.count("server_app.py") == 2
    assert "site-packages" not in raised.value.frames
    assert raised.value.frames.endswith("KeyError: 'no such layer'")
    assert link.runs["trial"].status == "failed"
    assert "no such layer" in link.runs["trial"].reason


@pytest.mark.parametrize(("code", "status"), [("None", "finished"), ("0", "finished"), ("3", "failed")])
def test_app_that_exits(tmp_path: Path, code: str, status: str) -> None:
    link = MemoryLink()
    folder = write_app(tmp_path / "app", server=HEAD + f"    raise SystemExit({code})\n")
    if status == "failed":
        with pytest.raises(ServerAppRaised):
            start(folder, link)
    else:
        start(folder, link)
    assert link.runs["trial"].status == status


def test_repro_state_that_cannot_be_saved_at_the_end_fails_the_run(tmp_path: Path) -> None:
    server = HEAD + "    context.state['big'] = ConfigRecord({'number': 10**5000})\n"
    link = MemoryLink()
    with pytest.raises(ServerAppRaised, match="cannot be sent"):
        start(write_app(tmp_path / "app", server=server), link)
    assert link.runs["trial"].status == "failed"


def test_run_that_an_operator_stops_is_no_fault_of_the_app(tmp_path: Path) -> None:
    link = MemoryLink()

    def stopped(*_: object) -> None:
        raise problem("conflict", "The run trial was stopped.")

    link.pull = stopped  # type: ignore[method-assign,assignment]
    with pytest.raises(ProblemError, match=r"^The run trial was stopped\.$"):
        start(write_app(tmp_path / "app", server=HEAD + "    ask(grid, 100, 1, '')\n"), link)


@pytest.mark.slow
def test_coordinator_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    link = MemoryLink()
    link.refusals = count(1, 0)
    with pytest.raises(ProblemError, match=r"^No coordinator answers at http://x\.$"):
        start(write_app(tmp_path / "app", server=HEAD + "    pass\n"), link)


def test_app_that_cannot_be_loaded_creates_no_run(tmp_path: Path) -> None:
    link = MemoryLink()
    with pytest.raises(AppError, match=r"ServerApp .* cannot be imported"):
        start(write_app(tmp_path / "app", server="import nowhere_at_all"), link)
    assert link.runs == {}


def test_legacy_app_sends_from_many_threads(tmp_path: Path) -> None:
    server = """
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
import numpy as np

def server_fn(context):
    first = ndarrays_to_parameters([np.zeros(3)])
    strategy = FedAvg(initial_parameters=first, min_available_clients=3, fraction_evaluate=0.0)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

app = ServerApp(server_fn=server_fn)
"""
    link = MemoryLink()
    seen: list[FlowerMessage] = []
    link.answer = lambda one, records: (seen.append(one), records)[1]
    folder = write_app(tmp_path / "app", server=server)
    start(folder, link)
    assert sorted((one.group, one.node) for one in seen) == [(group, 100 + i) for group in "12" for i in range(3)]
    assert len(link.uploads) == 1, "nobody could read the replies, so the model stays, and its bytes are the same"
    first = [one.message for one in seen]
    link.runs.clear()
    start(folder, link)
    assert len(seen) == len(first), "started again, its threads name the same messages"
