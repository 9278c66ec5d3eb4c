"""What the log says about one round: an account of its own, made without the engine's ``step``, for ``verify``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.engine.plan import Plan
from coordinator.store.port import EventRow
from coordinator.verify.secure import LoggedSecure


@dataclass(slots=True)
class LoggedRound:
    """The events of one round. ``add`` takes the next one."""

    cohort: set[str] = field(default_factory=set)
    reported: dict[str, str] = field(default_factory=dict)
    """Acknowledged updates by device: of a secure round the masked vectors of its last attempt."""
    left: set[str] = field(default_factory=set)
    """Devices that withdrew, or whose update was refused."""
    drawn_at: float | None = None
    committed_at: float | None = None
    given_up: set[tuple[str, str]] = field(default_factory=set)
    """(device, digest) of masked vectors of devices that were excluded, and of attempts that failed; of updates that
    were lost on the disk."""
    attempt: int = 0
    advanced: bool = False
    """Whether the owner let the round commit the model moved by one unit, without contributions."""
    advanced_by: str = ""
    commits: int = 0
    committed: str | None = None
    """Digest of the checkpoint, as the last commit names it."""
    named_tensors: dict[str, str] = field(default_factory=dict)
    """As the commit names them."""
    small: dict[str, Any] = field(default_factory=dict)
    """The small state, likewise."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What the commit says of the bytes that its checkpoint was made of."""
    workers: set[str] = field(default_factory=set)
    """Those that had a lease of the round."""
    holder: tuple[str, int] | None = None
    """(worker, fence) of a datacenter round's last lease."""
    taken: tuple[str, int, str] | None = None
    """(worker, fence, digest) of its result."""

    scores: dict[tuple[int, str, str], tuple[float, int, float]] = field(default_factory=dict)
    """(version, source, name) -> (value, examples, time) of evaluators' scores, which name no round."""
    secure: LoggedSecure = field(default_factory=LoggedSecure)

    def is_complete(self, plan: Plan) -> bool:
        """Whether a round closes before its deadline: its goal has reported, or each device has, or has left."""
        return len(self.reported) >= plan.cohort.goal or self.cohort <= self.reported.keys() | self.left

    @property
    def learned(self) -> bool:
        """Whether the round was committed with what devices sent."""
        return self.committed is not None and self.taken is None and not self.advanced

    def origin(self, number: int) -> str:
        """Where the checkpoint of a committed round came from, as its row says it to people."""
        if self.advanced_by:
            return f"round {number}, moved by one unit for {self.advanced_by}: no device contributed"
        return f"round {number}" if self.taken is None else f"round {number}, in the datacenter by {self.taken[0]}"

    def add(self, event: EventRow) -> None:
        self.secure.add(event)
        body: dict[str, Any] = event.body
        match event.kind:
            case "Drawn":
                self.cohort = {device for device, _ in body["cohort"]}
                self.drawn_at = event.at
            case "Reported" | "Masked":
                self.reported.setdefault(body["device"], body["digest"])
                self.given_up.discard((body["device"], body["digest"]))  # lost, and sent again
            case "Announced" if body["attempt"] > self.attempt:
                self.attempt = body["attempt"]
                self.given_up |= set(self.reported.items())
                self.reported = {}
            case "Faulted" | "UpdateLost" if body["device"] in self.reported:
                self.given_up.add((body["device"], self.reported.pop(body["device"])))
            case "Withdrew" | "UpdateRefused":
                self.left.add(body["device"])
            case "Advanced":
                self.advanced, self.advanced_by = True, body["by"]
            case "Committed":
                self.commits += 1
                self.committed_at = event.at
                self.committed = body["digest"]
                self.named_tensors = body.get("named_tensors", {})
                self.small = body.get("small", {})
                self.evidence = body.get("evidence", {})
            case "Scored":
                for name, value in body["metrics"].items():
                    self.scores[body["version"], body["source"], name] = (value, body["examples"], event.at)
            case "Leased":
                self.workers.add(body["worker"])
                self.holder = (body["worker"], body["fence"])
            case "Delivered":
                self.commits += 1
                self.committed_at = event.at
                self.committed = body["digest"]
                self.taken = (body["worker"], body["fence"], body["digest"])
                self.evidence = body.get("evidence", {})
            case _:  # other kinds change nothing of this account
                pass
