"""What all parts of one schedule share: its shape, chance, time, faults, counts and trace.

A ``Schedule`` makes one and passes it to its devices, replicas, workers and checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

from coordinator.settings import Settings
from coordinator.store.port import WaitingRow
from simulation.virtual.agenda import Agenda
from tests.explorer.authority import ExplorerAuthority
from tests.explorer.chance import Chance
from tests.explorer.counts import Coverage, ScheduleTally
from tests.explorer.marks import Register
from tests.explorer.private import Streams
from tests.explorer.secure.vectors import Vectors
from tests.explorer.shape import OF_WORK, Shape

BEGINNING = 1_000_000.0
"""Unix seconds at which each schedule begins."""
FOCUS_RATE = 0.25


class World:
    """``strikes`` decides each fault; ``log`` adds a line to the trace, where one is recorded."""

    def __init__(self, shape: Shape, *, without: frozenset[str] = frozenset(), trace: list[str] | None = None) -> None:
        self.shape = shape
        self.trace = trace
        self.chance = Chance(shape.seed, without)
        self.agenda = Agenda(BEGINNING)
        self.stormy = False
        self.tally = ScheduleTally(schedules=1)
        self.coverage = Coverage()
        self.settings = _settings()
        self.authority = ExplorerAuthority(self)
        self.nonces = count(1)
        """Of all signed requests of the schedule."""
        self.register = Register(shape)
        self.streams = Streams()
        self.vectors = Vectors(self.streams)
        self._written: list[str] = []
        """Lines of the coordinator's log since the last look."""
        self.strict: set[str] = set()
        """Ids of the devices that take part only where somebody has signed a model of the run."""
        self.signed: set[str] = set()
        """Runs of which somebody has."""
        self.dishonest: set[str] = set()
        """Ids of the devices that lie."""
        self._rates, self._focus = shape.rates, shape.focus
        self.possible = {fault for fault, rate in shape.rates.items() if rate} | {shape.focus[0]}
        self.calm_since = BEGINNING if shape.rates else float("-inf")
        """When the storm ended, in the world's time."""
        self.phase = "idle"
        """Phase of the first run, as ``watch`` follows it; ``idle`` before there is one."""
        self.fences: dict[str, int] = {}
        """The newest fence of each run."""
        self.used_fences: dict[str, int] = {}
        """The fence under which each run was committed last."""
        self.revoked_here: dict[str, float] = {}
        """When an operator of the coordinator has revoked these workers, or these devices have left, in the world's
        time."""
        self.caps: dict[str, int] = {}
        """How many examples a device may claim since it registered."""
        self.asked_again: set[tuple[str, int, str]] = set()
        """Whose update of a round was lost: (run, round, device)."""
        self.listed_at: dict[int, float] = {}
        """When a revocation list was stored, by its counter, in the world's time."""
        self.stored: list[Callable[[str], None]] = []
        """Who is told of each blob that is stored."""
        self.waiting: dict[tuple[str, object], list[WaitingRow]] = {}
        """For each draw, by run and round: who waited, and was free."""
        self.interruptions = 0
        """How often a call was suspended."""
        self.starts = 0
        """How often replicas have started."""
        self.started_at = 0.0
        """When one last did, by its clock."""
        self.lost_replicas = shape.lost_replicas
        """How many replicas may still be lost for good."""
        self.replicas_left = shape.replicas
        """How many are not lost for good."""
        self.lost_workers = shape.lost_workers

    def strikes(self, fault: str, where: str) -> bool:
        """Whether a fault happens here and now. Only in a storm."""
        return self.stormy and fault in self.possible and self.struck(fault, where)

    def struck(self, fault: str, where: str) -> bool:
        """Whether a fault that is possible now happens here."""
        rate = self._rates.get(fault, 0.0)
        if fault == self._focus[0] and self.phase == self._focus[1]:
            rate = max(rate, 0.9 if fault in OF_WORK else 0.6 if self.shape.control else FOCUS_RATE)
        if not self.chance.strikes(fault, where, rate):
            return False
        self.coverage.fault(fault, self.phase)
        return True

    def met(self, event: str) -> None:
        """An event has met a phase."""
        self.coverage.event(event, self.phase)

    def wrote(self, line: str) -> None:
        """The coordinator has written this line to its log."""
        self._written.append(line)

    def taken_log(self) -> list[str]:
        """The lines that the coordinator has written since the last call."""
        taken, self._written = self._written, []
        return taken

    def log(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.agenda.now - BEGINNING:9.3f}  {line}")


@cache
def _settings() -> Settings:
    return Settings()
