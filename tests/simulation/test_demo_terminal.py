"""A demo on a terminal: its page stays up after the last round, until the user ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from client_sdk.protocol.names import Route
from tests.coordinator.service.test_logging_in import LINK, browser, with_page
from tests.rotating import on_day
from tests.simulation import synthetic
from tests.terminals import on_terminal

SMALL = ("--devices", "12", "--select", "8", "--goal", "6", "--rounds", "1", "--secure-rounds", "0")


def command(tmp_path: Path) -> list[str]:
    data = synthetic.write(tmp_path / "blobs.npz")
    demo = ["demo", *SMALL, "--data", str(data), "--folder", str(tmp_path / "demo")]
    return [sys.executable, "-m", "client_sdk.cli", *demo]


@on_day(1, of=2)
def test_the_page_stays_up_after_the_last_round_until_ctrl_c(tmp_path: Path) -> None:
    with on_terminal(command(tmp_path), with_page(tmp_path / "page"), columns=160) as keyboard:
        said = keyboard.until("Ctrl-C ends it.", 120)
        assert "% after 1 plain round, in " in said
        url, token = LINK.findall(said)[-1]
        with browser(url) as page:
            answer = page.post(Route.SESSION_BY_LINK, json={"token": token})
            assert answer.status_code == 201, answer.text
            (run,) = page.get(Route.RUNS).json()
            assert run["status"] == "finished"
        family = psutil.Process(keyboard.process.pid).children(recursive=True)
        assert len(family) >= 3, "the coordinator and the fleet"
        keyboard.interrupt()
        assert keyboard.wait() == 0, keyboard.text
        assert "Stopped" not in keyboard.text
        _, alive = psutil.wait_procs(family, timeout=1)
        assert alive == []
