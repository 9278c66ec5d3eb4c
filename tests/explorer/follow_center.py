"""Follows the events of datacenter rounds in a run's log: a part of ``follow.Followed``."""

from __future__ import annotations

from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.faults import Broken
from tests.explorer.following import Following
from tests.explorer.round_ending import RoundEnding


class CenterFollowing(Following):
    """The methods take the next event of a datacenter round, and return the rounds that ended with it."""

    __slots__ = ()

    def _in_the_datacenter(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if body["round"] != self.round or self.phase not in ("leasing", "training"):
            raise self._lease_odd(event, f"it is {self.phase}, round {self.round}")
        if event.kind == "FleetReturned":
            late = self.deadline is not None and event.at >= self.deadline
            left_out = body.get("left_out", 0) if late and not self.exhausted else 0
            if self.phase != "leasing" or body["waiting"] + left_out < self._devices_back(event):
                raise self._odd(
                    event, f"the run is {self.phase}, it takes {self.fewest} devices, until {self.deadline}"
                )
            return self._give_up(returned=True)
        if event.kind == "Leased":
            return self._leased(event, body)
        if self.phase != "training" or (body["worker"], body["attempt"], body["fence"]) != self.lease:
            raise self._lease_odd(event, f"the lease is {self.lease}, {self.phase}")
        match event.kind:
            case "Heartbeat":
                self.renewed_at = event.at
            case "Delivered":
                if (body["waiting"] or 0) >= self._cohort_back:
                    self.away = False
                self.refused, self.rests_until = 0, None
                return self._advance(body)
            case _ if body["failed"]:
                self.refused += 1
                if self.refused >= 3:
                    self.rests_until = event.at + min(86_400.0, 600.0 * 2 ** (self.refused - 3))
                return self._give_up()
            case _:
                return self._lease_again()
        return []

    def _leased(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if self.phase == "training" and body["worker"] != self.lease[0]:
            raise self._lease_odd(event, f"it was given the round of {self.lease}")
        if self.phase == "training" and body["installation"] != self.installation:
            raise self._lease_odd(event, f"it took the live lease of {self.installation!r}")
        self.installation = body["installation"]
        if body["fence"] != self.fence + 1 or body["attempt"] != self.attempt + 1:
            raise self._lease_odd(event, f"the last fence was {self.fence}")
        self.phase, self.fence, self.attempt = "training", body["fence"], body["attempt"]
        self.lease = (body["worker"], body["attempt"], body["fence"])
        self.renewed_at = event.at
        self.set_deadline(None)
        if self.give_up_at is None:
            self.give_up_at = event.at + self.plan["datacenter"]["max_s"]
        return []

    def _time_passed(self, event: EventRow) -> list[RoundEnding]:
        if self.give_up_at is not None and event.at >= self.give_up_at:
            return self._give_up()
        if self.phase != "training" or event.at < self.renewed_at + self.plan["datacenter"]["lease_s"] - 1e-6:
            raise self._lease_odd(event, f"the lease {self.lease} ended {event.at - self.renewed_at} s on")
        return self._lease_again()

    def _lease_again(self) -> list[RoundEnding]:
        self.phase = "leasing"
        self._wait()
        return [] if self.status == "running" else self._abandon()

    @property
    def _cohort_back(self) -> int:
        """How many waiting devices end a stay in the datacenter."""
        return int(self.plan["datacenter"]["return_devices"] or self.plan["cohort"]["goal"])

    def _devices_back(self, event: EventRow) -> int:
        """How many waiting devices end a round that no worker has: enough to begin one, once it has waited long
        enough."""
        if self.deadline is not None and event.at >= self.deadline:
            return self.fewest
        return 10**9 if self.planned else self._cohort_back

    def _give_up(self, returned: bool = False) -> list[RoundEnding]:
        self.away, self.in_vain, self.fleet_first = False, 0, True
        return self._abandon(returned=returned)

    def _lease_odd(self, event: EventRow, why: str) -> Broken:
        return Broken("lease", f"{self.run} #{event.seq} {event.kind} {event.body}: {why}")
