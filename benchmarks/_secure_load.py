"""The work of a round's devices, done again beside the floor, which needs none of it.

A server's request costs up to twice the CPU seconds where other processes keep the machine's cores and caches busy. In
a round the devices do, with their keys and masks. So the floor is measured beside one process that works as much, and a
request is sent when that process has used the CPU seconds that the devices had used when they sent it.

Devices on the same cores make the server's CPU dearer: the same 100 replayed requests cost its floor 1.4 to 2.0 s
alone, and 2.0 to 2.1 s beside two processes that compute. The floor checks both signatures of a message, holds what
the round holds, and opens a connection where the device opened one.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

_WORK = """
import hashlib
import numpy as np
lanes = np.arange(200_000)
while True:
    hashlib.sha256(lanes).digest()
    lanes += 1
    [str(number) for number in range(5_000)]
"""
_LOOK_S = 0.005
_TICKS = os.sysconf("SC_CLK_TCK")


class Load:
    """A process that works while the block runs: hashes, arithmetic on a vector and the interpreter, on one core."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, "-c", _WORK])
        self._stat = Path(f"/proc/{self._process.pid}/stat")
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def until(self, cpu_s: float) -> None:
        """Returns when the process has worked for so long."""
        if self.cpu_s() < cpu_s:
            self._number += 1
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (cpu_s, self._number, turn))
            await turn

    async def watch(self) -> None:
        """Lets those who wait go on. To be run beside them, and cancelled after them."""
        while True:
            spent = self.cpu_s()
            while self._waiting and self._waiting[0][0] <= spent:
                heapq.heappop(self._waiting)[2].set_result(None)
            await asyncio.sleep(_LOOK_S)
