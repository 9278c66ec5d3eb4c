"""Whole runs of ``benchmarks/flower_app``, on Quorate and on Flower, with what they cost."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks._process_tree import Metered

APP = Path(__file__).parent / "flower_app"
NODES = 4
"""Of the deployments."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run."""

    seconds: float
    cpu_s: float
    loss: float
    """The last round's, which both sides must have."""


def simulations(nodes: int) -> tuple[Callable[[Path], Sample], Callable[[Path], Sample]]:
    """Ours and Flower's simulation of so many nodes; each is given a folder."""

    def ours(folder: Path) -> Sample:
        with Metered() as metered:
            command = [sys.executable, "-m", "quorate", "flower", "run", str(APP), "--simulation", str(nodes), "--json"]
            metered.run([*command, "--run-config", _config(folder, nodes)], folder / "log", **_paths())
            return _sample(metered, folder)

    def theirs(folder: Path) -> Sample:
        with Metered() as metered:
            command = [sys.executable, "-m", "benchmarks._flower_simulation", str(APP), str(nodes), _result(folder)]
            metered.run(command, folder / "log", **_paths(str(APP)))
            return _sample(metered, folder)

    return ours, theirs


def our_deployment(folder: Path) -> Sample:
    """A coordinator, its devices, and the run."""
    served, log = folder / "served", folder / "log"
    quorate = [sys.executable, "-m", "quorate"]
    with Metered() as metered:
        metered.start(
            [*quorate, "serve", "--dev-authority", "--data", str(folder / "data"), "--port", "0", "--json"], served
        )
        metered.until(lambda: served.exists() and b"\n" in served.read_bytes(), "the start of the coordinator")
        begun = json.loads(served.read_text().splitlines()[0])
        for node in range(NODES):
            device = [*quorate, "device", "--flower", str(APP), "--url", begun["url"], "--json"]
            device += ["--token-file", begun["device_token_file"], "--folder", str(folder / f"device-{node}")]
            metered.start([*device, "--node-config", f"partition-id={node} num-partitions={NODES}"], log)
        run = [*quorate, "flower", "run", str(APP), "--url", begun["url"], "--key-file", begun["key_file"], "--json"]
        metered.run([*run, "--run-config", _config(folder, NODES)], log)
        return _sample(metered, folder)


def flowers_deployment(folder: Path) -> Sample:
    """A SuperLink, its SuperNodes, and ``flwr run``."""
    binaries, home = Path(sys.executable).parent, folder / "home"
    link, *others = _free_ports(1 + NODES)
    address = f"127.0.0.1:{link}"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    variables = {"FLWR_HOME": str(home), "PATH": f"{binaries}:{os.environ['PATH']}"}
    log = folder / "log"
    with Metered() as metered:
        superlink = [str(binaries / "flower-superlink"), "--insecure", "--disable-runtime-dependency-installation"]
        metered.start([*superlink, "--port", str(link)], log, **variables)
        metered.until(lambda: _answers(link), "the start of the SuperLink")
        for node, port in enumerate(others):
            supernode = [str(binaries / "flower-supernode"), "--insecure", "--superlink", address, "--port", str(port)]
            config = f"partition-id={node} num-partitions={NODES}"
            metered.start([*supernode, "--node-config", config], log, **variables)
        run = [str(binaries / "flwr"), "run", str(APP), "here", "--stream"]
        metered.run([*run, "--run-config", _config(folder, NODES)], log, **variables)
        metered.until(Path(_result(folder)).exists, "the end of Flower's run")
        return _sample(metered, folder)


def _sample(metered: Metered, folder: Path) -> Sample:
    seconds, cpu_s = metered.seconds, metered.cpu_s
    result = Path(_result(folder))
    if not result.exists():
        raise SystemExit(f"the run has no result:\n{(folder / 'log').read_text()[-3000:]}")
    return Sample(seconds, cpu_s, float(result.read_text().split()[1]))


def _result(folder: Path) -> str:
    return str(folder / "result")


def _config(folder: Path, nodes: int) -> str:
    return f'nodes={nodes} result="{_result(folder)}"'


def _paths(*more: str) -> Mapping[str, str]:
    return {"PYTHONPATH": ":".join([str(Path(__file__).parent.parent), *more])}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True
