"""Measures whole secure rounds over HTTP: ``quorate serve`` as a process of its own, and real clients in threads.

``python -m benchmarks.secure_round [--quick] [--json]``. 300 devices, 200,000 parameters, q = 16, *strict*; in each
round nine devices vanish: three before they share, three before they mask, three before they sign. Only the server's
CPU counts. ``--quick``: 40 devices, 20,000 parameters. Each round's sum is checked before a ratio is reported. The full
run takes half an hour on a quiet machine, most of it waiting for devices that have vanished. An exchange waits three
times as long as the longest exchange of a first round took, so that the devices that stay are in time on a busy machine
too. The server, and its floor, has half of the machine's cores to itself (``_cores``).

    secure_round_server_cpu_vs_floor   CPU seconds of the server for a round, from the first check-in to the last
                                       answer, over its floor; median of a run's pairs, each a round and then its floor.
                                       Floor: the same requests, with the same bytes and signed afresh, sent to the
                                       barest FastAPI app, which checks their signatures and lets them wait for each
                                       other (``_secure_floor``), beside as much work as the devices do
                                       (``_secure_load``); and the bare opening of the same sum
                                       (``_secagg_floor.unmask``)
    secure_round_server_cpu_vs_durable   the same over a floor that also stores each message durably, as one row, before
                                       it acknowledges it: as any service must that keeps what it acknowledged
    secure_round_server_cpu_vs_quiet   the same over the floor on a machine that does nothing else
    secure_round_server_cpu_s          both parts in CPU seconds
    secure_round_requests              requests of a round; ``secure_round_empty_cpu_s`` and ``..._opening_cpu_s``: the
                                       parts of the floor
    http_bytes_..._vs_float32          bytes that a device sends and receives in a secure round, all of HTTP's headers
                                       included and the model's download left out, over those of a plain round of
                                       float32. Measured for the device with the most; for another model the length of
                                       the masked vector is exchanged
    secure_round_4_groups_...          a round of 4 groups beside one of the same devices in one group, nobody
                                       vanishing, each on a server of its own and in turn; medians of a run's pairs:
                                       CPU seconds of the server (``server_cpu_vs_1``) and of all devices
                                       (``devices_cpu_vs_1``), requests, and bytes of one device, with one group's as
                                       the limit
    secure_round_1m_peak_models        growth of the server's resident memory from the first signature to the commit of
                                       a round of 1M parameters, in models of 4 MB; 64 devices, whose shares are small
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import _secagg_floor as floor
from benchmarks._cores import halves, on
from benchmarks._progress import counted
from benchmarks._secagg_bytes import CASES, vector_bytes
from benchmarks._secagg_crowd import STRICT, Crowd, header_of
from benchmarks._secure_fleet import VANISH, Fleet, Noted, Notes, plain_round
from benchmarks._secure_floor import Replay, answers_of
from benchmarks._wire import ServerProcess
from benchmarks.harness import Pairs, Row, Spread, cost_s, main
from client_sdk.protocol.names import Route

AIM = 1.5
GROUPS_AIM = 0.5
MEMORY_AIM_MODELS = 4.0
MILLION = 1_000_000
EACH = 3
"""Devices that vanish in each of three exchanges."""
PATIENCE = 3.0
"""An exchange in which devices vanish lasts so many times as long as the longest one of the first round."""
MOST_EXCHANGE_S = 700.0


class Rounds:
    """The rounds of a fleet and of the floor, in pairs."""

    def __init__(self, folder: Path, n: int, parameters: int, least_s: float, pairs: int) -> None:
        """``least_s``: an exchange lasts at least so long where a device has vanished."""
        self.n, self.parameters = n, parameters
        self.ours: list[float] = []
        self.empty: list[float] = []
        self.durable: list[float] = []
        self.quiet: list[float] = []
        self.opening: list[float] = []
        self.requests = 0
        self.stayed = Notes()
        self._servers_cores, others = halves()
        with on(self._servers_cores):
            server = ServerProcess(folder / "data")
        with on(others), server:
            self.fleet = Fleet(server, n, parameters, MOST_EXCHANGE_S, 1)
            self.vanishing = self.fleet.vanishing(EACH)
            self.plain = plain_round(server, parameters)
            self._measure(folder, least_s, pairs)
            self.fleet.close()

    def _measure(self, folder: Path, least_s: float, pairs: int) -> None:
        """A first round in which nobody vanishes, which tells how long an exchange takes on this machine, and then each
        round with its floor, made of its own requests."""
        self.fleet.play({})
        self.fleet.require_right(1, {})
        longest_s = self.fleet.longest_exchange_s(1)
        self.fleet.begin_again(min(max(least_s, PATIENCE * longest_s), MOST_EXCHANGE_S), pairs)
        requests = self._requests()
        opening = self._opening()
        opening()
        with on(self._servers_cores):
            replay = Replay(folder / "floor", self.fleet.members, self.fleet.model, answers_of(requests))
        with replay:
            replay.play(requests, quiet=True)
            for number in counted("secure rounds with their floor", range(1, pairs + 1)):
                self.ours.append(self.fleet.play(self.vanishing))
                self.fleet.require_right(number, self.vanishing)
                requests = self._requests()
                self.empty.append(replay.play(requests))
                self.durable.append(replay.play(requests, durable=True))
                self.quiet.append(replay.play(requests, quiet=True))
                self.opening.append(cost_s(opening, time.thread_time))
                self.fleet.come_back(self.vanishing)

    def _requests(self) -> list[list[Noted]]:
        """Those of the last round, by device, without registrations."""
        members = self.fleet.members
        found = [[noted for noted in member.notes.requests if noted.path != Route.REGISTER] for member in members]
        self.requests = sum(map(len, found))
        stayed = [member.notes for member in members if member.number not in self.vanishing]
        self.stayed = max(stayed, key=lambda notes: notes.bytes)
        return found

    def _opening(self) -> Callable[[], None]:
        """The bare opening of the same sum."""
        crowd = Crowd(self.n, replace(header_of(STRICT, self.parameters), minimum_cohort=self.n))
        crowd.share()
        silent, gone = (
            [number for number, moment in self.vanishing.items() if moment == wanted] for wanted in VANISH[:2]
        )
        return floor.unmask(crowd, gone, silent)

    @property
    def pairs(self) -> Pairs:
        """Ours and the floor."""
        return self._over(self.empty)

    @property
    def durable_pairs(self) -> Pairs:
        """Ours and the floor that stores messages."""
        return self._over(self.durable)

    @property
    def quiet_pairs(self) -> Pairs:
        """Ours and the floor, both without the devices' work."""
        return self._over(self.quiet)

    def _over(self, empty: list[float]) -> Pairs:
        both = [requests + opening for requests, opening in zip(empty, self.opening, strict=True)]
        return Pairs(tuple(self.ours), tuple(both))


