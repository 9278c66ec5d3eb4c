"""A coordinator in one process with nodes of a Flower app: partitions, states, errors, and a folder that keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from client_sdk.flower import records
from client_sdk.flower.app import AppFolder, read_app
from client_sdk.flower.app_process import AppNotLoaded
from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerMessage,
    FlowerReply,
    PullReplies,
    PushMessages,
)
from simulation.flower import SimulatedLink, simulated
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.flower.apps import write_app

pytestmark = pytest.mark.slow

NODES = 3


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    return read_app(write_app(tmp_path_factory.mktemp("app") / "app"))


@pytest.fixture(scope="module")
def link(app: AppFolder) -> Iterator[SimulatedLink]:
    with simulated(app, NODES, workers=2) as found:
        yield found


def begin(link: SimulatedLink, app: AppFolder, run: str) -> None:
    link.create(CreateFlowerRun(run=run, app=app.app, config={"rate": 0.5}))


def ask(link: SimulatedLink, run: str, kind: str, group: str) -> list[FlowerReply]:
    """The answers of all nodes to one message, in order of their partition."""
    content = records.encode(RecordDict({"arrays": ArrayRecord([np.ones(4)])}))
    link.upload(run, content)
    nodes = [node_id(f"node-{number:04}") for number in range(NODES)]
    names = [hashlib.sha256(f"{run} {group} {node}".encode()).hexdigest() for node in nodes]
    link.push(
        run,
        PushMessages(
            messages=tuple(
                FlowerMessage(message=name, node=node, kind=kind, group=group, ttl_s=60, content=content.digest)
                for name, node in zip(names, nodes, strict=True)
            )
        ),
    )
    found: dict[str, FlowerReply] = {}
    while len(found) < len(names):
        left = tuple(name for name in names if name not in found)
        found |= {reply.message: reply for reply in link.pull(run, PullReplies(messages=left, hold_s=30)).replies}
    return [found[name] for name in names]


def content(link: SimulatedLink, run: str, reply: FlowerReply) -> RecordDict:
    assert reply.content is not None, reply.error
    return records.decode(link.download(run, reply.content))


def test_nodes_are_there_with_ids_that_never_change(link: SimulatedLink, app: AppFolder) -> None:
    begin(link, app, "there")
    nodes = link.nodes("there").nodes
    assert {node.node: node.device for node in nodes} == {
        node_id(device): device for device in ("node-0000", "node-0001", "node-0002")
    }


def test_each_has_its_partition_and_a_state_of_its_own_in_each_run(link: SimulatedLink, app: AppFolder) -> None:
    for run in ("one", "two"):
        begin(link, app, run)
        for number in (1, 2):
            replies = [content(link, run, reply) for reply in ask(link, run, "train", str(number))]
            for partition, found in enumerate(replies):
                np.testing.assert_array_equal(found["arrays"].to_numpy_ndarrays()[0], np.ones(4) + partition + 0.5)
                assert found["metrics"]["calls"] == number


def test_what_an_app_raises_and_what_ends_its_process_is_an_error(link: SimulatedLink, app: AppFolder) -> None:
    begin(link, app, "wrong")
    for kind, code in (("train.fails", 2), ("train.dies", 8)):
        assert [reply.error.code if reply.error else None for reply in ask(link, "wrong", kind, kind)] == [code] * NODES
    assert [content(link, "wrong", reply)["metrics"]["calls"] for reply in ask(link, "wrong", "train", "2")] == [1] * 3
    assert link.end("wrong", EndFlowerRun(status="finished")).errors == 2 * NODES


def test_processes_live_from_message_to_message(link: SimulatedLink, app: AppFolder) -> None:
    begin(link, app, "live")
    pids = [
        content(link, "live", reply)["metrics"]["pid"] for group in "12" for reply in ask(link, "live", "query", group)
    ]
    assert len(set(pids)) <= 2


def test_a_folder_keeps_the_run_and_the_states_of_its_nodes(app: AppFolder, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for number in (1, 2):
        with simulated(app, NODES, workers=1, data=folder) as link:
            begin(link, app, "kept")
            replies = ask(link, "kept", "train", str(number))
            assert [content(link, "kept", reply)["metrics"]["calls"] for reply in replies] == [number] * NODES
            view = link.view("kept")
            assert (view.messages, view.replies, view.status) == (number * NODES, number * NODES, "running")
            assert len(list((folder / "flower-nodes").glob("node-000?/kept.*"))) == NODES
            if number == 2:
                link.end("kept", EndFlowerRun(status="finished"))
    assert not list((folder / "flower-nodes").glob("node-000?/*"))
    assert quorate("verify", str(folder)) == 0


def test_an_app_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    wrong = read_app(write_app(tmp_path / "app", client="import a_module_that_is_not_there\n"))
    with pytest.raises(AppNotLoaded, match="a_module_that_is_not_there"), simulated(wrong, 2, workers=2):
        pass
