"""A message and a reply of 2 GB between real processes: they stream, and no process has more than two copies of one."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.coordinator.service.conftest import Server
from tests.flower.folders import write_app
from tests.flower.test_kills import Command, devices

SIZE = 2_000_000_000
SERVER = f"""
import json, os, re
from pathlib import Path
from time import sleep
import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := list(grid.get_node_ids())) < 1:
        sleep(0.5)
    records = RecordDict({{"a": ArrayRecord([np.zeros({SIZE}, np.uint8)])}})
    [reply] = grid.send_and_receive([Message(records, nodes[0], "query", group_id="1")])
    assert reply.has_content(), reply.error
    assert reply.content["a"]["0"].shape == ({SIZE},)
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    Path(os.environ["NUMBERS"]).write_text(json.dumps(peak))
"""
CLIENT = """
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
"""


def peak(process: int) -> int:
    """Return the most memory that the process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_gigabytes(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", server=SERVER, client=CLIENT)
    server = Server.start(tmp_path / "data")
    try:
        with devices(app, server, tmp_path, 1) as [device]:
            command = Command(app, server, tmp_path, wait_s=1500)
            assert command.end() == 0, command.errors
            peaks = {"coordinator": peak(server.process.pid), "device": peak(device.pid)}
            for child in psutil.Process(device.pid).children(recursive=True):
                peaks[f"of the device: {child.name()}"] = peak(child.pid)
    finally:
        server.stop(signal.SIGKILL)
    peaks["ServerApp"] = json.loads((tmp_path / "numbers.json").read_text())
    print({name: f"{found / 1e9:.2f} GB" for name, found in peaks.items()})
    assert peaks["coordinator"] < 0.7e9, "it streams"
    assert peaks["ServerApp"] < 3 * SIZE + 0.6e9, "its own message, and two copies of the reply"
    assert all(found < 2 * SIZE + 0.6e9 for name, found in peaks.items() if "device" in name), peaks
