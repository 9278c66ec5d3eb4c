"""One worker of a datacenter: the real ``work`` session, with training that makes marks, and the faults of workers.

It performs the session's actions against the explorer's network and clock. It can die after any of them, come back as
another instance, or never; stand still past its lease; have a twin that works with the same certificate; and lie
(``WorkerLies``). Like real workers it saves its certificate only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, assert_never

from client_sdk.device.actions import (
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Unreachable,
)
from client_sdk.device.record import Record
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, ProblemError, problem
from client_sdk.protocol.workers import (
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
)
from coordinator.datacenter.worker_session import (
    AwaitJob,
    Begin,
    Ended,
    Finished,
    Halt,
    Job,
    JobProgress,
    TrainLease,
    WorkerAction,
    WorkerReply,
    WorkerSession,
    work,
)
from tests.explorer.certifying import PERSON_S, UNCERTIFIED, certify
from tests.explorer.faults import Broken
from tests.explorer.holders import Holder, token_of
from tests.explorer.network import Network
from tests.explorer.plans import DATA, LEARNER
from tests.explorer.request import Answer
from tests.explorer.sender import RequestSender
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

URL = "http://explorer"
HOLD_S = 25.0
LIES = ("heartbeat", "end", "result", "next-fence", "other-bytes", "fetch")


class ExplorerWorker:
    """``twin``: a process that works with another worker's certificate, as another instance."""

    def __init__(
        self,
        world: World,
        network: Network,
        watch: InvariantWatch,
        holder: Holder,
        record: Record,
        data: tuple[str, ...] = (DATA,),
        twin: bool = False,
    ) -> None:
        self.world = world
        self.network = network
        self.watch = watch
        self.holder = holder
        self.worker = holder.id
        self.name = f"{holder.id}'s twin" if twin else holder.id
        self.sender = RequestSender(world, network, holder)
        self.record = record
        """What it has saved."""
        self.data = data
        """Names of the data that it holds."""
        self.up = False
        self.dead = False
        self.life = 0
        self.leases: list[Lease] = []
        self.history: list[Ended] = []
        self.delivered: dict[tuple[str, int, int], str] = {}
        """(run, round, fence) -> digest of the result that this worker's processes sent last."""
        self._lies = WorkerLies(world, watch, self.sender)
        self._session: WorkerSession | None = None
        self._tokens = 0
        """How many enrolment tokens it has had, beyond the first."""
        self._waiting_for = 0
        self._bodies: dict[str, bytes] = {}
        self._fetched = b""
        self._job = 0
        self._job_reply: WorkerReply = None
        self._awaiting: tuple[int, int] | None = None
        self._training: Lease | None = None
        self._done_at = 0.0
        self._wrong = False

    # ------------------------------------------------------------ life and death

    def plan_storm(self) -> None:
        """Schedules when a twin may start, and when this worker may lie."""
        world, storm_s = self.world, self.world.shape.storm_s
        if "worker-twin" in world.possible:
            for _ in range(2):
                world.agenda.after(world.chance.between("twin-at", 0.0, storm_s), self._have_a_twin)
        if "worker-lie" in world.possible:
            for _ in range(int(storm_s / 4)):
                world.agenda.after(
                    world.chance.between("worker-lie-at", 0.0, storm_s),
                    lambda: self._lies.tell(self.name, self.leases, self._fetched),
                )

    def start(self) -> None:
        if self.up or self.dead:
            return
        self.life += 1
        self.up = True
        instance = f"{self.name} {self.life}"
        offer = WorkerPoll(
            instance=instance, installation=self.name, learners={LEARNER: "1"}, data=self.data, hold_s=HOLD_S
        )
        self.sender.restarted()
        self._session = work(
            self.record,
            lambda: offer,
            coordinator=URL,
            enrolment_token=token_of(self._tokens),
            label="explorer",
            signer=self.holder.key,
            at=self.sender.now(),
        )
        self._advance(lambda: next(self._session))  # type: ignore[arg-type]

    def vanish(self, back_after_s: float | None) -> None:
        """The process dies, with everything it had not saved. None: permanently."""
        if not self.up:
            return
        self.world.log(f"{self.name} dies" + (" for good" if back_after_s is None else ""))
        self.up = False
        self.life += 1
        if self._session is not None:
            self._session.close()
        self.dead = back_after_s is None
        if back_after_s is not None:
            self.world.agenda.after(back_after_s, self.start)

    def _dies(self, where: str) -> bool:
        world = self.world
        if not world.strikes("worker-crash", f"{self.name} {where}"):
            return False
        lost = world.lost_workers > 0
        world.lost_workers -= lost
        self.vanish(None if lost else world.chance.between("worker-away", 0.1, 30.0))
        return True

    def _have_a_twin(self) -> None:
        world = self.world
        if self.up and world.strikes("worker-twin", self.name):
            world.log(f"a second process starts as {self.worker}")
            twin = ExplorerWorker(world, self.network, self.watch, self.holder, self.record, self.data, twin=True)
            twin.delivered = self.delivered
            twin.start()
            world.agenda.after(world.chance.between("twin-s", 2.0, 25.0), twin.vanish, None)

    # ------------------------------------------------------------ the session

    def _advance(self, step: Callable[[], WorkerAction]) -> None:
        """Advances the session to its next action and performs it."""
        try:
            action = step()
        except StopIteration:
            raise Broken("no-bug", f"the session of {self.name} ended by itself") from None
        except ProblemError as error:
            self._stops(error)
            return
        except Exception as error:
            raise Broken("no-bug", f"the session of {self.name} raised {error!r}") from error
        self._perform(action)

    def _stops(self, error: ProblemError) -> None:
        """The session has ended: rightly where its key is revoked, or its certificate was not renewed in time."""
        world, kind = self.world, error.problem.kind
        world.log(f"{self.name} stops: {kind}: {error}")
        row = self.watch.durable.store.worker(self.worker)
        revoked = self.holder.key_id in world.authority.revoked or (row is not None and row.revoked_at is not None)
        if kind == "revoked-key" and revoked:
            self.vanish(None)
        elif kind in UNCERTIFIED and self.worker in world.authority.short:
            self._tokens += 1
            self.vanish(PERSON_S)
        else:
            raise Broken("no-bug", f"{self.name} had to stop: {kind}: {error}") from error

    def _perform(self, action: WorkerAction) -> None:
        world = self.world
        self._waiting_for += 1
        ticket = (self.life, self._waiting_for)
        if self._dies(type(action).__name__.lower()):
            return
        match action:
            case Save():
                self.record = action.record
                self._resume(ticket, None)
            case Certify():
                certify(world, self.sender, action, self.name, lambda reply: self._resume(ticket, reply))
            case Send():
                hold_s = HOLD_S if action.route is Route.LEASES else 0.0
                self._ask(action, lambda answer: self._resume(ticket, self._reply(action, answer)), ticket, hold_s)
            case Begin():
                self._job += 1
                self._job_reply, self._training = None, None
                self._begin(action.job, (self.life, self._job))
                self._resume(ticket, None)
            case AwaitJob():
                self._await_job(action.for_s, ticket)
            case Halt():
                self._job += 1
                self._training = None
                self._resume(ticket, None)
            case Ended():
                world.log(f"{self.name}: round {action.lease.round} is {action.result}: {action.reason}")
                self.history.append(action)
                self._resume(ticket, None)
            case Sleep():
                wait_s = world.chance.between(f"sleep {self.name}", action.min_s, action.max_s)
                world.agenda.after(wait_s, self._resume, ticket, None)
            case _:
                assert_never(action)

    def _resume(self, ticket: tuple[int, int], reply: WorkerReply) -> None:
        if ticket != (self.life, self._waiting_for) or not self.up:
            return
        if isinstance(reply, Answered) and isinstance(reply.message, Lease):
            self.leases = [*self.leases[-3:], reply.message]
            self.world.log(f"{self.name} has round {reply.message.round}, fence {reply.message.fence}")
        session = self._session
        self._advance(lambda: session.send(reply))  # type: ignore[union-attr]

    def _ask(
        self, send: Send | Fetch, respond: Callable[[Answer], None], ticket: tuple[int, int], hold_s: float = 0.0
    ) -> None:
        body = self._bodies[send.update] if isinstance(send, Send) and send.update is not None else b""
        life, waiting = ticket
        self.sender.send(
            send, respond, body=body, hold_s=hold_s, gone=lambda: life != self.life or not self.up or waiting < 0
        )

    def _reply(self, action: Send | Fetch, answer: Answer) -> Any:
        at = self.sender.now()
        if answer is None:
            return Unreachable("No answer came.", at)
        if isinstance(answer, Problem):
            return RequestRefused(answer, at)
        if not isinstance(answer, bytes):
            return Answered(answer, at)
        if self.world.strikes("corrupt", "checkpoint"):
            answer = answer[:-1] + bytes([answer[-1] ^ 1])
        if isinstance(action, Fetch) and hashlib.sha256(answer).hexdigest() != action.checkpoint.digest:
            return RequestRefused(problem("digest-mismatch", "The checkpoint's bytes changed on the way.").problem, at)
        self._fetched = answer
        return Fetched(at)

    # ------------------------------------------------------------ jobs

    def _begin(self, job: Job, ticket: tuple[int, int]) -> None:
        match job:
            case TrainLease():
                self._train(job.lease, ticket)
            case Send() | Fetch():
                if isinstance(job, Send) and isinstance(job.message, ResultReport):
                    path = job.path
                    self.delivered[str(path["run"]), int(path["round"]), job.message.fence] = str(job.update)
                self._ask(job, lambda answer: self._end_job(ticket, self._reply(job, answer)), ticket)
            case _:
                assert_never(job)

    def _train(self, lease: Lease, ticket: tuple[int, int]) -> None:
        world = self.world
        seconds = world.chance.between("worker-train-s", 0.5, min(2.5 * lease.lease_s, 14.0))
        self._training, self._done_at, self._wrong = lease, world.agenda.now + seconds, False
        self._happens_to_training(ticket)
        world.agenda.after(seconds, self._trained, lease, ticket)

    def _happens_to_training(self, ticket: tuple[int, int]) -> None:
        """At its start and at each heartbeat: it may become slow, impossible, or wrong."""
        world, lease = self.world, self._training
        if lease is None:
            return
        if world.strikes("worker-slow", self.name):
            self._done_at += lease.within_s * world.chance.between("worker-slow-s", 0.5, 1.5)
        self._wrong = world.strikes("worker-wrong", self.name) or self._wrong
        if world.strikes("worker-cannot", self.name):
            self._training = None
            self._end_job(ticket, Failed("The loss is not finite.", self.sender.now()))

    def _trained(self, lease: Lease, ticket: tuple[int, int]) -> None:
        world, at = self.world, self.world.agenda.now
        if ticket != (self.life, self._job) or self._training is not lease:
            return
        if at < self._done_at - 1e-6:
            world.agenda.after(self._done_at - at, self._trained, lease, ticket)
            return
        self._training = None
        body = world.register.result_of(lease.run, lease.round, lease.fence, self._fetched, wrong=self._wrong)
        digest = hashlib.sha256(body).hexdigest()
        self._bodies = {digest: body}
        done = Finished(
            digest=digest,
            parent=hashlib.sha256(self._fetched).hexdigest(),
            bytes=len(body),
            steps=10,
            examples=640,
            at=self.sender.now(),
        )
        self._end_job(ticket, done)

    def _end_job(self, ticket: tuple[int, int], reply: WorkerReply) -> None:
        if ticket != (self.life, self._job) or not self.up:
            return
        self._job_reply = reply
        if self._awaiting is not None:
            self._end_awaiting(self._awaiting)

    def _await_job(self, for_s: float, ticket: tuple[int, int]) -> None:
        world = self.world
        self._awaiting = ticket
        if world.strikes("worker-silent", self.name):
            for_s += world.chance.between("silent-s", 0.3, 3.0) * 4 * for_s
            world.log(f"{self.name} stands still for {for_s:.1f} s")
            self._awaiting = None  # not even the end of its own job reaches it
        elif self._job_reply is not None:
            for_s = 0.0
        world.agenda.after(for_s, self._end_awaiting, ticket)

    def _end_awaiting(self, ticket: tuple[int, int]) -> None:
        if ticket != (self.life, self._waiting_for):
            return
        self._awaiting = None
        if self._job_reply is None:
            self._happens_to_training((self.life, self._job))
        reply, self._job_reply = self._job_reply, None
        self._resume(ticket, reply if reply is not None else JobProgress(1, {"loss": 0.5}, self.sender.now()))


