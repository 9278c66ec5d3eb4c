"""What people look at more closely, of one coordinator."""

from __future__ import annotations

from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.identities import Identities
from coordinator.runtime.insight.fleet_views import FleetViews
from coordinator.runtime.insight.lanes import Lanes
from coordinator.runtime.insight.leases import Leases
from coordinator.runtime.insight.participation import ParticipationViews
from coordinator.runtime.insight.plan_check import PlanCheck
from coordinator.runtime.insight.system import System


class Insight:
    def __init__(self, core: Core, fleet: Fleet, identities: Identities) -> None:
        self.lanes = Lanes(core)
        self.leases = Leases(core)
        self.participation = ParticipationViews(core)
        self.fleet = FleetViews(core, fleet, identities)
        self.plans = PlanCheck(core)
        self.system = System(core)

    def note(self) -> None:
        """Notes what is counted by time. Called every half minute while a process serves; not by simulations."""
        self.system.note_alive()
        self.fleet.note_hours()
