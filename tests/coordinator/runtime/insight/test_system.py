"""What a process says of itself: who else serves, the disk, and the requests that its server counts."""

from __future__ import annotations

from pathlib import Path

from client_sdk.protocol.insight import StorageView
from coordinator.blobs import FileBlobs
from coordinator.requests import TABLE
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service.observe import RequestTimes, quantile
from coordinator.settings import Settings
from coordinator.store import open_store
from tests.coordinator.world import World


def test_replicas_see_each_other_until_one_is_silent_for_an_hour() -> None:
    world = World(1)
    first, second = world.coordinator.insight.system, world.replica().insight.system
    second.name = "another-2"
    first.note_alive()
    second.note_alive()
    assert {row.name for row in first.view().replicas} == {first.name, "another-2"}
    world.clock.at += 3601
    first.note_alive()
    (alone,) = second.view().replicas
    assert (alone.name, alone.seen_at) == (first.name, world.clock.at)
    assert alone.version == first.view().version


def test_a_process_without_a_server_or_a_disk_says_so() -> None:
    found = World(1).coordinator.insight.system.view()
    assert (found.storage, found.requests, found.streams, found.viewers) == (StorageView(), [], 0, 0)


def test_storage_is_measured(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    store = open_store(settings.database_url)
    blobs = FileBlobs(settings.blobs_folder)
    coordinator = Coordinator(Core(store, blobs, settings=settings))
    blobs.put(b"x" * 1000)
    found = coordinator.insight.system.view().storage
    assert found.blob_bytes == 1000
    assert found.database_bytes is not None
    assert found.database_bytes >= 4096
    assert found.disk_free_bytes is not None
    assert found.disk_free_bytes > 0
    store.close()


def test_requests_are_counted_by_group_and_held_ones_have_no_times() -> None:
    times = RequestTimes((1.0, 2.0), clock=lambda: 0.0)
    times.know(TABLE)
    for status in (200, 404, 503):
        times.note("GET", "/v1/runs", status, 0.5)
    times.note("POST", "/v1/checkins", 200, 25.0)
    times.note("GET", "/v1/nothing", 404, 0.1)
    found = {one.group: one for one in times.view()}
    assert sorted(found) == ["held", "other", "runs"]
    assert (found["runs"].count, found["runs"].refused, found["runs"].errors) == (3, 1, 1)
    assert (found["held"].count, found["held"].p95_s) == (1, None)
    assert found["runs"].p50_s == 0.5


def test_times_of_before_the_last_interval_are_forgotten() -> None:
    at = [0.0]
    times = RequestTimes((1.0, 10.0), clock=lambda: at[0])
    times.know(TABLE)
    times.note("GET", "/v1/runs", 200, 5.0)
    at[0] = 300.0
    times.note("GET", "/v1/runs", 200, 0.5)
    (both,) = times.view()
    assert both.p95_s is not None
    assert both.p95_s > 1
    at[0] = 600.0
    (lately,) = times.view()
    assert lately.p95_s is not None
    assert lately.p95_s <= 1
    at[0] = 1500.0
    (idle,) = times.view()
    assert (idle.count, idle.p50_s) == (2, None)


def test_a_quantile_lies_in_its_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(bounds, (0, 0, 0, 0), 0.5) is None
    assert quantile(bounds, (10, 0, 0, 0), 0.5) == 0.5
    assert quantile(bounds, (5, 5, 0, 0), 0.95) == 1.9
    assert quantile(bounds, (0, 0, 4, 0), 0.5) == 3.0
    assert quantile(bounds, (0, 0, 0, 3), 0.5) == 4.0
