"""What operators ask of runs, and what they are answered."""

from __future__ import annotations

import httpx2
import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.operators import DeviceView, RunView
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes, plan
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until


def test_runs_are_created_listed_and_shown(server: Server) -> None:
    run = server.create_run("first", select=5)
    shown = RunView.model_validate_json(server.http.get(f"/v1/runs/{run}").content)
    assert (shown.run, shown.status, shown.version, shown.origin) == ("first", "running", 0, "a test")
    assert shown in [RunView.model_validate(row) for row in server.http.get("/v1/runs").json()]
    assert server.create_run("first") == "first-2"


def test_a_plan_that_contradicts_itself_is_refused(server: Server) -> None:
    _, digest = model_bytes()
    wrong = plan("wrong", select=3, goal=9)
    response = server.http.post("/v1/runs", json={"plan": wrong, "init": digest})
    assert "goal (9) is above select (3)" in refused(response, 422, "invalid-plan")
    unknown = {**plan("wrong"), "colour": "blue"}
    assert "colour" in refused(
        server.http.post("/v1/runs", json={"plan": unknown, "init": digest}), 422, "invalid-plan"
    )
    missing = server.http.post("/v1/runs", json={"plan": plan("wrong"), "init": "0" * 64})
    refused(missing, 404, "unknown-checkpoint")
    refused(server.http.get("/v1/runs/wrong"), 404, "unknown-run")


def test_a_run_pauses_resumes_and_stops_for_good(server: Server) -> None:
    run = server.create_run("acts", select=5)

    def act(action: str) -> dict:
        return server.http.post(f"/v1/runs/{run}/{action}").json()

    assert act("pause")["status"] == "paused"
    assert act("resume")["status"] == "running"
    stopped = act("stop")
    assert stopped["status"] == "stopped"
    assert stopped["reason"]
    refused(server.http.post(f"/v1/runs/{run}/resume"), 409, "conflict")


def test_only_an_exhausted_run_is_advanced_and_only_by_somebody(server: Server) -> None:
    run = server.create_run("stuck", select=5)
    found = refused(server.http.post(f"/v1/runs/{run}/advance", json={"by": "olga"}), 409, "conflict")
    assert "is not exhausted" in found
    for nobody in ({}, {"by": ""}, {"by": "o" * 121}):
        refused(server.http.post(f"/v1/runs/{run}/advance", json=nobody), 422, "invalid-request")
    refused(server.http.post("/v1/runs/nothing/advance", json={"by": "olga"}), 404, "unknown-run")
    assert server.http.get(f"/v1/runs/{run}").json()["exhausted"] == ""


def test_only_a_barred_device_is_unbarred_and_only_by_somebody(server: Server) -> None:
    run = server.create_run("barring")
    found = refused(server.http.post(f"/v1/runs/{run}/devices/d1/unbar", json={"by": "olga"}), 409, "conflict")
    assert f"device d1 is not barred from run {run}" in found
    for nobody in ({}, {"by": ""}, {"by": "o" * 121}):
        refused(server.http.post(f"/v1/runs/{run}/devices/d1/unbar", json=nobody), 422, "invalid-request")
    refused(server.http.post("/v1/runs/nothing/devices/d1/unbar", json={"by": "olga"}), 404, "unknown-run")


def test_scores_are_kept_per_checkpoint_with_their_number_of_examples(server: Server) -> None:
    run = server.create_run("scored", select=5)
    digest = server.http.get(f"/v1/runs/{run}").json()["checkpoint"]
    report = {"version": 0, "digest": digest, "source": "test", "score": {"examples": 7, "metrics": {"accuracy": 0.1}}}
    reported = server.http.post(f"/v1/runs/{run}/metrics", json=report)
    assert reported.status_code == 200, reported.text
    (row,) = server.http.get(f"/v1/runs/{run}/metrics").json()
    assert (row["version"], row["source"], row["name"], row["value"], row["examples"]) == (
        0,
        "test",
        "accuracy",
        0.1,
        7,
    )
    refused(server.http.post(f"/v1/runs/{run}/metrics", json={**report, "digest": "0" * 64}), 409, "conflict")
    nan = b'{"version": 0, "digest": "%s", "score": {"examples": 1, "metrics": {"a": NaN}}}' % digest.encode()
    refused(server.http.post(f"/v1/runs/{run}/metrics", content=nan), 422, "invalid-request")


def test_devices_are_listed_by_pages_with_what_they_do(server: Server) -> None:
    run = server.create_run("fleet", select=1, goal=1)
    devices = [server.device(run) for _ in range(3)]
    devices[0].wait_for_work()
    devices[1].check_in(0)
    rows = [DeviceView.model_validate(row) for row in server.http.get("/v1/devices").json()]
    states = {row.device: (row.state, row.run) for row in rows}
    assert states[devices[0].id] == ("assigned", run)
    assert states[devices[1].id] == ("waiting", None)
    assert states[devices[2].id] == ("away", None)
    first = server.http.get("/v1/devices?limit=2").json()
    rest = server.http.get(f"/v1/devices?after={first[-1]['device']}").json()
    assert [row["device"] for row in [*first, *rest]] == [row.device for row in rows]


def test_rounds_are_listed_by_pages(server: Server) -> None:
    run = server.create_run("rounds", finish={"rounds": 3})
    device = server.device(run)
    for _ in range(3):
        work = device.wait_for_work()
        device.put(work, device.body(work)).raise_for_status()
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["status"] == "finished")
    rows = server.http.get(f"/v1/runs/{run}/rounds").json()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert {row["status"] for row in rows} == {"committed"}
    assert [row["round"] for row in server.http.get(f"/v1/runs/{run}/rounds?after=1&limit=1").json()] == [2]
    refused(server.http.get(f"/v1/runs/{run}/rounds/4"), 404, "unknown-round")


def test_the_process_says_that_it_lives_and_can_work(server: Server) -> None:
    assert server.http.get("/healthz").json() == {"ok": True}
    assert server.http.get("/readyz").json()["ok"] is True


@pytest.mark.parametrize("first", [True, False], ids=["the key first", "the key last"])
def test_repro_two_authorization_headers_are_refused_whichever_comes_first(server: Server, first: bool) -> None:
    """A proxy in front could have judged the other one."""
    values = [f"Bearer {server.key}", "Bearer other"][:: 1 if first else -1]
    answer = httpx2.get(server.url + Route.RUNS, headers=[("Authorization", value) for value in values])
    assert answer.status_code == 401
    assert "several Authorization headers" in answer.json()["detail"]
