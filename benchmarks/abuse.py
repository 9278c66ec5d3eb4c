"""Measures what attackers cost honest devices: a server of its own, honest devices and attackers at other addresses.

    honest_p99_under_abuse_ratio   99th percentile of the time of an honest check-in while attackers attack, over the
                                   same without them, in interleaved windows; the aim is 2
    honest_p99_ms                  that percentile while they attack; ``limit``: without them
    honest_answers_under_abuse     share of honest check-ins that were answered with 200
    server_cpu_under_abuse         CPU seconds of the server in a second, while they attack; ``limit``: without them
    attackers_cpu                  CPU seconds of the attackers in a second: they take it from the same machine
    attacks_per_s                  requests and connections that they tried in a second

Honest devices check in at fixed times, whether the one before was answered in time or not: a slow answer does not hide
those after it. The attackers (``_attackers``) are a process of their own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._wire import Peer, ServerProcess, enrol
from benchmarks.harness import Row, Spread, main
from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.names import Route

DEVICES = 40
EVERY_S = 0.4
"""Each honest device checks in so often: 100 check-ins a second of all."""
SETTLE_S = 1.0
"""After attackers begin or end, before a window is measured."""
CHECK_IN = CheckIn(examples=100, learners={}, hold_s=0).model_dump_json().encode()


class Attack:
    """The process of the attackers."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks._attackers", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def order(self, line: str) -> dict[str, float]:
        """Sends ``on``, ``off`` or ``report``; returns what they have spent and tried so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Window:
    """One window of honest check-ins, and what the server and the attackers spent meanwhile."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.refused = 0
        self.server_cpu = self.attackers_cpu = self.attacks = 0.0
        """Each in a second."""

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.times_s, n=100, method="inclusive")[98]


async def window(server: ServerProcess, peers: list[Peer], attack: Attack, seconds: float) -> Window:
    """All devices check in for so long, evenly spread over time."""
    found, began = Window(), time.perf_counter()
    cpu_s, before = server.cpu_s(), attack.order("report")

    async def device(number: int, peer: Peer) -> None:
        due_at = began + EVERY_S * number / len(peers)
        while due_at < began + seconds:
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            try:
                await peer.request("POST", Route.CHECK_IN, CHECK_IN)
            except (RuntimeError, OSError, asyncio.IncompleteReadError):
                found.refused += 1
                peer.connection.close()
            found.times_s.append(time.perf_counter() - due_at)
            due_at += EVERY_S

    await asyncio.gather(*(device(number, peer) for number, peer in enumerate(peers)))
    lasted_s, after = time.perf_counter() - began, attack.order("report")
    found.server_cpu = (server.cpu_s() - cpu_s) / lasted_s
    found.attackers_cpu = (after["cpu_s"] - before["cpu_s"]) / lasted_s
    found.attacks = sum(after[name] - before.get(name, 0) for name in after if name.endswith("tried")) / lasted_s
    return found


async def pairs(quick: bool) -> tuple[list[Window], list[Window]]:
    """Windows under attack and without, in turn."""
    count, seconds = (6, 3.0) if quick else (18, 3.0)
    gc.collect()
    gc.freeze()  # a collection would stop the honest devices, which are measured here
    attacked: list[Window] = []
    quiet: list[Window] = []
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        attack = Attack(server.port)
        try:
            peers = await enrol(server, DEVICES, "127.1.0.")
            await window(server, peers, attack, seconds)
            for number in range(count):
                for on in (True, False) if number % 2 else (False, True):
                    attack.order("on" if on else "off")
                    await asyncio.sleep(SETTLE_S)
                    (attacked if on else quiet).append(await window(server, peers, attack, seconds))
        finally:
            attack.end()
            for peer in peers:
                peer.connection.close()
    return attacked, quiet


def measure(quick: bool) -> Iterator[Row]:
    """Measures all rows."""
    attacked, quiet = asyncio.run(pairs(quick))
    ratio = Spread.of([ours.p99_s / other.p99_s for ours, other in zip(attacked, quiet, strict=True)])
    name = "honest_p99_under_abuse_ratio"
    yield Row(name=name, value=ratio.median, unit="x", aim=2.0, met=ratio.met(2.0))
    p99, base = (1000 * statistics.median(one.p99_s for one in windows) for windows in (attacked, quiet))
    yield Row(name="honest_p99_ms", value=p99, unit="ms", limit=base, ratio=p99 / base)
    asked, refused = (sum(one) for one in zip(*((len(w.times_s), w.refused) for w in attacked), strict=True))
    yield Row(name="honest_answers_under_abuse", value=(asked - refused) / asked, unit="", aim=1.0, met=refused == 0)
    spent, base = (statistics.median(one.server_cpu for one in windows) for windows in (attacked, quiet))
    yield Row(name="server_cpu_under_abuse", value=spent, unit="s/s", limit=base, ratio=spent / base)
    yield Row(name="attackers_cpu", value=statistics.median(one.attackers_cpu for one in attacked), unit="s/s")
    yield Row(name="attacks_per_s", value=statistics.median(one.attacks for one in attacked), unit="1/s")


if __name__ == "__main__":
    main("abuse", measure)
