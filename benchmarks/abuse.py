"""Measures what attackers cost honest devices: a server of its own, honest devices and attackers at other addresses.

    honest_p99_under_abuse_ratio   99th percentile of the time of an honest check-in while attackers attack, over the
                                   same without them, in interleaved windows; the aim is 2
    honest_p99_ms                  that percentile while they attack; ``limit``: without them
    honest_answers_under_abuse     share of honest check-ins that were answered with 200
    server_cpu_under_abuse         CPU seconds of the server in a second, while they attack; ``limit``: without them
    attackers_cpu                  CPU seconds of the attackers in a second: they take it from the same machine
    attacks_per_s                  requests and connections that they tried in a second, of all kinds
    answered_<status>_per_s        of these, the answers in a second; a connection that is only closed has none

Honest devices sign each check-in, and check in at fixed times, whether the one before was answered in time or not: a
slow answer does not hide those after it. The attackers (``_attackers``) are a process of their own. The authority that
they flood is inside the coordinator's process, where it costs honest devices most.
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
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks._progress import counted
from benchmarks._wire import Peer, ServerProcess, enrol
from benchmarks.harness import Row, Spread, main
from client_sdk.credentials.identity_keys import AUTHORITY_ID_BYTES
from client_sdk.identity import DeviceKey
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

    def __init__(self, server: ServerProcess, victim: DeviceKey) -> None:
        """``victim``: the registered key in whose name they attack, and whose requests they overhear."""
        authority = server.token.authority[:AUTHORITY_ID_BYTES].hex()
        command = [sys.executable, "-m", "benchmarks._attackers", str(server.port), authority]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(victim.seed.hex() + "\n")

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
        self.answers: dict[str, float] = defaultdict(float)
        """Answers to attackers, by status."""

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
    for name, count in after.items():
        what = name.rpartition(" ")[2]
        if what == "tried":
            found.attacks += (count - before.get(name, 0)) / lasted_s
        elif what != "cpu_s":
            found.answers[what] += (count - before.get(name, 0)) / lasted_s
    return found


async def pairs(quick: bool) -> tuple[list[Window], list[Window]]:
    """Windows under attack and without, in turn."""
    count, seconds = (6, 3.0) if quick else (18, 3.0)
    gc.collect()
    gc.freeze()  # a collection would stop the honest devices, which are measured here
    attacked: list[Window] = []
    quiet: list[Window] = []
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        victim = DeviceKey.create()
        peers = await enrol(server, DEVICES, "127.1.0.")
        peers += await enrol(server, 1, "127.1.1.", victim)
        attack = Attack(server, victim)
        try:
            await window(server, peers, attack, seconds)
            for number in counted("windows", range(count)):
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
    for status in sorted({status for one in attacked for status in one.answers}):
        per_s = statistics.median(one.answers[status] for one in attacked)
        yield Row(name=f"answered_{status}_per_s", value=per_s, unit="1/s")


if __name__ == "__main__":
    main("abuse", measure)