class WorkerLies:
    """What no honest worker sends, with the certificate of one worker, under fences that are old or not granted yet.
    None of it may change a round, or affect other workers.
    """

    def __init__(self, world: World, watch: InvariantWatch, sender: RequestSender) -> None:
        self._world = world
        self._watch = watch
        self._sender = sender

    def tell(self, name: str, leases: list[Lease], model: bytes) -> None:
        """Sends something under a lease of the worker's past, or under one that was never issued. Ignores the
        answer. ``model``: the checkpoint that it fetched last."""
        world = self._world
        if not leases or not world.strikes("worker-lie", name):
            return
        lease = world.chance.pick("lie-lease", leases)
        lie = world.chance.pick("worker-lie", LIES)
        world.log(f"{name} lies: {lie} of round {lease.round}, fence {lease.fence}")
        under = {"attempt": lease.attempt, "fence": lease.fence}
        run = self._watch.run(lease.run)
        current = run.phase == "training" and run.fence == lease.fence
        match lie:
            case "heartbeat":
                self._send(Route.HEARTBEAT, lease, LeaseRenewed, Heartbeat(**under, step=1))
            case "end" if not current:
                self._send(Route.LEASE_END, lease, Noted, LeaseEnd(**under, failed=True, reason="A lie."))
            case "fetch":
                self._sender.send(Fetch(checkpoint=lease.checkpoint), _ignore)
            case "next-fence":
                self._send_result(model, lease, lease.fence + 1000, lease.attempt + 1)
            case "other-bytes" | "result" if not current:
                self._send_result(model, lease, lease.fence, lease.attempt)
            case _:
                pass

    def _send(self, route: Route, lease: Lease, answer: type[Message], message: Message) -> None:
        path: dict[str, str | int] = {"run": lease.run, "round": lease.round}
        self._sender.send(Send(method="POST", route=route, answers=(answer,), path=path, message=message), _ignore)

    def _send_result(self, model: bytes, lease: Lease, fence: int, attempt: int) -> None:
        if not model:
            return
        body = self._world.register.result_of("a lie", lease.round, 60 + fence, model)
        send = Send(
            method="PUT",
            route=Route.RESULT,
            answers=(ResultReceipt,),
            path={"run": lease.run, "round": lease.round, "attempt": attempt},
            message=ResultReport(fence=fence, parent=lease.checkpoint.digest, steps=1, examples=1),
            update=hashlib.sha256(body).hexdigest(),
        )
        self._sender.send(send, _ignore, body=body)


def _ignore(_: Answer) -> None:
    """A liar needs no answer."""
