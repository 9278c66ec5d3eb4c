"""The operator's client against a real coordinator: what it looks at more closely, and bytes that it counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk.http import paging
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from client_sdk.protocol.problems import ProblemError
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes, plan


@pytest.fixture
def operator(server: Server) -> Iterator[OperatorClient]:
    with OperatorClient(server.url, key=server.key) as client:
        yield client


def test_a_rounds_lanes_are_paged_and_the_device_has_its_rounds(server: Server, operator: OperatorClient) -> None:
    run = server.create_run("laned", select=2)
    devices = [server.device(run, slot) for slot in (0, 1)]
    for device in devices:
        device.register()
        device.check_in()
    work = [device.wait_for_work() for device in devices]
    devices[0].started(work[0])
    assert devices[0].put(work[0], devices[0].body(work[0])).is_success
    lanes = operator.insight.lanes(run, 1)
    assert (lanes.devices, lanes.secure) == (2, "")
    ends = {lane.device: lane.end for lane in lanes.lanes}
    assert ends[work[0].device] == "reported"
    assert ends[work[1].device] in ("waiting", "dropped")
    first, second = sorted(ends)
    assert [lane.device for lane in operator.insight.lanes(run, 1, limit=1).lanes] == [first]
    assert [lane.device for lane in operator.insight.lanes(run, 1, after=first).lanes] == [second]
    assert operator.insight.device(first).device.device == first
    with pytest.raises(ProblemError) as unknown:
        operator.insight.lanes(run, 99)
    assert unknown.value.problem.status == 404


def test_all_checkpoints_and_metrics_are_read_page_by_page(
    server: Server, operator: OperatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.create_run("paged", select=1)
    device = server.device(run, 0)
    device.register()
    for version in (1, 2, 3):
        device.check_in()
        work = device.wait_for_work()
        assert device.put(work, device.body(work)).is_success
        while operator.run(run).version < version:
            time.sleep(0.02)
    line = operator.checkpoints(run)
    assert [row.version for row in line] == [0, 1, 2, 3]
    for row in line:
        score = Score(examples=1, metrics={"loss": 1.0, "accuracy": 0.5})
        operator.report_metrics(run, MetricReport(version=row.version, digest=row.digest, score=score))
    metrics = operator.metrics(run)
    assert len(metrics) == 8
    asked: list[object] = []
    ask = operator._transport.page

    def counted(path: str, kind: Any, after: object, limit: int) -> Any:
        asked.append(after)
        return ask(path, kind, after, limit)

    monkeypatch.setattr(operator._transport, "page", counted)
    monkeypatch.setattr(paging, "PAGE", 3)
    assert paging.every_checkpoint(operator, run) == line
    assert paging.every_checkpoint(operator, run, after=1) == line[2:]
    assert paging.every_metric(operator, run) == metrics
    assert asked == [-1, 2, 1, -1, 1, 3], "a page says where the next one begins"


def test_the_fleet_and_the_process_are_told(server: Server, operator: OperatorClient) -> None:
    fleet = operator.insight.fleet()
    assert len(fleet.availability) == 24
    assert sum(fleet.by_state.values()) >= sum(one.devices for one in fleet.by_class)
    system = operator.insight.system()
    assert len(system.replicas) == 1
    assert any(group.count for group in system.requests)


def test_a_plan_is_checked_with_its_cost_and_creates_nothing(server: Server, operator: OperatorClient) -> None:
    before = len(operator.runs())
    body, digest = model_bytes()
    sent: list[int] = []
    assert operator.upload_checkpoint(body, sent.append) == digest
    assert sent == [len(body)]
    found = operator.insight.check_plan(plan("costly", select=3), digest)
    costs = {line.name: line.value for line in found.cost}
    assert found.run == "costly"
    assert costs["device_download_bytes"] > 0
    with pytest.raises(ProblemError, match="above select"):
        operator.insight.check_plan(plan("wrong", select=3, goal=9))
    assert len(operator.runs()) == before


def test_teams_of_two_scopes_begin_from_the_same_file_and_none_by_a_digest_alone(
    server: Server, operator: OperatorClient
) -> None:
    body, digest = model_bytes()
    operator.upload_checkpoint(body)
    operator.create_run(plan("mine", select=3), digest)
    key = operator.create_key(CreateKey(role="operator", scope="theirs*")).text
    with OperatorClient(server.url, key=key) as theirs:
        for ask in (theirs.insight.check_plan, theirs.create_run):
            with pytest.raises(ProblemError, match="or runs outside of your scope have it: send its file"):
                ask(plan("theirs", select=3), digest)
        theirs.upload_checkpoint(body)
        assert theirs.insight.check_plan(plan("theirs", select=3), digest).run == "theirs"
        assert theirs.create_run(plan("theirs", select=3), digest).checkpoint == digest


def test_a_download_and_an_upload_of_a_file_count_their_bytes(
    server: Server, operator: OperatorClient, tmp_path: Path
) -> None:
    body, digest = model_bytes()
    file = tmp_path / "first.safetensors"
    file.write_bytes(body)
    sent: list[int] = []
    got: list[int] = []
    assert operator.upload_checkpoint(file, sent.append) == digest
    server.create_run("counted")
    assert operator.download(digest, tmp_path / "again.safetensors", got.append) == sum(got) == sum(sent) == len(body)
