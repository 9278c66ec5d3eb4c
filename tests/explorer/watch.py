"""Watches the durable state of every run, step by step, and checks it against the invariants.

It reads the store's rows and the disk directly, follows each run's log with a small model of its own (``follow``), and
checks every answer of a replica. It does not read the engine's objects. Reading is incremental: a step after which no
log has grown costs one small read for each run.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from client_sdk.protocol.devices import Assignment, Noted, Outcome, Receipt, Registered, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.workers import Lease, LeaseRenewed, ResultReceipt, WorkerRegistered
from coordinator.store.port import EventRow
from tests.explorer import admission, draws, invariants, offers
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.private import Spent
from tests.explorer.request import SentRequest
from tests.explorer.secure import checks as secure_checks
from tests.explorer.secure.account import SECURE_PHASES
from tests.explorer.secure.follow_secure import SECURE_EVENTS
from tests.explorer.secure.vectors import tensors_of
from tests.explorer.world import World

RECORDED = ("late", "duplicate", "withdrawn", "invalid-update")
"""Refusals of an update that leave a row."""


class PhaseWatch(Protocol):
    """What is required of a phase after its beginning."""

    def moved(self, run: TrackedRun) -> None: ...
    def pool_grew(self, runs: Sequence[TrackedRun]) -> None: ...


class InvariantWatch:
    """``runs``: the model of each run; ``acknowledged``: the updates with a receipt."""

    def __init__(self, world: World, durable: Durable, phases: PhaseWatch) -> None:
        self.world = world
        self.durable = durable
        self.phases = phases
        self.runs: dict[str, TrackedRun] = {}
        self.marks: dict[bytes, set[str]] = {}
        """Who contributes to which model no more: see ``FollowedRun.marks``."""
        self.spent: Spent = defaultdict(dict)
        """What devices have lost: see ``FollowedRun.spent``."""
        self.written = True
        """Whether a transaction of a run has begun since the last look."""
        self.transactions = 0
        """How many transactions have begun."""
        self.changes = 0
        """How often a run was found, or an event of one."""
        self._clocks_jump = not world.possible.isdisjoint(("clock-ahead", "clock-back"))
        self._audited = 0
        """The last row of the audit that was searched for secrets."""
        self.acknowledged: dict[tuple[str, int, str], str] = {}
        """(run, round, device) -> digest of the update for which a receipt was given."""

    @property
    def _is_alone(self) -> bool:
        """Whether no two calls were ever under way at once."""
        return self.world.shape.replicas == 1 and not self.world.interruptions

    @property
    def _is_read(self) -> bool:
        """Whether the replica has read each run to the end of its log: no other writes, and no answer was lost."""
        return self.world.shape.replicas == 1 and "store-lost-ack" not in self.world.possible

    @property
    def committing(self) -> list[str]:
        """Digests of the updates of which models are made now."""
        runs = (run for run in self.runs.values() if run.phase == "committing")
        return sorted(digest for run in runs for digest, _ in run.reported.values())

    def writes(self, run: str | None) -> None:
        """A transaction of this run begins, or one of no run, in which no log grows."""
        self.transactions += 1
        if run is not None:
            self.written = True

    def step(self) -> None:
        """After each step: reads and checks what has changed. Without a transaction of a run nothing has."""
        if not self.written:
            return
        self.written = False
        store = self.durable.store
        for run in list(self.runs.values()):
            if store.head(run.run) != run.head:
                self._read(run)

    def discover(self) -> None:
        """Looks for runs that were created."""
        for row in self.durable.store.runs():
            if row.run not in self.runs:
                flips = self.durable.flips
                run = self.runs[row.run] = TrackedRun(
                    row,
                    clocks_jump=self._clocks_jump,
                    flipped={} if flips is None else flips.right,
                    marks=self.marks,
                    spent=self.spent,
                )
                self.changes += 1
                invariants.begun(self.durable, run)
                run.tensors = tensors_of(invariants.read(self.durable, run.digest))
                self._read(run)

    def run(self, name: str) -> TrackedRun:
        """Returns the model of this run, which another replica may have found before the operator got an answer."""
        if name not in self.runs:
            self.discover()
        return self.runs[name]

    def _require_time_back(self, run: TrackedRun, event: EventRow) -> None:
        """The time of an exchange is not over when a coordinator that was away has just started again."""
        account, world = run.secure, self.world
        if event.kind != "Tick" or account is None or run.phase not in SECURE_PHASES or not account.roster:
            return
        since = world.started_at
        until = min(since + account.section["exchange_s"], account.expires_at)
        if world.shape.replicas == 1 and not self._clocks_jump and run.at < since <= event.at < until:
            raise Broken("deadline", f"round {run.round} of {run.run}: an outage took its time of {run.phase}")

    def _read(self, run: TrackedRun) -> None:
        first = (run.round, run.phase)
        for event in self.durable.store.events(run.run, run.head, 1_000_000):
            before, failed = (run.round, run.phase), run.failed
            self._require_time_back(run, event)
            ended = run.follow(event)
            self.changes += 1
            self.world.phase = next(iter(self.runs.values())).phase
            self.world.tally.events += 1
            self._log(run, event)
            if run.recoveries > self.world.starts:
                raise Broken("deadline", f"{run.run} gave time back {run.recoveries} times, and no replica had started")
            if event.kind == "UpdateLost":
                self.world.asked_again.add((run.run, run.round, str(event.body["device"])))
            if event.kind == "Drawn":
                self.world.asked_again |= {(run.run, run.round, device) for device in run.drawn_again}
                self._require_model(run)
                draws.drawn(self.durable, run, event, self.world.waiting.pop((run.run, event.seq)))
            if (run.round, run.phase) != before or run.failed > failed:  # a missed selection begins anew
                self.phases.moved(run)
            if run.secure is not None or event.kind in SECURE_EVENTS:
                self._look_at_secure(run, event)
            for ending in ended:
                self.world.tally.commits += ending.committed
                self.world.tally.abandoned += not ending.committed
                invariants.round_ended(self.world.streams, self.world.register, self.durable, run, ending)
                if ending.kind == "secure":
                    secure_checks.round_ended(self.durable, run, ending)
                    self._audited = secure_checks.hidden_rows(
                        self.world.vectors, self.durable, run.run, ending.round, self._audited
                    )
                if ending.committed and self.world.shape.secure:
                    run.tensors = tensors_of(invariants.read(self.durable, run.digest))
        invariants.rows_agree(self.durable, run, moved=(run.round, run.phase) != first)
        invariants.paid(self.durable, run)

    def _require_model(self, run: TrackedRun) -> None:
        """No round is drawn on a model that is known to be damaged."""
        flips = self.durable.flips
        if flips is not None and flips.is_marked(run.digest) and self._is_alone:
            raise Broken("whole-blob", f"round {run.round} of {run.run} begins, and its model {run.digest} is damaged")

    def _look_at_secure(self, run: TrackedRun, event: EventRow) -> None:
        world = self.world
        secure_checks.hidden(world.vectors, self.durable, [json.dumps(event.body), *world.taken_log()])
        left_out = world.dishonest | world.authority.left_out.keys() | world.authority.short
        private = run.private
        spent = {device for device in run.cohort if private is not None and private.is_spent(device)}
        secure_checks.blamed(world.vectors, left_out | spent, run, event)
        secure_checks.openable(world.dishonest, run, event)
        if event.kind == "Advertised" and event.body["device"] in world.strict and run.run not in world.signed:
            raise Broken("origin", f"{event.body['device']} is in round {run.round} of {run.run}, which nobody signed")
        if event.kind == "Opened":
            secure_checks.opened(world.vectors, self.durable, run, event)
        if event.kind == "Rostered":
            secure_checks.grouped(self.durable, run)

    def _log(self, run: TrackedRun, event: EventRow) -> None:
        if self.world.trace is not None:
            about = {
                name: event.body[name]
                for name in ("round", "device", "worker", "fence", "cohort", "digest", "reason", "by_s")
                if event.body.get(name) is not None
            }
            shown = ", ".join(f"{name} {value}" for name, value in about.items())
            self.world.log(
                f"    {run.run} #{event.seq} {event.kind}: {shown} -> round {run.round}, {run.phase}, {run.status}"
            )

    def crashed(self) -> None:
        """After each crash: checks that everything acknowledged is still there."""
        self.written = True
        self.step()
        for run in self.runs.values():
            invariants.spooled(self.durable, run)
            secure_checks.spooled(self.durable, run)
            invariants.whole_blobs(self.durable, run)
            invariants.paid(self.durable, run)

    def discarded(self) -> None:
        """After each task that deletes updates, and each start, which may delete some too."""
        self.step()
        for run in self.runs.values():
            invariants.still_retained(self.durable, run)

    def answered(self, request: SentRequest, answer: Any, disturbed: bool, now: float) -> None:
        """Checks an answer of a replica: what it acknowledges is durable at this moment. ``now``: by its clock.

        ``disturbed``: others were served meanwhile, so it may have been true a moment ago only.
        """
        self.step()
        if request.event == "update" and self.world.shape.secure:
            if isinstance(answer, Receipt):
                raise Broken("unmasked", f"an update in the clear was taken from {request.holder.id}: {answer}")
            return
        match answer:
            case Receipt():
                key = (answer.run, answer.round, answer.device)
                known = self.acknowledged.setdefault(key, answer.digest)
                lost = self.run(answer.run).lost_digests
                if known in lost:
                    known = self.acknowledged[key] = answer.digest
                if known != answer.digest and answer.digest not in lost:
                    raise Broken("counts-once", f"{key} got receipts for two updates: {known[:8]}, {answer.digest[:8]}")
                run = self.run(answer.run)
                if answer.digest in lost and disturbed:
                    return  # it was lost while the answer stood still
                if run.known(answer.round, answer.device) != (answer.digest, answer.weight):
                    raise Broken(
                        "ack-durable", f"a receipt for {key} ({answer.digest[:8]}) was given, the log does not have it"
                    )
                event, logged = run.report(answer.round, answer.device), answer.logged
                if event is None or logged is None or (logged.seq, logged.link) != (event.seq, event.link):
                    raise Broken("receipt", f"a receipt for {key} names {logged}; {event} counts the update")
                if run.round == answer.round:
                    invariants.spooled(self.durable, run, only=answer.digest)
            case Problem(kind="unknown-run"):  # a folder that was set back may be older than the run
                name = str(request.send.path["run"])  # type: ignore[union-attr]
                if self.durable.store.run(name) is not None:
                    raise Broken("ack-durable", f"run {name} is stored, and {request.holder.id} got: {answer}")
            case Problem() if request.event == "update":
                self._refused_update(request, answer)
            case Problem(kind="invalid-update") if request.event == "secure-message":
                self._refused_message(request, answer)
            case Problem(kind="stale" | "conflict" | "late") if request.event == "refuse" and not disturbed:
                self._refused_decline(request, answer)
            case ResultReceipt():
                self._result_taken(request, answer)
            case Problem(kind="conflict") if request.event == "withdraw" and not disturbed:
                self._refused_withdrawal(request, answer)
            case Problem() if request.event == "result":
                self._refused_result(request, answer)
            case Lease() | LeaseRenewed() if not disturbed:
                self._lease_held(request, answer)
                if isinstance(answer, Lease):
                    worker, poll = request.holder.id, request.send.message  # type: ignore[union-attr]
                    offers.leased(self.run(answer.run), worker, poll, answer, now)  # type: ignore[arg-type]
                else:
                    offers.renewed(self.run(str(request.send.path["run"])), answer, now)  # type: ignore[union-attr]
            case Assignment() if not disturbed:
                offers.assigned(self.world, self.run(answer.run), request.holder.id, answer, now)
            case Outcome() if not disturbed:
                offers.outcome(self.durable, self.run(answer.run), request.holder.id, answer)
            case Wait() if not disturbed and self._is_read:
                offers.waits(self.world, self.runs.values(), request.send.message, answer)  # type: ignore[union-attr,arg-type]
            case Registered() | WorkerRegistered() if not disturbed:
                admission.registered(self.world, self.durable, request, answer)
            case Noted() if request.send.route is Route.LEAVE and not disturbed:  # type: ignore[union-attr]
                admission.forgotten(self.durable, request.holder.id, secure=self.world.shape.secure)
            case Noted() if request.send.route is Route.WITHDRAWN:  # type: ignore[union-attr]
                path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
                device = request.holder.id
                run = self.run(path["run"])
                noted = run.round == path["round"] and run.phase == "collecting" and not run.buffered
                if noted and device not in run.left:
                    raise Broken("ack-durable", f"the withdrawal of {device} was noted, the log does not have it")
            case bytes():
                invariants.fetched(request, answer)
            case _:
                pass

    def _refused_message(self, request: SentRequest, answer: Problem) -> None:
        """Only what liars sign is wrong, and what is signed under a list that the coordinator has forged."""
        world, device = self.world, request.holder.id
        doubtful = world.dishonest | world.vectors.deceived | world.authority.left_out.keys() | world.authority.short
        if device not in doubtful:
            raise Broken("barred", f"a message of {device} was refused, and it does not lie: {answer}")

    def _refused_decline(self, request: SentRequest, answer: Problem) -> None:
        """What a device declines counts as long as the model is the same, also where the round is over."""
        path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
        run, number, device = self.run(path["run"]), int(path["round"]), request.holder.id
        over = run.ended.get(number)
        if over is None or run.over or not self._is_read or device not in over.cohort or number <= run.made_in:
            return
        if device not in run.unfit and not request.send.message.spent:  # type: ignore[union-attr]
            raise Broken("named", f"{device} has declined in round {number} of {run.run}, and got: {answer}")

    def _refused_update(self, request: SentRequest, answer: Problem) -> None:
        path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
        run, number = self.run(path["run"]), int(path["round"])
        device = request.holder.id
        known = run.known(number, device)
        counts_in = run.went.get((number, device), number)
        ending = run.ended.get(counts_in)
        open_or_counted = run.round == counts_in if ending is None else ending.committed
        same = known is not None and known[0] == hashlib.sha256(request.body).hexdigest()
        is_open = run.round == number and run.phase == "collecting" and device in run.cohort and known is None
        if run.buffered:
            is_open = (place := run.places.get(device)) is not None and place.since == number
        if answer.kind == "invalid-update" and is_open and device not in run.left:
            raise Broken("left-once", f"an update of {device} was refused as invalid, and it has not left the round")
        rounds = range(number, run.round + 1) if run.buffered else (number,)
        store, recorded = self.durable.store, answer.kind in RECORDED
        refused = {row.device for one in rounds for row in store.refusals(run.run, one)} if recorded else ()
        if answer.kind in RECORDED and device and device not in refused and run.counted(number, device) is None:
            raise Broken("named", f"an update of {device} in round {number} was {answer.kind}, and no row says so")
        if answer.kind == "late" and self._is_alone:
            invariants.recorded_once(self.durable, run, number, device)
        if same and open_or_counted and answer.advice == "drop" and answer.kind != "invalid-update":
            raise Broken("receipt", f"an update of round {number} that counts was sent again, and got: {answer}")

    def _refused_withdrawal(self, request: SentRequest, answer: Problem) -> None:
        """A device that has left the round gets the same answer again."""
        path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
        message: Any = request.send.message  # type: ignore[union-attr]
        run, device = self.run(path["run"]), request.holder.id
        left = device in run.left and not run.buffered
        if (run.round, run.phase, message.attempt) == (path["round"], "collecting", 0) and left:
            raise Broken(
                "receipt", f"{device} has left round {run.round} of {run.run}, says so again, and got: {answer}"
            )

    def _result_taken(self, request: SentRequest, answer: ResultReceipt) -> None:
        """Checks a result's receipt: the result is the model of this version."""
        if answer.digest != hashlib.sha256(request.body).hexdigest():
            raise Broken("receipt", f"{answer.worker} got a receipt for another result than it had sent: {answer}")
        ending = self.run(answer.run).ended.get(answer.round)
        found = None if ending is None else (ending.committed, ending.digest, ending.version, *ending.lease[:2])
        if found != (True, answer.digest, answer.version, answer.worker, answer.attempt):
            raise Broken("ack-durable", f"{answer} was given as a receipt, the log has {found}")

    def _refused_result(self, request: SentRequest, answer: Problem) -> None:
        """Its reason is recorded, and a committed result is not refused when it is sent again."""
        path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
        report: Any = request.send.message  # type: ignore[union-attr]
        run, number, worker = self.run(path["run"]), int(path["round"]), request.holder.id
        ending = run.ended.get(number)
        taken = ending is not None and ending.committed and ending.lease[0::2] == (worker, report.fence)
        same = ending is not None and ending.digest == hashlib.sha256(request.body).hexdigest()
        if taken and same and answer.advice == "drop" and answer.kind != "invalid-update":
            raise Broken("receipt", f"the result of round {number} was sent again, and got: {answer}")
        if answer.kind == "lease-lost" and 1 <= number <= run.round:
            known = {(row.device, row.kind) for row in self.durable.store.refusals(run.run, number)}
            if (worker, "lease-lost") not in known:
                raise Broken("named", f"a result of {worker} for round {number} was refused, and no reason is recorded")
            if self._is_alone:
                invariants.recorded_once(self.durable, run, number, worker)

    def _lease_held(self, request: SentRequest, answer: Lease | LeaseRenewed) -> None:
        """A worker that gets a lease as its answer has the round at this moment."""
        message: Any = request.send.message  # type: ignore[union-attr]
        if isinstance(answer, Lease):
            run, answered = self.run(answer.run), (answer.worker, answer.attempt, answer.fence)
        else:
            run = self.run(str(request.send.path["run"]))  # type: ignore[union-attr]
            answered = (request.holder.id, message.attempt, message.fence)
        if run.phase != "training" or run.lease != answered:
            raise Broken(
                "lease", f"{answered} got an answer that it has the round; the log has {run.lease}, {run.phase}"
            )

    def require_unmoved(self, event: str, problem: Problem) -> None:
        """A refused request changes no run, but that the sender of an invalid update, or of what no honest device
        signs, leaves its round."""
        for run in self.runs.values():
            if self.durable.store.head(run.run) == run.head:
                continue
            grown = [row.kind for row in self.durable.store.events(run.run, run.head, 2)]
            leaves = problem.kind == "invalid-update" and grown in (["UpdateRefused"], ["Faulted"])
            if grown and not leaves:
                raise Broken("refusal", f"{event} was refused ({problem.kind}), and the log of {run.run} grew")

    def finish(self) -> None:
        """At the end: checks every run from the beginning."""
        self.written = True
        self.step()
        for run in self.runs.values():
            invariants.rows_agree(self.durable, run)
            invariants.whole_blobs(self.durable, run)
            invariants.spooled(self.durable, run)
            secure_checks.spooled(self.durable, run)
