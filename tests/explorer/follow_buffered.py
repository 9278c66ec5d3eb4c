"""The explorer's own model of buffered rounds, made from the log alone: who has a place since when, which version it
trains, and which round has its report. It is written from ``docs/buffered.md`` and does not import the engine.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.faults import Broken
from tests.explorer.followed_run import Following, Place
from tests.explorer.round_ending import RoundEnding, weight_of

EVENTS = ("Drawn", "Started", "Reported", "Withdrew", "UpdateRefused", "Tick")


class BufferedFollowing(Following):
    """The methods take the next event of a buffered run, and return the rounds that ended with it."""

    __slots__ = ()

    def _opens_buffered(self) -> None:
        """A round opens: whose version is not too old trains on."""
        oldest = self.version - self.plan["buffered"]["most_stale"]
        self.places = {device: one for device, one in self.places.items() if one.version >= oldest}
        self.bases[self.version] = (self.version, self.digest, self.size)
        self.kind, self.phase, self.draws = "buffered", "collecting", 0
        self.cohort = {device: one.examples for device, one in self.places.items()}
        self.began = {device for device, one in self.places.items() if one.begun}
        self.since, self.withdrawn, self.invalid = {}, set(), set()
        self._next_end()

    def _of_buffered(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        device = str(body.get("device", ""))
        if event.kind == "Tick":
            return self._times_up(event)
        if event.kind == "Drawn":
            return self._admitted(event, body)
        place = self.places.get(device)
        if place is None or place.since != body["attempt"]:
            raise self._odd(event, f"the device has the place {place}")
        if event.kind == "Started":
            self.places[device] = replace(place, begun=True)
            self.began.add(device)
            return []
        del self.places[device]
        if event.kind != "Reported":
            (self.withdrawn if event.kind == "Withdrew" else self.invalid).add(device)
            self._next_end()
            return []
        if self.phase != "collecting":
            raise Broken("late-report", f"{device}'s update came while the run was {self.phase}")
        if device in self.reported:
            raise Broken("counts-once", f"{device} reported twice in round {self.round} of {self.run}")
        weight = self._weighs(self.version - place.version, body)
        self.reports[device], self.reported[device] = event, (body["digest"], weight)
        self.since[device], self.went[place.since, device] = place, self.round
        self._next_end()
        if len(self.reported) == self.plan["cohort"]["goal"]:
            self.phase = "committing"
            self.set_deadline(None)
        return []

    def _weighs(self, late: int, body: dict[str, Any]) -> int:
        section, cohort = self.plan["buffered"], self.plan["cohort"]
        if late > section["most_stale"]:
            raise Broken("late-report", f"an update {late} versions behind counts in round {self.round} of {self.run}")
        table = section["staleness"]
        part = table[min(late, len(table) - 1)] if table else int(64 / math.sqrt(1 + late) + 0.5)
        whole = {**self.plan, "cohort": {**cohort, "goal": 64 * cohort["goal"]}}  # in 1/64, the sum has as much room
        return part * weight_of(whole, body, in_parts=self.in_parts)

    def _admitted(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        free = self.plan["buffered"]["concurrency"] - len(self.places)
        self.drawing = (free, self.draws)
        self.left_out = self.unfit | self.places.keys() | self.reported.keys() | self.invalid
        drawn = dict(body["cohort"])
        if self.phase != "collecting" or self.status != "running":
            raise self._odd(event, f"the run is {self.phase}, {self.status}")
        if len(drawn) != min(free, body["waiting"]) or self.left_out & drawn.keys():
            raise Broken("draw", f"{sorted(drawn)} were drawn for {free} places, of {body['waiting']}")
        until = event.at + self.plan["cohort"]["collect_s"]
        for device, examples in drawn.items():
            self.places[device] = Place(self.round, self.version, examples, [until])
            self.withdrawn.discard(device)
            self.began.discard(device)
        self.drawn_again = {device for device in drawn if self.drawn_in.get(device) == self.round}
        self.drawn_in |= dict.fromkeys(drawn, self.round)
        self.cohort |= drawn
        self.pools[self.round], self.waiting, self.draws = body["pool"], body["waiting"], self.draws + 1
        self._next_end()
        return []

    def _times_up(self, event: EventRow) -> list[RoundEnding]:
        over = {device for device, one in self.places.items() if one.until[-1] <= event.at}
        if not over:
            self._require_deadline(event, "ended")
        for device in over:
            del self.places[device]
            self.began.discard(device)
        self._next_end()
        return []

    def _next_end(self) -> None:
        """The deadline is the first end of a place."""
        ends = [one.until[-1] for one in self.places.values()] if self.phase == "collecting" else []
        self.set_deadline(min(ends, default=None))

    def _places_fell(self, by_s: float) -> None:
        """The clock went back."""
        for one in self.places.values():
            one.until.append(one.until[-1] - by_s)
