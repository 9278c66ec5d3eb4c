"""The agenda's time, as the coordinator reads it."""

from __future__ import annotations

from simulation.virtual.agenda import Agenda


class VirtualClock:
    """The ``Clock`` port. It moves when something happens, and never by itself."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def now(self) -> float:
        return self._agenda.now
