"""What an operator with a scope sees: lists, meters, readiness, checkpoints and streams show only runs in it; and what
is held open ends with the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from client_sdk.protocol.operators import EventView, possession
from client_sdk.protocol.workers import WorkerPoll
from coordinator.access import LOCAL_OWNER, Grant, Operator
from coordinator.service.stream import _events
from coordinator.settings import Settings
from tests.coordinator.service.apps import give_back, lent
from tests.coordinator.service.devices import Signing
from tests.coordinator.world import World

HEADERS = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
NEXT = object()


class Served:
    """Two runs, ``red`` and ``blue``, of which ``blue`` has a round under way with all devices."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.world = World(8)
        self.app = lent(self.world.coordinator, settings or Settings(reread_s=20))
        self.service = self.app.state.service
        for number, name in enumerate(("red", "blue")):
            model = self.world.model()
            model["marks"] = model["marks"] + number
            self.world.create(model, name=name, task={"learner": f"tests:{name}"})
            self.world.clock.at += 1

    def key(self, role: str, scope: str, **more: Any) -> str:
        asked = CreateKey.model_validate({"role": role, "scope": scope, **more})
        return self.world.coordinator.access.keys.create(LOCAL_OWNER, asked).text

    def talk(self, about: Callable[[httpx2.AsyncClient], Any]) -> Any:
        async def talk() -> Any:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=HEADERS) as http:
                return await about(http)

        return asyncio.run(talk())

    def ask(self, method: str, path: str, key: str, **options: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = self.talk(lambda http: http.request(method, path, headers=headers, **options))
        assert isinstance(answer, httpx2.Response)
        return answer

    def get(self, path: str, key: str) -> Any:
        return self.ask("GET", path, key).raise_for_status().json()

    def checkpoint(self, run: str) -> str:
        return Route.CHECKPOINT.format(digest=self.world.coordinator.operators.run(run).checkpoint)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.service.close()
    give_back(made.app)


def test_runs_are_listed_within_the_scope(served: Served) -> None:
    for scope, runs in (("*", ["red", "blue"]), ("red", ["red"]), ("b*", ["blue"]), ("green", [])):
        assert [view["run"] for view in served.get(Route.RUNS, served.key("viewer", scope))] == runs


def test_devices_and_workers_are_listed_by_what_they_do_for_runs_in_scope(served: Served) -> None:
    world = served.world
    world.worker()
    message = world.message().model_copy(update={"learners": {"tests:blue": "1"}})
    for row in world.rows:
        world.coordinator.devices.check_in(row, message)()
    world.settle()
    blue = served.get(Route.DEVICES, served.key("viewer", "blue"))
    assert [(view["run"], view["state"]) for view in blue] == [("blue", "assigned")] * 4
    ids = [view["device"] for view in blue]
    page = served.get(f"{Route.DEVICES}?limit=2&after={ids[0]}", served.key("viewer", "b*"))
    assert [view["device"] for view in page] == ids[1:3]
    assert served.get(Route.DEVICES, served.key("owner", "red")) == []
    assert len(served.get(Route.DEVICES, served.key("viewer", "*"))) == 8
    assert served.get(Route.WORKERS, served.key("viewer", "blue")) == []
    assert len(served.get(Route.WORKERS, served.key("viewer", "*"))) == 1


def test_a_run_is_created_with_a_name_in_scope_only(served: Served) -> None:
    world = served.world
    init = str(world.coordinator.operators.run("red").checkpoint)
    proof = possession([world.blobs.open(init).read()])

    def create(name: str, scope: str) -> httpx2.Response:
        message = {"plan": world.plan(name=name), "init": init, "init_proof": proof}
        return served.ask("POST", Route.RUNS, served.key("operator", scope), json=message)

    assert create("green", "gr*").json()["run"] == "green"
    refused = create("black", "gr*")
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/not-permitted")
    again = create("green", "green")
    assert "would be named green-2, which is outside of your scope" in again.json()["detail"]
    assert create("green", "gr*").json()["run"] == "green-2"
    assert {row.run for row in world.store.runs()} == {"red", "blue", "green", "green-2"}


def test_an_operator_of_one_run_owns_it_alone(served: Served) -> None:
    served.world.create(name="pink")
    key = served.key("operator", "red")
    assert served.ask("POST", "/v1/runs/red/pause", key).json()["status"] == "paused"
    for run in ("blue", "pink", "nowhere"):
        refused = served.ask("POST", f"/v1/runs/{run}/pause", key)
        assert refused.status_code == 403, "whether the run exists is not said"
        assert refused.json()["detail"].startswith(f"run {run} is outside of your scope")
    assert served.world.coordinator.operators.run("blue").status == "running"


def test_who_owns_one_run_and_views_all_changes_no_other(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rita = Operator("oidc:rita", (Grant.parse("owner red"), Grant.parse("viewer *")))
    monkeypatch.setattr(served.world.coordinator.access, "operator", lambda text: rita)
    assert [view["run"] for view in served.get(Route.RUNS, "a token")] == ["red", "blue"]
    assert served.ask("POST", "/v1/runs/red/pause", "a token").status_code == 200
    refused = served.ask("POST", "/v1/runs/blue/pause", "a token")
    assert refused.json()["detail"] == "run blue is outside of your scope as operator; you have: owner red, viewer *"
    assert {row["run"] for row in served.get(Route.AUDIT, "a token")} == {"red"}, "rows of no run are for owners of all"


def test_checkpoints_are_those_of_runs_in_scope(served: Served) -> None:
    key = served.key("viewer", "red")
    assert served.ask("GET", served.checkpoint("red"), key).status_code == 200
    assert served.ask("GET", served.checkpoint("blue"), served.key("viewer", "*")).status_code == 200
    for method in ("GET", "HEAD"):
        assert served.ask(method, served.checkpoint("blue"), key).status_code == 404
    assert "private" in served.ask("GET", served.checkpoint("red"), key).headers["cache-control"]


def test_meters_are_those_of_runs_in_scope(served: Served) -> None:
    served.world.coordinator.operators.stop("red")
    everything = served.ask("GET", "/metrics", served.key("viewer", "*")).text
    assert 'quorate_runs{status="running"} 1.0' in everything
    assert "quorate_requests_total" in everything
    red = served.ask("GET", "/metrics", served.key("viewer", "red")).text
    assert 'quorate_runs{status="stopped"} 1.0' in red
    assert "running" not in red
    assert "quorate_requests_total" not in red
    assert "quorate_waiting_devices" not in red
    assert served.ask("GET", "/metrics", "").status_code == 401


def test_meters_cost_nothing_for_runs_that_are_over(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    key, operators = served.key("viewer", "*"), served.world.coordinator.operators
    served.world.pass_time(30)
    assert sum(view.missed for view in operators.rounds("red"))
    operators.stop("red")

    def runs() -> list[str]:
        return [
            line
            for line in served.ask("GET", "/metrics", key).text.splitlines()
            if line.startswith(("quorate_r", "quorate_m"))
        ]

    before, read, view = runs(), list[str](), operators.run
    monkeypatch.setattr(operators, "run", lambda run: read.append(run) or view(run))
    monkeypatch.setattr(operators, "ended_rounds", lambda run, *_: read.append(run) or [])
    assert [line for line in runs() if "request" not in line] == [line for line in before if "request" not in line]
    assert set(read) == {"blue"}


def test_readiness_names_no_run_without_a_key(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"red": "it is red", "blue": "it is blue"}
    monkeypatch.setattr(served.world.coordinator, "stalled", lambda: reasons)
    served.world.coordinator.core.process.run_errors._reasons = {("blue", ""): "unreadable"}
    assert served.get("/readyz", "") == {"ok": True}
    assert served.get("/readyz", served.key("viewer", "red")) == {
        "ok": True,
        "stalled": {"red": "it is red"},
        "run_errors": {},
    }
    everything = served.get("/readyz", served.key("viewer", "*"))
    assert (everything["stalled"], everything["run_errors"], everything["runs"]) == (reasons, {"blue": "unreadable"}, 2)
    assert served.ask("GET", "/readyz", "qk_junk").status_code == 401
    assert "red" not in served.ask("GET", "/healthz", "").text


def test_the_audit_is_that_of_runs_in_scope(served: Served) -> None:
    for run in ("red", "blue"):
        served.ask("POST", f"/v1/runs/{run}/pause", served.key("operator", run)).raise_for_status()
    red = served.get(Route.AUDIT, served.key("owner", "red"))
    assert [(row["run"], row["action"]) for row in red] == [("red", "run.pause")]
    everything = served.get(Route.AUDIT, served.key("owner", "*"))
    assert [row["run"] for row in everything if row["run"]] == ["red", "blue"]
    assert served.get(f"{Route.AUDIT}?limit=1&after={everything[0]['number']}", served.key("owner", "b*"))


# ------------------------------------------------------------ what is held open


def stream(served: Served, key: str, between: Callable[[], None]) -> list[list[EventView]]:
    """The frames of a stream of ``red`` that was open while ``between`` was called, up to its end."""

    async def follow() -> list[list[EventView]]:
        pages: list[list[EventView]] = []
        frames = _events(served.service, key, "red", 0, True)
        await anext(frames)
        pages.append(events_of(await anext(frames)))
        waiting = asyncio.ensure_future(anext(frames, NEXT))
        while not served.service.signals.waiting:
            await asyncio.sleep(0)
        await asyncio.to_thread(between)
        while (frame := await asyncio.wait_for(waiting, 8)) is not NEXT:
            pages.append(events_of(frame))  # type: ignore[arg-type]
            waiting = asyncio.ensure_future(anext(frames, NEXT))
        return pages

    return asyncio.run(follow())


def events_of(frame: bytes) -> list[EventView]:
    lines = [line for line in frame.decode().splitlines() if line.startswith("data: ")]
    return [EventView.model_validate_json(line.removeprefix("data: ")) for line in lines]


def test_a_stream_ends_when_its_key_is_revoked(served: Served) -> None:
    key, owner = served.key("viewer", "red"), served.key("owner", "*")

    def revoke() -> None:
        path = Route.REVOKE_KEY.format(key=key.split("_")[1])
        served.ask("POST", path, owner).raise_for_status()

    assert len(stream(served, key, revoke)) == 1, "it is woken by that alone"


def test_what_happens_after_a_key_was_revoked_by_a_replica_is_not_shown(served: Served) -> None:
    key = served.key("viewer", "red")

    def between() -> None:
        served.world.replica().access.keys.revoke(LOCAL_OWNER, key.split("_")[1])
        served.world.coordinator.operators.pause("red")

    assert len(stream(served, key, between)) == 1


def test_a_stream_ends_when_its_key_has_expired(served: Served) -> None:
    key = served.key("viewer", "red", expires_in_s=60)

    def between() -> None:
        served.world.clock.at += 60
        served.world.coordinator.operators.pause("red")

    assert len(stream(served, key, between)) == 1


def test_a_stream_waits_no_longer_than_its_key_is_valid(served: Served) -> None:
    """Nothing wakes it: the wait itself ends."""
    key = served.key("viewer", "red", expires_in_s=0.2)

    def between() -> None:
        served.world.clock.at += 0.2

    assert len(stream(served, key, between)) == 1


def test_a_stream_of_a_valid_key_goes_on(served: Served) -> None:
    def stop() -> None:
        served.world.coordinator.operators.stop("red")

    pages = stream(served, served.key("viewer", "red"), stop)
    assert [event.kind for event in pages[-1]] == ["Stopped"]


def test_a_held_poll_ends_when_its_worker_is_revoked(served: Served) -> None:
    workers = served.world.coordinator.workers
    made = served.world.worker()
    auth = Signing(served.world.worker_keys[-1], served.world.clock.now)
    poll = WorkerPoll(instance="a", learners={}, data=[], nproc=1, hold_s=20)

    async def talk(http: httpx2.AsyncClient) -> httpx2.Response:
        held = asyncio.ensure_future(http.post(Route.LEASES, json=json.loads(poll.model_dump_json()), auth=auth))
        while not served.service.signals.waiting:
            await asyncio.sleep(0)
        await asyncio.to_thread(workers.revoke, made.worker)
        return await asyncio.wait_for(held, 15)

    answer = served.talk(talk)
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/revoked-key")
    assert "was revoked" in answer.json()["detail"]
