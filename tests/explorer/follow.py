"""A second, smaller model of a run, made from the events of its log alone: its round, its phase, the counted updates.

It is written from ``docs/architecture.md`` and does not import the engine: where the two differ, one of them is wrong,
and the explorer stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.faults import Broken
from tests.explorer.follow_buffered import EVENTS, BufferedFollowing
from tests.explorer.followed_run import Following
from tests.explorer.plans import STRATEGY
from tests.explorer.round_ending import RoundEnding, devices_scores, weight_of
from tests.explorer.secure.account import SECURE_PHASES
from tests.explorer.secure.follow_secure import SECURE_EVENTS, SecureFollowing

WAITS = {True: "wait_s", False: "select_s"}
"""The field of the plan for how long a round waits; True: for a worker, by plan."""

DISPUTE_ROUNDS = 20
"""For so many rounds it is remembered who has complained of whom."""


class CenterFollowing(Following):
    """Datacenter rounds: the methods take the next event of one, and return the rounds that ended with it."""

    __slots__ = ()

    def _in_the_datacenter(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if body["round"] != self.round or self.phase not in ("leasing", "training"):
            raise self._lease_odd(event, f"it is {self.phase}, round {self.round}")
        if event.kind == "FleetReturned":
            late = self.deadline is not None and event.at >= self.deadline
            unspendable = body.get("unspendable", 0) if late and not self.exhausted else 0
            if self.phase != "leasing" or body["waiting"] + unspendable < self._devices_back(event):
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


@dataclass(slots=True)
class TrackedRun(SecureFollowing, CenterFollowing, BufferedFollowing):
    """One run, by its log."""

    def follow(self, event: EventRow) -> list[RoundEnding]:
        """Adds the next event. Returns the rounds that ended with it."""
        if event.seq != self.head + 1:
            raise Broken("ack-durable", f"the log of {self.run} goes from {self.head} to {event.seq}")
        self.head, self.at = event.seq, event.at
        body: dict[str, Any] = event.body
        if event.kind in ("Leased", "Heartbeat", "LeaseEnded", "Delivered", "FleetReturned"):
            return self._in_the_datacenter(event, body)
        if event.kind == "Declined" and body["late"]:
            return self._declined_late(event, body)
        if "round" in body and event.kind not in ("Started", "Discarded") and body["round"] != self.round:
            raise self._odd(event, f"the run is at round {self.round}")
        if self.buffered and event.kind in EVENTS:
            return self._of_buffered(event, body)
        match event.kind:
            case "Created":
                if self.in_parts:
                    raise self._odd(event, "the run has begun already")
                self.in_parts = True
                if self.status == "running":
                    self._open()
            case "Drawn":
                return self._drawn(event, body)
            case "Tick":
                if self.phase in ("leasing", "training"):
                    return self._time_passed(event)
                if self.secure is not None and self.phase in ("collecting", *SECURE_PHASES):
                    self._require_deadline(event, "closed")
                    return self._go_on(event, self.secure, time_is_up=True)
                if self.phase != "collecting":
                    raise self._odd(event, f"the run is {self.phase}")
                self._require_deadline(event, "closed")
                if self.asked_again:
                    return self._abandon()
                return self._close() if len(self.reported) >= self.quorum else self._abandon(short=True)
            case kind if kind in SECURE_EVENTS:
                return self._of_secure_round(event, body)
            case "Withdrew" if self.secure is not None:
                return self._gone(event, body["device"], self.secure)
            case "Reported" | "UpdateRefused" if self.secure is not None:
                raise self._odd(event, "a secure round takes no update in the clear")
            case "Reported":
                return self._reported(event, body)
            case "UpdateLost":
                self._lost(event, body)
            case "Withdrew" | "UpdateRefused":
                return self._has_left(event, body)
            case "Seeded":
                self._seeded(event, body)
            case "Committed":
                return self._committed(event, body)
            case "CommitFailed":
                return self._commit_failed(body["reason"])
            case "Paused":
                if self.status != "running":
                    raise self._odd(event, f"the run is {self.status}")
                self.status = "paused"
                if self.phase == "leasing" or (self.phase == "selecting" and self.deadline is None):
                    return self._abandon()
            case "Resumed":
                if self.status != "paused":
                    raise self._odd(event, f"the run is {self.status}")
                self.status = "running"
                self.refused, self.rests_until, self.failed, self.tried = 0, None, 0, False
                if self.phase == "idle" and self.in_parts:
                    self._open()
            case "Stopped":
                return self._stopped(event)
            case "ClockFell":
                if not self.clocks_jump:
                    raise Broken(
                        "deadline", f"{self.run} moved its times {body['by_s']} s back, and no clock had jumped"
                    )
                if self.deadline is not None:
                    self.deadline -= body["by_s"]
                    self.deadlines.append(self.deadline)
                self._places_fell(body["by_s"])
                self.renewed_at -= body["by_s"]
                if self.give_up_at is not None:
                    self.give_up_at -= body["by_s"]
                if self.rests_until is not None:
                    self.rests_until -= body["by_s"]
                if self.secure is not None and self.secure.settle_by:
                    self.secure.settle_by -= body["by_s"]
            case "Recovered":
                self._recovered(event)
            case "Started" if self.phase == "collecting":
                self.began.add(body["device"])
            case "Started":
                pass
            case "Scored":
                finished = self.scores.says_finished(body["version"], body["source"], body["metrics"])
                if finished and not self.over and not self.ending:
                    return self._end("finished")
            case _:
                raise self._odd(event, "this kind of event is unknown here: see docs/faults.md")
        return []

    def _recovered(self, event: EventRow) -> None:
        """An outage gives its time back: to reports a minute, and in all their time once more at most; to an exchange
        its whole time, until the attempt expires."""
        account, collect_s = self.secure, float(self.plan["cohort"]["collect_s"])
        until = min(event.at + min(collect_s, 60.0), self.drawn_at + 2 * collect_s)
        if account is not None:
            if account.attempt or self.phase != "collecting":
                until = event.at + account.section["exchange_s"]
                account.recovered_at = event.at
            until = min(until, account.expires_at or until)
        if self.buffered or self.kind == "datacenter" or self.deadline is None or until <= self.deadline:
            raise self._odd(event, f"the {self.phase} lasts until {self.deadline}, and may until {until}")
        self.deadline = until
        self.deadlines.append(until)
        self.recoveries += 1

    def _open(self) -> None:
        self.round += 1
        self.kind = self._turn()
        self.phase = "leasing" if self.kind == "datacenter" else "selecting"
        self.cohort, self.reported, self.withdrawn, self.invalid = {}, {}, set(), set()
        self.attempt, self.lease, self.give_up_at = 0, ("", 0, 0), None
        self.waiting, self.began, self.reports = 0, set(), {}
        self.lost, self.asked_again, self.reopened = set(), set(), False
        self.secure, self.advancing = None, ""
        if self.private is not None:
            self.private.opens()
        self.barred = {device: until for device, until in self.barred.items() if until > self.round}
        recent = {
            device: {dealer: last for dealer, last in of.items() if last > self.round - DISPUTE_ROUNDS}
            for device, of in self.disputes.items()
        }
        self.disputes = {device: of for device, of in recent.items() if of}
        if self.buffered:
            self._opens_buffered()
        else:
            self._wait()

    def _wait(self) -> None:
        """The phase waits: for devices, or for a worker, and after some time for a quorum of devices too."""
        planned = self.kind == "datacenter" and self.planned
        self.set_deadline(self.at + float(self.plan["datacenter" if planned else "cohort"][WAITS[planned]]))

    def _turn(self) -> str:
        turn = self._wanted()
        self.planned = turn == "datacenter"
        if turn == "fallback":
            self.away = self.tried = True
        fleets = "secure" if "secure" in self.plan else "federated"
        return fleets if turn == "federated" else "datacenter"

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
            self.set_deadline(None)
            self.cohort, self.withdrawn, self.invalid, self.secure, self.places = {}, set(), set(), None, {}

    def _drawn(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if self.phase != "selecting":
            raise self._odd(event, f"the run is {self.phase}")
        cohort, self.left_out = dict(body["cohort"]), self.unfit
        self.waiting = body["waiting"]
        if self.waiting < (self.fewest if self.deadline is None else self.plan["cohort"]["pool"]):
            self._require_deadline(event, "drawn")
        if self.kind == "secure":
            return self._secure_drawn(event, body)
        if len(cohort) < self.quorum and body["pool"] is not None:
            self.pools[self.round] = body["pool"]
            return self._abandon()
        if len(cohort) < self.quorum:
            return self._missed()
        if self.plan["cohort"]["choose"] != "poisson" and len(cohort) != min(
            self.plan["cohort"]["select"], body["waiting"]
        ):
            raise self._odd(event, f"{len(cohort)} were drawn from {body['waiting']}")
        self.cohort, self.phase = cohort, "collecting"
        self.pools[self.round] = body["pool"]
        self.drawn_at = event.at
        self.set_deadline(event.at + self.plan["cohort"]["collect_s"])
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
        self.asked_again.discard(device)
        self.reports[device] = event
        self.reported[device] = (body["digest"], weight_of(self.plan, body, in_parts=self.in_parts))
        return self._close_if_complete()

    def _has_left(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        device = body["device"]
        if self.phase != "collecting" or device not in self.cohort or device in self.left | self.reported.keys():
            raise self._odd(event, "the device has no open place in the round")
        (self.withdrawn if event.kind == "Withdrew" else self.invalid).add(device)
        if device in self.asked_again:
            return self._abandon()
        ended = self._close_if_complete()
        if self.phase == "collecting" and len(self.cohort) - len(self.left) < self.quorum:
            return self._abandon()
        return ended

    def _close_if_complete(self) -> list[RoundEnding]:
        if self.asked_again:
            return []
        have = len(self.reported)
        everyone = have + len(self.left) == len(self.cohort)
        if have >= self.plan["cohort"]["goal"] or (everyone and have >= self.quorum):
            return self._close()
        return []

    def _close(self) -> list[RoundEnding]:
        self.phase = "committing"
        self.set_deadline(None)
        return []

    def _lost(self, event: EventRow, body: dict[str, Any]) -> None:
        """A damaged update is asked for once more, until the deadline that the round had."""
        device, digest = body["device"], body["digest"]
        if self.phase not in ("collecting", "committing") or digest not in self.flipped or device in self.lost:
            raise self._odd(event, f"the run is {self.phase}")
        if self.reported.pop(device)[0] != digest:
            raise self._odd(event, "it is not the update that counts")
        self.lost_digests.add(digest)
        self.lost.add(device)
        self.asked_again.add(device)
        self.began.discard(device)
        del self.reports[device]
        if self.phase == "committing":
            self.phase, self.reopened = "collecting", True
            self.set_deadline(self.drawn_at + self.plan["cohort"]["collect_s"])

    def _seeded(self, event: EventRow, body: dict[str, Any]) -> None:
        """The noise of a closed round has a seed, one for the whole round, and its list is paid for."""
        private = self.private
        if private is None or self.phase != "committing" or private.seed not in ("", body["digest"]):
            raise self._odd(event, f"the run is {self.phase}")
        private.seed = body["digest"]
        if out := [device for device in self.reported if private.is_spent(device)]:
            raise Broken("ledger", f"round {self.round} of {self.run} counts {out}, who have no room in the ledger")
        if not private.debit(self.reported):
            raise self._odd(event, "this list was paid for before")

    def _committed(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if self.phase != "committing":
            raise self._odd(event, f"the run is {self.phase}")
        least = self.quorum if self.secure is None else self.secure.needed()
        least = self.plan["cohort"]["goal"] if self.buffered else least
        if not self.advancing and len(self.reported) < least:
            have = f"{len(self.reported)} of {self.quorum} updates"
            raise Broken("quorum", f"round {self.round} was committed with {have}")
        if self.plan.get("strategy", {}).get("name") == STRATEGY["name"]:
            said = [(weight, _metrics(self.reports[one])) for one, (_, weight) in self.reported.items()]
            self.mu.committed((weight, metrics["loss"]) for weight, metrics in said if "loss" in metrics)
        private = self.private
        if private is not None and self.kind == "federated":
            if frozenset((device, digest) for device, (digest, _) in self.reported.items()) not in private.lists:
                raise Broken("ledger", f"round {self.round} of {self.run} was committed before it was paid for")
            private.committed(self.round, self.reported, self.version + 1)
        return self._advance(body)

    def _commit_failed(self, reason: str) -> list[RoundEnding]:
        """Only where an update is damaged, and by its name; of a run that was stopped, also another file; and where a
        device of a private round has no room for it in the ledger."""
        if self.private is not None and any(self.private.is_spent(device) for device in self.reported):
            return self._abandon()
        damaged = {digest for digest in self.flipped if digest in reason}
        if damaged.isdisjoint(digest for digest, _ in self.reported.values()) and not (
            damaged and self.ending == "stopped"
        ):
            what = f"round {self.round} of {self.run} could not be made of updates that were acknowledged"
            raise Broken("ack-durable", f"{what}: {reason}")
        return self._abandon()

    def _advance(self, body: dict[str, Any]) -> list[RoundEnding]:
        self.version += 1
        self.digest, self.size = body["digest"], body["bytes"]
        self.in_vain, self.fleet_first, self.failed, self.tried = 0, False, 0, False
        self.exhausted, self.declined, self.made_in = False, set(), self.round
        self.advances += bool(self.advancing)
        ending = self._ending(committed=True)
        ending.digest, ending.size = body["digest"], body["bytes"]
        self.ended[self.round] = ending
        scores = devices_scores(ending)
        finished = bool(scores) and self.scores.says_finished(self.version - 1, "devices", scores)
        if (finished or self.version >= self.plan["finish"]["rounds"]) and not self.ending:
            self.ending = "finished"
        self._rest_or_open()
        return [ending]

    def _abandon(self, short: bool = False, returned: bool = False) -> list[RoundEnding]:
        ending = self._ending(committed=False)
        ending.short = short
        if self.kind != "datacenter":
            self.in_vain, self.fleet_first = self.in_vain + 1, False
        if not returned:
            self.failed += 1
            self._pause_after_failures()
        self.ended[self.round] = ending
        self._rest_or_open()
        return [ending]

    def _missed(self, waits: bool = False) -> list[RoundEnding]:
        """Too few devices waited: it counts as an abandoned round, and the round goes on where the next one would be
        the devices' too, and no device is barred for so many rounds. It has no deadline where only other devices help,
        and neither failures nor time bring the datacenter's turn."""
        status, failed, in_vain, first = self.status, self.failed, self.in_vain, self.fleet_first
        self.failed, self.in_vain, self.fleet_first = failed + 1, in_vain + 1, False
        self._pause_after_failures()
        goes_on = self.status == "running" and not self.ending and self._wanted() == "federated" and not self.barred
        if goes_on:
            self._wait()
            center, resting = self.plan.get("datacenter"), self.rests_until is not None and self.at < self.rests_until
            if waits and not resting and (center is None or not center["patience"]):
                self.set_deadline(None)
            return []
        self.status, self.failed, self.in_vain, self.fleet_first = status, failed, in_vain, first
        return self._abandon()

    def _ending(self, committed: bool) -> RoundEnding:
        ending = RoundEnding(self.round, committed, self.reported, self.version, kind=self.kind, lease=self.lease)
        ending.invalid, ending.withdrawn = frozenset(self.invalid), frozenset(self.withdrawn)
        ending.cohort, ending.began = frozenset(self.cohort), frozenset(self.began)
        ending.waiting, ending.reports, ending.drawn_at = self.waiting, self.reports, self.drawn_at
        ending.secure, ending.advancing = self.secure, self.advancing
        ending.parents = {device: (one.since, self.bases[one.version][1]) for device, one in self.since.items()}
        late = [self.version - committed - one.version for one in self.since.values()]
        ending.staleness = [late.count(behind) for behind in range(max(late, default=-1) + 1)]
        if self.secure is not None and self.secure.blobs:
            self.undeleted[self.round] = self.secure.blobs
        return ending

    def _pause_after_failures(self) -> None:
        most = self.plan["finish"].get("abandoned")
        if most is None or self.failed < most or self.status != "running" or self.ending:
            return
        if self._wanted() != "fallback" or self.tried:
            self.status = "paused"

    def _stopped(self, event: EventRow) -> list[RoundEnding]:
        if self.over or self.ending:
            raise self._odd(event, f"the run is {self.status}")
        return self._end("stopped")

    def _end(self, status: str) -> list[RoundEnding]:
        self.ending = status
        if self.phase == "committing":
            return []
        if self.phase == "idle":
            self._rest_or_open()
            return []
        return self._abandon()

    def _require_deadline(self, event: EventRow, what: str) -> None:
        if self.deadline is None or event.at < self.deadline:
            early_s = (self.deadline or float("inf")) - event.at
            raise Broken("deadline", f"round {self.round} of {self.run} was {what} {early_s:.3f} s early")


def _metrics(event: EventRow) -> dict[str, float]:
    body: dict[str, Any] = event.body
    found: dict[str, float] = body.get("metrics", {})
    return found
