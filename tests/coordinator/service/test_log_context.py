"""Each line of the log names the run, the round and the device that it is about."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinator.runtime import log_context
from coordinator.runtime.devices import SHORT_BYTES
from tests.coordinator.service.conftest import Server


def merged(**line: Any) -> dict[str, Any]:
    return dict(log_context.merge(None, "error", line))


@pytest.mark.slow
def test_a_line_about_an_update_names_its_run_round_attempt_and_device(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    try:
        run = server.create_run("logged")
        device = server.device(run)
        work = device.wait_for_work()
        shutil.rmtree(tmp_path / "data" / "blobs" / "spool")
        short = device.body(work)
        header = 8 + int.from_bytes(short[:8], "little")
        padded = short[8:header] + b" " * SHORT_BYTES  # so it is stored as a file
        assert device.put(work, len(padded).to_bytes(8, "little") + padded + short[header:]).status_code == 503
        found = json.loads(server.log.line("blobs refused"))
        assert {name: found.get(name) for name in ("run", "round", "attempt", "device")} == {
            "run": run,
            "round": work.round,
            "attempt": work.attempt,
            "device": device.id,
        }
    finally:
        server.stop()


@pytest.mark.slow
def test_a_line_about_an_action_names_its_run_and_round(tmp_path: Path) -> None:
    """It is performed by a thread of the coordinator's own, after the request."""
    server = Server.start(tmp_path / "data")
    try:
        run = server.create_run("drawn")
        shutil.rmtree(tmp_path / "data" / "blobs" / "spool")
        server.device(run).check_in()
        for words in ("will try again, every 2 s: Draw", "could not store data"):
            found = json.loads(server.log.line(words))
            assert {name: found.get(name) for name in ("run", "round")} == {"run": run, "round": 1}
            assert found["level"] == "warning"
    finally:
        server.stop()


def test_requests_at_the_same_time_do_not_share_what_is_known() -> None:
    async def request(run: str) -> dict[str, Any]:
        log_context.begin()
        log_context.known(run=run)
        await asyncio.sleep(0)
        await asyncio.to_thread(log_context.known, device=f"d-{run}")
        return merged(event="x")

    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(request("a"), request("b"))

    assert asyncio.run(both()) == [{"event": "x", "run": name, "device": f"d-{name}"} for name in ("a", "b")]


def test_outside_of_a_request_nothing_is_added_and_a_lines_own_words_stay() -> None:
    log_context.known(run="nowhere")
    assert merged(event="x") == {"event": "x"}

    async def request() -> dict[str, Any]:
        log_context.begin()
        log_context.known(run="a", round=7)
        return merged(event="x", run="another")

    assert asyncio.run(request()) == {"event": "x", "run": "another", "round": 7}