def cpu(rounds: Rounds) -> Iterator[Row]:
    """What a round costs the server, beside its floor."""
    found, name = rounds.pairs, "secure_round_server_cpu"
    ratio = found.ratio
    yield Row(
        name=f"{name}_vs_floor", value=ratio.median, unit="ratio", ratio=ratio.median, aim=AIM, met=ratio.met(AIM)
    )
    yield Row(name=f"{name}_vs_floor_q1", value=ratio.low, unit="ratio")
    yield Row(name=f"{name}_vs_floor_q3", value=ratio.high, unit="ratio")
    durable = rounds.durable_pairs.ratio.median
    yield Row(name=f"{name}_vs_durable", value=durable, unit="ratio", ratio=durable)
    quiet = rounds.quiet_pairs.ratio.median
    yield Row(name=f"{name}_vs_quiet", value=quiet, unit="ratio", ratio=quiet)
    yield Row(name=f"{name}_s", value=found.ours_median, unit="CPU s", limit=found.other_median, ratio=ratio.median)
    yield Row(name="secure_round_empty_cpu_s", value=statistics.median(rounds.empty), unit="CPU s")
    yield Row(name="secure_round_opening_cpu_s", value=statistics.median(rounds.opening), unit="CPU s")
    yield Row(name="secure_round_requests", value=rounds.requests, unit="requests")


