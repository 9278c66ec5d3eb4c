"""Operators and clocks: runs are created, paused, resumed, stopped and scored; machines' clocks jump.

The times are drawn before the storm begins. Each request is one call of a replica, whose answer is compared with the
durable state.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

from client_sdk.device.contribution import model_digest
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import CreateRun, MetricReport, RunView
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.workers import WorkerView
from client_sdk.tensors import to_bytes
from coordinator.runtime.coordinator import Coordinator
from tests.explorer import invariants
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.holders import model_signed
from tests.explorer.marks import first_model
from tests.explorer.replica import Replica
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

REQUIRED = {"op-pause": "running", "op-resume": "paused"}
"""The status of a run for which each of these is not refused, unless the run is over or about to end."""
ACTIONS = ("op-pause", "op-resume", "op-stop", "op-create", "op-score", "op-revoke")
UNBAR_S = 8.0
"""Seconds between two looks of an owner at who is barred."""
SIGN_S = 15.0
"""Seconds between two signatures under a model."""
JUMPS_S = (3.0, 20.0, 400.0, 90_000.0)


class ExplorerOperator:
    def __init__(self, world: World, durable: Durable, watch: InvariantWatch, replicas: Sequence[Replica]) -> None:
        self._world = world
        self._durable = durable
        self._watch = watch
        self._replicas = replicas
        body = to_bytes(first_model(world.shape.devices))
        self._bodies = (body, padded(body))

    def plan_storm(self) -> None:
        """Schedules when operators may act and clocks may jump."""
        world = self._world
        for _ in range(3):
            for action in ACTIONS:
                world.agenda.after(world.chance.between("deed", 0.0, world.shape.storm_s), self._act, action)
        for _ in range(2):
            for jump in ("clock-ahead", "clock-back"):
                world.agenda.after(world.chance.between("jump", 0.0, world.shape.storm_s), self._jump, jump)
        for _ in range(int(world.shape.storm_s / SIGN_S) if world.shape.signed else 0):
            world.agenda.after(world.chance.between("sign", 0.0, world.shape.storm_s), self._vouch_any)
        for number in range(int(world.shape.storm_s / UNBAR_S) if "op-unbar" in world.possible else 0):
            world.agenda.after(world.chance.between("unbar", 0.0, world.shape.storm_s), self._unbar, number % 4 == 0)

    def create(self) -> None:
        """Uploads the first checkpoint and creates a run; retries until it is answered."""
        world = self._world

        plan = world.shape.second if self._watch.runs and world.shape.second is not None else world.shape.plan

        body = self._bodies[bool(self._watch.runs) and world.shape.secure]
        init = hashlib.sha256(body).hexdigest()

        def work(coordinator: Coordinator) -> RunView:
            with coordinator.core.blobs.spool() as spool:
                spool.write(body)
                coordinator.operators.put_checkpoint(spool, init)
            return coordinator.operators.create_run(CreateRun(plan=plan, init=init, origin="explorer"))

        view = self._ask("create", work)
        self._watch.discover()
        self._watch.step()
        if isinstance(view, RunView):
            known = self._watch.runs.get(view.run)
            # A run that was paused or stopped through another replica, before its first round, opens none.
            if known is None or (not known.round and known.status == "running"):
                raise Broken("ack-durable", f"the operator got run {view.run}, which has not begun")
        elif not self._watch.runs:
            world.agenda.after(2.0, self.create)

    def store_again(self, digest: str, right: bytes) -> bool:
        """Stores the right bytes of a damaged checkpoint, whose answer says so. Returns whether they are stored."""
        if all(row.digest != digest for name in self._watch.runs for row in self._durable.store.checkpoints(name)):
            return False

        def work(coordinator: Coordinator) -> bool:
            with coordinator.core.blobs.spool() as spool:
                spool.write(right)
                return coordinator.operators.put_checkpoint(spool, digest)

        before = self._world.interruptions
        answer = self._ask("put-again", work)
        if answer is False and before == self._world.interruptions:
            raise Broken(
                "whole-blob", f"the damaged checkpoint {digest} was stored again, and the answer does not say so"
            )
        return answer is True

    def resume_all(self) -> None:
        """After the storm: nothing stays paused, and an exhausted run is advanced by its owner."""
        for run in list(self._watch.runs.values()):
            if run.status == "paused":
                self._ask("resume", lambda coordinator, name=run.run: coordinator.operators.resume(name))
            self.advance(run)
            self._vouch(run.run, right=True)

    def _vouch(self, name: str, *, right: bool) -> None:
        """Somebody gives the signature of the authority under the newest version. Otherwise it is one of another
        version, which devices must not take, or said to be one of it, which must be refused."""
        run, world = self._watch.runs[name], self._world
        if not world.shape.signed or run.over or (right and (not run.version or name in world.signed)):
            return
        row = self._durable.store.checkpoint(name, run.version)
        if row is None:
            return
        model, before = model_digest(invariants.read(self._durable, row.digest)), world.interruptions
        version = run.version if right or world.chance.unit("of another") < 0.5 else run.version + 1
        signature = model_signed(model, name, version if right else run.version + 1).hex()
        answer = self._ask("vouch", lambda coordinator: coordinator.operators.vouch(name, version, signature))
        self._watch.step()
        if right and isinstance(answer, RunView):
            world.signed.add(name)
        if before == world.interruptions and isinstance(answer, RunView) and run.vouched != (version, signature):
            raise Broken("ack-durable", f"the signature of version {version} of {name} was taken; it has {run.vouched}")

    def _vouch_any(self) -> None:
        for name in list(self._watch.runs):
            self._vouch(name, right=self._world.chance.unit("right") < 0.5)

    def advance(self, run: TrackedRun) -> None:
        """The owner advances a run that is exhausted, and only such a one."""
        if not self._world.shape.secure:
            return
        name, might = run.run, run.exhausted and run.status == "running" and run.phase in ("selecting", "leasing")
        if might:
            answer = self._ask("advance-run", lambda coordinator: coordinator.operators.advance(name, "the owner"))
            if isinstance(answer, Problem) and answer.kind == "conflict" and not self._world.stormy:
                raise Broken("operator", f"{name} is exhausted, and was not advanced: {answer}")

    def _unbar(self, anyone: bool) -> None:
        """The owner lets a barred device take part again. Where there is none, ``anyone``: asks for another one, which
        is refused."""
        world = self._world
        self._watch.step()
        runs = list(self._watch.runs.values())
        barring = [run for run in runs if run.barred and not run.over]
        if not (barring or (runs and anyone)) or not world.strikes("op-unbar", "operator"):
            return
        run = world.chance.pick("unbar's run", barring or runs)
        device = world.chance.pick("unbarred", sorted(run.barred) or ["device-1"])
        before, bars = world.interruptions, device in run.barred and not run.over
        answer = self._ask("unbar", lambda coordinator: coordinator.operators.unbar(run.run, device, "the owner"))
        self._watch.step()
        if before != world.interruptions:
            return
        if isinstance(answer, RunView) and (not bars or device in run.barred):
            raise Broken("operator", f"the bar of {device} was lifted, says the answer; in {run.run} it was {bars}")
        if isinstance(answer, Problem) and answer.kind == "conflict" and bars and device in run.barred:
            raise Broken("operator", f"{device} is barred from {run.run}, and that could not be lifted: {answer}")

    def _act(self, action: str) -> None:
        world = self._world
        if not world.strikes(action, "operator") or not self._watch.runs:
            return
        run = world.chance.pick("run", list(self._watch.runs.values()))
        name, interruptions = run.run, world.interruptions
        self._watch.step()
        might = _may(action, run)
        match action:
            case "op-create":
                if len(self._watch.runs) < 2:
                    self.create()
                return
            case "op-pause":
                view, status = self._ask("pause", lambda coordinator: coordinator.operators.pause(name)), ("paused",)
            case "op-resume":
                view, status = self._ask("resume", lambda coordinator: coordinator.operators.resume(name)), ("running",)
            case "op-revoke":
                self._revoke()
                return
            case "op-stop":
                view, status = self._ask("stop", lambda coordinator: coordinator.operators.stop(name)), ("stopped",)
            case _:
                self._score(name)
                return
        self._watch.step()
        if interruptions != world.interruptions:
            return  # what others did meanwhile may have changed it again
        if isinstance(view, Problem) and view.kind == "conflict" and might and _may(action, run):
            raise Broken("operator", f"the operator's {action[3:]} of {name} ({run.status}) was refused: {view}")
        if isinstance(view, RunView):
            shown = (
                view.status,
                view.phase,
                view.round,
                view.version,
                view.checkpoint,
                view.rounds_committed,
                view.seq,
            )
            logged = (run.status, run.phase, run.round, run.version, run.digest, run.version, run.head)
            if shown != logged:
                raise Broken("operator", f"the operator was shown {shown} of {name}, the log has {logged}")
        if isinstance(view, RunView) and not run.over and run.status not in status and not run.ending:
            raise Broken(
                "ack-durable", f"the operator's {action[3:]} of {name} was answered, the log says {run.status}"
            )

    def _revoke(self) -> None:
        workers = self._durable.store.workers()
        if not workers:
            return
        worker = self._world.chance.pick("revoked", workers).worker
        view = self._ask("revoke", lambda coordinator: coordinator.workers.revoke(worker))
        row = self._durable.store.worker(worker)
        if isinstance(view, WorkerView) and (row is None or row.revoked_at is None):
            raise Broken("ack-durable", f"the operator revoked {worker}, and its row does not say so")

    def _score(self, name: str) -> None:
        run = self._watch.runs[name]
        version = run.version - (run.version and self._world.chance.below("scored version", 2))
        row = self._durable.store.checkpoint(name, version)
        if row is None:
            return
        chance, before = self._world.chance, self._world.interruptions
        score = Score(examples=10, metrics={"accuracy": chance.pick("accuracy", (0.25, 0.5, 0.75))})
        source = chance.pick("score's source", ("evaluator", "evaluator", "other"))
        report = MetricReport(version=row.version, digest=row.digest, score=score, source=source)
        answer = self._ask("score", lambda coordinator: coordinator.operators.report_metrics(name, report))
        if not isinstance(answer, list) or before != self._world.interruptions:
            return
        mine = [(found.value, found.examples) for found in answer if found.version == row.version]
        stored = [
            (found.value, found.examples)
            for found in self._durable.store.metrics(name)
            if (found.version, found.source) == (row.version, source)
        ]
        if not mine == stored == [(score.metrics["accuracy"], score.examples)]:
            raise Broken("ack-durable", f"a score of version {row.version} of {name} was taken: {stored} is there")

    def _ask(self, event: str, work: Any) -> Any:
        alive = [replica for replica in self._replicas if replica.up and not replica.busy()]
        if not alive:
            return None
        replica = self._world.chance.pick("operator's replica", alive)
        self._world.log(f"the operator asks {replica.name} to {event}")
        answer = replica.attempt(event, work)
        if isinstance(answer, Problem) and answer.kind == "invalid-plan":
            raise Broken("no-bug", f"the explorer's plan is refused: {answer}")
        return answer

    def _jump(self, jump: str) -> None:
        world = self._world
        replica = world.chance.pick("clock", self._replicas)
        if world.strikes(jump, replica.name):
            seconds = world.chance.pick("jump-s", JUMPS_S)
            replica.clock_offset_s += seconds if jump == "clock-ahead" else -seconds
            replica.admitted.forget()
            world.log(f"the clock of {replica.name} jumps {'ahead' if jump == 'clock-ahead' else 'back'} {seconds:g} s")


def padded(body: bytes) -> bytes:
    """Another file of the tensors of ``body``: its header ends in more spaces."""
    (length,) = struct.unpack("<Q", body[:8])
    return struct.pack("<Q", length + 8) + body[8 : 8 + length] + b" " * 8 + body[8 + length :]


def _may(action: str, run: TrackedRun) -> bool:
    """Whether this request is not refused in the run's condition."""
    return not run.over and not run.ending and run.status == REQUIRED.get(action, run.status)
