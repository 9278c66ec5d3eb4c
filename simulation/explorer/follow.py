"""A second, smaller model of a run, made from the events of its log alone: its round, its phase, the counted updates.

It is written from ``docs/architecture.md`` and does not import the engine: where the two differ, one of them is wrong,
and the explorer stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from coordinator.store.port import EventRow, RunRow
from simulation.explorer.faults import Broken
from simulation.explorer.round_ending import RoundEnding, weight_of


@dataclass(slots=True)
class Followed:
    """One run, by its log."""

    row: RunRow
    head: int = 0
    status: str = "running"
    phase: str = "idle"
    round: int = 0
    version: int = 0
    digest: str = ""
    cohort: dict[str, int] = field(default_factory=dict)
    reported: dict[str, tuple[str, int]] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    invalid: set[str] = field(default_factory=set)
    """Devices that left the round because their update was refused as invalid."""
    ended: dict[int, RoundEnding] = field(default_factory=dict)
    ending: str = ""
    pools: dict[int, str] = field(default_factory=dict)
    kind: str = "federated"
    fence: int = 0
    attempt: int = 0
    lease: tuple[str, int, int] = ("", 0, 0)
    """(worker, attempt, fence) of the datacenter round's last lease."""
    in_vain: int = 0
    """Federated rounds abandoned in a row."""
    failed: int = 0
    """Rounds of any kind abandoned in a row, but for those that went back to the devices."""
    tried: bool = False
    """Whether the run has fallen back since its last commit, or since it was resumed."""
    installation: str = ""
    """The installation that holds, or held, the round's lease."""
    away: bool = False
    refused: int = 0
    """Datacenter rounds in a row that a worker reported as impossible to train."""
    rests_until: float | None = None
    at: float = 0.0
    """Unix time of the last event."""
    fleet_first: bool = False
    renewed_at: float = 0.0
    """When the lease was granted, or its last heartbeat recorded, by the clock of the log."""
    give_up_at: float | None = None
    moments: list[Any] = field(default_factory=list)
    """The server optimizer's vectors after the last commit, computed by hand; see ``marks``."""

    @property
    def run(self) -> str:
        return self.row.run

    @property
    def plan(self) -> dict[str, Any]:
        return self.row.plan

    @property
    def left(self) -> set[str]:
        """Devices that have left the round without an update."""
        return self.withdrawn | self.invalid

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped")

    @property
    def quorum(self) -> int:
        cohort: dict[str, Any] = self.plan["cohort"]
        return max(1, math.ceil(float(cohort["quorum"]) * int(cohort["goal"]) - 1e-9))

    def known(self, round: int, device: str) -> tuple[str, int] | None:
        """Returns (digest, weight) of the update in the log for this device and round."""
        if round == self.round:
            found = self.reported.get(device)
            if found is not None:
                return found
        ending = self.ended.get(round)
        return ending.reported.get(device) if ending is not None else None

    def counted(self, round: int, device: str) -> str | None:
        """Returns the digest of the update that counts for this device in a committed round."""
        ending = self.ended.get(round)
        if ending is None or not ending.committed or device not in ending.reported:
            return None
        return ending.reported[device][0]

    def follow(self, event: EventRow) -> list[RoundEnding]:
        """Adds the next event. Returns the rounds that ended with it."""
        if event.seq != self.head + 1:
            raise Broken("ack-durable", f"the log of {self.run} goes from {self.head} to {event.seq}")
        self.head, self.at = event.seq, event.at
        body: dict[str, Any] = event.body
        if event.kind in ("Leased", "Heartbeat", "LeaseEnded", "Delivered", "FleetReturned"):
            return self._in_the_datacenter(event, body)
        if "round" in body and event.kind != "Started" and body["round"] != self.round:
            raise self._odd(event, f"the run is at round {self.round}")
        match event.kind:
            case "Created":
                if self.round:
                    raise self._odd(event, "the run has begun already")
                self._open()
            case "Drawn":
                return self._drawn(event, body)
            case "Tick":
                if self.phase in ("leasing", "training"):
                    return self._time_passed(event)
                if self.phase != "collecting":
                    raise self._odd(event, f"the run is {self.phase}")
                return self._close() if len(self.reported) >= self.quorum else self._abandon(short=True)
            case "Reported":
                return self._reported(event, body)
            case "Withdrew" | "UpdateRefused":
                return self._has_left(event, body)
            case "Committed":
                return self._committed(event, body)
            case "CommitFailed":
                what = f"round {self.round} of {self.run} could not be made of updates that were acknowledged"
                raise Broken("ack-durable", f"{what}: {body['reason']}")
            case "Paused":
                if self.status != "running":
                    raise self._odd(event, f"the run is {self.status}")
                self.status = "paused"
                if self.phase == "leasing":
                    return self._abandon()
            case "Resumed":
                if self.status != "paused":
                    raise self._odd(event, f"the run is {self.status}")
                self.status = "running"
                self.refused, self.rests_until, self.failed, self.tried = 0, None, 0, False
                if self.phase == "idle":
                    self._open()
            case "Stopped":
                return self._stopped(event)
            case "ClockFell":
                self.renewed_at -= body["by_s"]
                if self.give_up_at is not None:
                    self.give_up_at -= body["by_s"]
                if self.rests_until is not None:
                    self.rests_until -= body["by_s"]
            case "Started" | "Scored":
                pass
            case _:
                raise self._odd(event, "this kind of event is unknown here: see docs/faults.md")
        return []

    def _open(self) -> None:
        self.round += 1
        self.kind = self._turn()
        self.phase = "leasing" if self.kind == "datacenter" else "selecting"
        self.cohort, self.reported, self.withdrawn, self.invalid = {}, {}, set(), set()
        self.attempt, self.lease, self.give_up_at = 0, ("", 0, 0), None

    def _turn(self) -> str:
        turn = self._wanted()
        if turn == "fallback":
            self.away = self.tried = True
        return "federated" if turn == "federated" else "datacenter"

    def _wanted(self) -> str:
        section = self.plan.get("datacenter")
        resting = self.rests_until is not None and self.at < self.rests_until
        if section is None or self.fleet_first or resting:
            return "federated"
        if section["every"] and (self.version + 1) % section["every"] == 0:
            return "datacenter"
        if section["patience"] and (self.away or self.in_vain >= section["patience"]):
            return "fallback"
        return "federated"

    def _rest_or_open(self) -> None:
        if self.ending:
            self.status, self.ending = self.ending, ""
        if self.status == "running":
            self._open()
        else:
            self.phase = "idle"
            self.cohort, self.withdrawn, self.invalid = {}, set(), set()

    def _drawn(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if self.phase != "selecting":
            raise self._odd(event, f"the run is {self.phase}")
        cohort = dict(body["cohort"])
        if len(cohort) < self.quorum:
            return self._abandon()
        if len(cohort) != min(self.plan["cohort"]["select"], body["waiting"]):
            raise self._odd(event, f"{len(cohort)} were drawn from {body['waiting']}")
        self.cohort, self.phase = cohort, "collecting"
        self.pools[self.round] = body["pool"]
        return []

    def _reported(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        device = body["device"]
        if self.phase != "collecting":
            raise Broken(
                "late-report", f"{device}'s update of round {body['round']} came while the run was {self.phase}"
            )
        if device not in self.cohort:
            raise self._odd(event, "the device was not selected")
        if device in self.reported:
            raise Broken("counts-once", f"{device} reported twice in round {self.round} of {self.run}")
        if device in self.left:
            raise self._odd(event, "the device had left the round")
        self.reported[device] = (body["digest"], weight_of(self.plan["aggregation"], body))
        return self._close_if_complete()

    def _has_left(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        device = body["device"]
        if self.phase != "collecting" or device not in self.cohort or device in self.left | self.reported.keys():
            raise self._odd(event, "the device has no open place in the round")
        (self.withdrawn if event.kind == "Withdrew" else self.invalid).add(device)
        ended = self._close_if_complete()
        if self.phase == "collecting" and len(self.cohort) - len(self.left) < self.quorum:
            return self._abandon()
        return ended

    def _close_if_complete(self) -> list[RoundEnding]:
        have = len(self.reported)
        everyone = have + len(self.left) == len(self.cohort)
        if have >= self.plan["cohort"]["goal"] or (everyone and have >= self.quorum):
            return self._close()
        return []

    def _close(self) -> list[RoundEnding]:
        self.phase = "committing"
        return []

    def _committed(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if self.phase != "committing":
            raise self._odd(event, f"the run is {self.phase}")
        if len(self.reported) < self.quorum:
            have = f"{len(self.reported)} of {self.quorum} updates"
            raise Broken("quorum", f"round {self.round} was committed with {have}")
        return self._advance(body)

    def _advance(self, body: dict[str, Any]) -> list[RoundEnding]:
        self.version += 1
        self.digest = body["digest"]
        self.in_vain, self.fleet_first, self.failed, self.tried = 0, False, 0, False
        ending = RoundEnding(self.round, True, self.reported, self.version, body["digest"], body["bytes"])
        ending.kind, ending.lease, ending.invalid = self.kind, self.lease, frozenset(self.invalid)
        self.ended[self.round] = ending
        if self.version >= self.plan["finish"]["rounds"] and not self.ending:
            self.ending = "finished"
        self._rest_or_open()
        return [ending]

    def _abandon(self, short: bool = False, returned: bool = False) -> list[RoundEnding]:
        ending = RoundEnding(
            self.round, False, self.reported, self.version, short=short, kind=self.kind, lease=self.lease
        )
        ending.invalid = frozenset(self.invalid)
        if self.kind == "federated":
            self.in_vain, self.fleet_first = self.in_vain + 1, False
        if not returned:
            self.failed += 1
            self._pause_after_failures()
        self.ended[self.round] = ending
        self._rest_or_open()
        return [ending]

    def _pause_after_failures(self) -> None:
        most = self.plan["finish"].get("abandoned")
        if most is None or self.failed < most or self.status != "running" or self.ending:
            return
        if self._wanted() != "fallback" or self.tried:
            self.status = "paused"

    def _stopped(self, event: EventRow) -> list[RoundEnding]:
        if self.over or self.ending:
            raise self._odd(event, f"the run is {self.status}")
        self.ending = "stopped"
        if self.phase == "committing":
            return []
        if self.phase == "idle":
            self._rest_or_open()
            return []
        return self._abandon()

    # ------------------------------------------------------------ datacenter rounds

    def _in_the_datacenter(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if body["round"] != self.round or self.phase not in ("leasing", "training"):
            raise self._lease_odd(event, f"it is {self.phase}, round {self.round}")
        if event.kind == "FleetReturned":
            if self.phase != "leasing" or body["waiting"] < self.quorum:
                raise self._odd(event, f"the run is {self.phase}, the quorum {self.quorum}")
            return self._give_up(returned=True)
        if event.kind == "Leased":
            return self._leased(event, body)
        if self.phase != "training" or (body["worker"], body["attempt"], body["fence"]) != self.lease:
            raise self._lease_odd(event, f"the lease is {self.lease}, {self.phase}")
        match event.kind:
            case "Heartbeat":
                self.renewed_at = event.at
            case "Delivered":
                section = self.plan["datacenter"]
                if (body["waiting"] or 0) >= (section["return_devices"] or self.plan["cohort"]["goal"]):
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
        return [] if self.status == "running" else self._abandon()

    def _give_up(self, returned: bool = False) -> list[RoundEnding]:
        self.away, self.in_vain, self.fleet_first = False, 0, True
        return self._abandon(returned=returned)

    def _odd(self, event: EventRow, why: str) -> Broken:
        return Broken("log", f"{self.run} #{event.seq} {event.kind} {event.body}: {why}")

    def _lease_odd(self, event: EventRow, why: str) -> Broken:
        return Broken("lease", f"{self.run} #{event.seq} {event.kind} {event.body}: {why}")