def bytes_beside_float32(n: int, parameters: int, stayed: Notes, plain: Notes) -> Iterator[Row]:
    """The bytes of a device that stayed to the end of a round of ``n``, beside a plain round's."""
    around = stayed.bytes - vector_bytes(n, parameters, 16, "float32@1")
    for name, size, q, codec, aim in CASES:
        ours = around + vector_bytes(n, size, q, codec)
        value = ours / (plain.bytes + 4 * (size - parameters))
        yield Row(name=f"http_{name}", value=value, unit="ratio", ratio=value, aim=aim, met=value < aim)


def four_groups(n: int, parameters: int, pairs: int) -> Iterator[Row]:
    """What a round of 4 groups costs, beside one of one group."""
    of_server: tuple[list[float], list[float]] = ([], [])
    of_devices: tuple[list[float], list[float]] = ([], [])
    with (
        tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder,
        ServerProcess(Path(folder) / "4") as several,
        ServerProcess(Path(folder) / "1") as single,
    ):
        fleets = [
            Fleet(server, n, parameters, MOST_EXCHANGE_S, pairs + 1, groups)
            for server, groups in ((several, 4), (single, 1))
        ]
        for number in counted("rounds of four groups and of one", range(1, pairs + 2)):
            for place, fleet in enumerate(fleets):
                began = time.process_time()
                of_server[place].append(fleet.play({}))
                of_devices[place].append(time.process_time() - began)
                fleet.require_right(number, {})
        name = "secure_round_4_groups"
        for what, costs, aim in (("server", of_server, None), ("devices", of_devices, GROUPS_AIM)):
            ratio = Pairs(tuple(costs[0][1:]), tuple(costs[1][1:])).ratio  # a first round checks more certificates
            met = None if aim is None else ratio.met(aim)
            row = f"{name}_{what}_cpu_vs_1"
            yield Row(name=row, value=ratio.median, unit="ratio", ratio=ratio.median, aim=aim, met=met)
        notes = [[member.notes for member in fleet.members] for fleet in fleets]
        requests = [sum(len(one.requests) for one in found) for found in notes]
        yield Row(name=f"{name}_requests", value=requests[0], unit="requests", limit=requests[1])
        most = [max(one.bytes for one in found) for found in notes]
        yield Row(name=f"{name}_device_bytes", value=most[0], unit="bytes", limit=most[1])
        for fleet in fleets:
            fleet.close()


def peak_models(n: int) -> float:
    """The growth of the server's memory while a sum of 1M parameters is agreed on, opened and committed, in models."""
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder, ServerProcess(Path(folder)) as server:
        fleet = Fleet(server, n, MILLION, 120.0, 2)
        before = 0

        def told(text: str) -> None:
            nonlocal before
            if text.startswith("Has signed") and not before:
                before = server.rss_bytes()
                server.reset_peak()

        fleet.play({})
        fleet.require_right(1, {})
        fleet.play({}, told)
        fleet.require_right(2, {})
        grown = server.rss_bytes(peak=True) - before
        fleet.close()
    return grown / (4 * MILLION)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    n, parameters, least_s, pairs = (40, 20_000, 8.0, 3) if quick else (300, 200_000, 45.0, 3)
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder:
        rounds = Rounds(Path(folder), n, parameters, least_s, pairs)
    yield from cpu(rounds)
    yield from bytes_beside_float32(n, parameters, rounds.stayed, rounds.plain)
    del rounds
    gc.collect()
    yield from four_groups(n, parameters, pairs)
    models = Spread.of([peak_models(40 if quick else 64) for _ in range(1 if quick else 3)])
    met = models.met(MEMORY_AIM_MODELS)
    name = "secure_round_1m_peak_models"
    yield Row(name=name, value=models.median, unit="models", aim=MEMORY_AIM_MODELS, met=met)


if __name__ == "__main__":
    main("secure_round", measure)
