"""What the log says about one round: an account of its own, made without the engine's ``step``, for ``verify``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from client_sdk.metrics import UNDEFINED, Tally, means_in, undefined
from coordinator.engine.plan import Plan
from coordinator.store.port import EventRow
from coordinator.verify.secure import LoggedSecure

_READ = (
    "complete",
    "examples",
    "steps",
    "metrics",
    "held_out",
    "held_out_examples",
    "held_out_weights",
    "held_out_states",
    "treated",
)
"""Of a report, where it says something: a log has many."""


@dataclass(slots=True)
class LoggedRound:
    """The events of one round. ``add`` takes the next one."""

    cohort: set[str] = field(default_factory=set)
    reported: dict[str, str] = field(default_factory=dict)
    """Acknowledged updates by device: of a secure round the masked vectors of its last attempt."""
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The reports by which they were acknowledged, of a plain round."""
    begun: set[str] = field(default_factory=set)
    """Devices that have begun to train, or have sent something, and have not left."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes by device: of its update, or of all its messages of a secure round."""
    withdrawn: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Devices whose update was refused, and why."""
    since: dict[str, int] = field(default_factory=dict)
    """Of a buffered round: the devices that were drawn before it, and in which round."""
    pools: list[str] = field(default_factory=list)
    """Of a buffered round: the list of who waited, for each draw."""
    expired: set[str] = field(default_factory=set)
    """Of a buffered round: devices whose time was up."""
    staleness: dict[str, int] = field(default_factory=dict)
    """Of a buffered round: by how many versions each update was behind."""
    weights: dict[str, int] = field(default_factory=dict)
    """Of a buffered round: what each update weighs."""
    draw: dict[str, Any] = field(default_factory=dict)
    """The last draw, or what else counted who waits."""
    missed: list[float] = field(default_factory=list)
    """Times of draws from too few devices."""
    drawn_at: float | None = None
    committed_at: float | None = None
    given_up: set[tuple[str, str]] = field(default_factory=set)
    """(device, digest) of masked vectors of devices that were excluded, and of attempts that failed; of updates that
    were lost on the disk."""
    unanswered: set[tuple[str, str]] = field(default_factory=set)
    """(dealer, device that has complained of it) whose pair was not opened, of the attempt under way."""
    attempt: int = 0
    advanced_at: float | None = None
    """When the owner let the round commit the model moved by one unit, without contributions; and who it was."""
    advanced_by: str = ""
    commits: int = 0
    commit: dict[str, Any] = field(default_factory=dict)
    """The last commit, or a worker's result."""
    workers: set[str] = field(default_factory=set)
    """The workers that had a lease of the round."""
    lease: dict[str, Any] = field(default_factory=dict)
    """A datacenter round's last lease, with its time."""
    taken: tuple[str, int, str] | None = None
    """(worker, fence, digest) of its result."""
    spent: set[str] = field(default_factory=set)
    """Devices that have signed on the model, or say so."""
    barred: set[str] = field(default_factory=set)
    """Devices that were proven at fault when the sum was opened."""

    scores: dict[tuple[int, str, str], tuple[float, int, float]] = field(default_factory=dict)
    """(version, source, name) -> (value, examples, time) of evaluators' scores, which name no round."""
    tensors: str = ""
    """Digest of the first checkpoint's canonical tensors, which names no round; that of the last is in its commit."""
    unbarred: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, device, by) of owners' acts, which name no round."""
    secure: LoggedSecure = field(default_factory=LoggedSecure)
    seed: str = ""
    """SHA-256 of the seed of the round's noise."""

    @property
    def advanced(self) -> bool:
        return self.advanced_at is not None

    @property
    def left(self) -> set[str]:
        """Devices that withdrew, or whose update was refused."""
        return self.withdrawn | self.refused.keys()

    @property
    def holder(self) -> tuple[str, int] | None:
        """(worker, fence) of the last lease."""
        return (self.lease["worker"], self.lease["fence"]) if self.lease else None

    def is_complete(self, plan: Plan) -> bool:
        """Whether a round closes before its deadline: its goal has reported, or each device has, or has left."""
        return len(self.reported) >= plan.cohort.goal or self.cohort <= self.reported.keys() | self.left

    @property
    def learned(self) -> bool:
        """Whether the round was committed with what devices sent."""
        return bool(self.commit) and self.taken is None and not self.advanced

    def held_out(self) -> tuple[int, dict[str, float]]:
        """(examples, means) of the scores that counted devices sent. UNREADABLE."""
        scored = [one for device, one in self.reports.items() if device in self.reported and "held_out_examples" in one]
        stateful = {name for one in scored for name in one.get("held_out_states", ())}
        lacking = Counter(name for one in scored for name in one.get("held_out", ()) if name.endswith(UNDEFINED))
        parts = (
            (means_in(one.get("held_out", {}), stateful), one["held_out_examples"], one.get("held_out_weights", {}))
            for one in scored
        )
        means: dict[str, float] = Tally.total(parts).means()
        means |= {name: float(count) for name, count in lacking.items() if name not in set(map(undefined, stateful))}
        return sum(one["held_out_examples"] for one in scored), means

    def origin(self, number: int) -> str:
        """Where the checkpoint of a committed round came from, as its row says it to people."""
        if self.advanced_by:
            return f"round {number}, moved by one unit for {self.advanced_by}: no device contributed"
        return f"round {number}" if self.taken is None else f"round {number}, in the datacenter by {self.taken[0]}"

    def add(self, event: EventRow, plan: Plan) -> None:
        self.secure.add(event)
        body: dict[str, Any] = event.body
        device = str(body.get("device", ""))
        match event.kind:
            case "Created":
                self.tensors = body.get("tensors", "")
            case "Drawn":
                self.draw = body
                if plan.buffered is not None:
                    self.pools.append(body.get("pool") or "")
                if len(body["cohort"]) >= plan.fewest_devices:
                    drawn = {device for device, _ in body["cohort"]}
                    self.cohort = drawn if plan.buffered is None else self.cohort | drawn
                    self.drawn_at = event.at
                elif plan.secure is not None or body.get("pool") is None:
                    self.missed.append(event.at)
            case "FleetReturned":
                self.draw = body
            case "Started":
                self.begun.add(device)
            case "Reported":
                self._acknowledged(device, body)
                self.reports[device] = {name: body[name] for name in _READ if body.get(name)}
                self.sent[device] = body["bytes"]
            case "Advertised" | "Shared" | "Masked" | "Signed" | "Revealed" | "Complained" | "PairsOpened":
                self.begun.add(device)
                self.sent[device] += body["bytes"]
                if event.kind == "Masked":
                    self._acknowledged(device, body)
                elif event.kind == "Signed":
                    self.spent.add(device)
                    self._without_unanswered()
                elif event.kind == "Complained":
                    self.unanswered |= {(dealer, device) for dealer in body["dealers"]}
                elif event.kind == "PairsOpened":
                    self.unanswered -= {(device, holder) for holder in body["holders"]}
            case "Announced" if body["attempt"] > self.attempt:
                self.attempt = body["attempt"]
                self.given_up |= set(self.reported.items())
                self.reported = {}
                self.unanswered.clear()
            case "Faulted" | "UpdateLost" if device in self.reported:
                self.given_up.add((device, self.reported.pop(device)))
                if self.reports.pop(device, None):
                    self.begun.discard(device)
            case "Withdrew":
                self.withdrawn.add(device)
            case "Spent" | "Declined":
                if event.kind == "Spent":
                    self.spent.add(device)
                late = body.get("late", False)
                if not late and not self.secure.signed:  # else the list is fixed, and who is not on it has been let go
                    self.withdrawn.add(device)
            case "UpdateRefused":
                self.refused[device] = body["reason"]
                self.begun.add(device)
            case "OpeningFailed":
                self.barred |= set(body["lost"])
            case "Unbarred":
                self.unbarred.append((event.at, device, body["by"]))
            case "Seeded":
                self.seed = body["digest"]
            case "Advanced":
                self.advanced_at, self.advanced_by = event.at, body["by"]
            case "Committed" | "Delivered":
                self.commits += 1
                self.committed_at, self.commit = event.at, body
                self._without_fallen()
                if event.kind == "Delivered":
                    self.taken = (body["worker"], body["fence"], body["digest"])
            case "Scored":
                for name, value in body["metrics"].items():
                    self.scores[body["version"], body["source"], name] = (value, body["examples"], event.at)
            case "Leased":
                self.workers.add(body["worker"])
                self.draw, self.lease, self.attempt = body, {**body, "at": event.at}, body["attempt"]
            case _:  # other kinds change nothing of this account
                pass

    def _without_unanswered(self) -> None:
        """The list is fixed: who has answered a complaint of it with no pair is out, with its vector."""
        for dealer, _ in self.unanswered:
            if dealer in self.reported:
                self.given_up.add((dealer, self.reported.pop(dealer)))
        self.unanswered.clear()

    def _without_fallen(self) -> None:
        """The round is committed: vectors of groups without a sum do not count."""
        for device in self.secure.fallen & self.reported.keys():
            self.given_up.add((device, self.reported.pop(device)))

    def _acknowledged(self, device: str, body: dict[str, Any]) -> None:
        self.begun.add(device)
        self.reported.setdefault(device, body["digest"])
        self.given_up.discard((device, body["digest"]))  # lost, and sent again
