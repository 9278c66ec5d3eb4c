"""A device's part in a secure round, from the trained update to its end: as actions, after any of which it may crash.

``SecureAttempts`` plays the attempts: ``client_sdk.secagg.device`` decides what is said, its messages are sent, and
their answers waited for. The ways in which an attempt ends before the sum are exceptions: ``AttemptLeft`` (the
coordinator says so), ``NoAnswerInTime``, and the errors of secure rounds. ``SecureParts`` is what stands around them:
a header is waited for, and an end of any kind is told to the coordinator and clears up.

::

    waiting       Send(header) until there is an attempt that this device has not left, or the round is over
    an attempt    Load, FetchList -> Keep, Send(message), Send(answer), for each of the five exchanges -> over
                  once a list of survivors is signed: Save(no update), which erases the clear one
    *stale*, or the attempt has expired      -> leaving -> waiting, with the same update
    *late*, while the round goes on          -> leaving -> waiting, for an attempt with new keys
    the device refuses for good              -> Save(refusal) -> leaving -> Send(it) -> Save(round's end) -> rests
    another refusal, a message that breaks
    the rules                                -> Save(withdrawal) -> leaving -> Send(it) -> Save(round's end) -> rests
    over, also where the round is late for
    the device or has no place for it        -> leaving -> Send(outcome) -> Save(round's end), which erases the update
    leaving       Keep(no attempt of this round): nothing of it can be sent any more. It comes before each request
                  that a coordinator may never answer

A transport error ends nothing: requests are repeated until they are answered, or the attempt has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeVar, assert_never

import numpy as np

from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.device.actions import (
    Action,
    Failed,
    Fetch,
    FetchList,
    ListFetched,
    Load,
    Loaded,
    MemoryKept,
    MemoryNotKept,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sketch,
    Sketched,
    Sleep,
    Spend,
    Spent,
)
from client_sdk.device.contribution import ClearContribution, codec_seed, run_key
from client_sdk.device.data_ledger import debit_for
from client_sdk.device.enrolling import Enrolling
from client_sdk.device.policy import secure_policy
from client_sdk.device.record import Joined, StorageError, TrainedWork
from client_sdk.device.requests import NoAnswerInTime, short, why_not
from client_sdk.identity import Entropy, Signer, key_of
from client_sdk.protocol.devices import (
    NO_BOUNDS,
    Assignment,
    CheckIn,
    CheckpointRef,
    LoggedEvent,
    Noted,
    Outcome,
    Policy,
    Withdrawal,
)
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError
from client_sdk.protocol.secure import (
    NotReady,
    Octets,
    SecureRefusal,
    SecureSigned,
    SecureTask,
    SecureWait,
    Stage,
)
from client_sdk.secagg.actions import AttemptReply, DeviceContribution, Keep, Primitives, ServerAnswer, Transmit
from client_sdk.secagg.consent import Expected, SecurePolicy, require_another_model
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.errors import Expired, Refusal, SecaggError, SpentOnCheckpoint, Superseded
from client_sdk.secagg.header import AttemptHeader, terms_of
from client_sdk.secagg.memory import Known, Live, Memory, Step
from client_sdk.secagg.origin import First, require_origin, require_reachable
from client_sdk.secagg.quantize import ROUNDING_BYTES
from client_sdk.secagg.roster import Roster
from client_sdk.secagg.survivors import Survivors

# ------------------------------------------------------------ ending
# How a device's part in a round ends: it withdraws, asks for its outcome, and moves the round to the history.


MOST_RESTS = 256

T = TypeVar("T")
Steps = Generator[Action, Reply, T]


class Failures(NamedTuple):
    """Training that failed on one model of a run."""

    version: int
    times: int
    until: float
    """Until then the device takes no part with this model."""


class RoundEnds(Enrolling):
    """A session's part that ends rounds. A secure round has none of its secrets left then, however it ends."""

    rests: Mapping[str, int] = {}
    """Of ``Policy.rests``: what its ledger declines. A session that begins anew asks the ledger again: its owner may
    have other bounds."""
    failures: Mapping[str, Failures] = {}
    """Run -> failures on its newest model. A session that begins anew has none: its owner may have mended the cause."""

    def keep(self, change: Callable[[Memory], Memory]) -> Steps[Memory]:
        """The memory of secure rounds after ``change``, which is stored. Raises what ``change`` raises."""
        reply = self.observe((yield Keep(change)))
        if isinstance(reply, MemoryNotKept):
            raise reply.error
        if not isinstance(reply, MemoryKept):
            raise TypeError(f"the driver answered Keep with {reply!r}")
        return reply.memory

    def remembered(self) -> Steps[Memory]:
        """The memory of secure rounds as it is stored."""
        return (yield from self.keep(lambda newest: newest))

    def spend(self, assignment: Assignment, answer: str, policy: Policy, *, ahead: bool = False) -> Steps[str | None]:
        """Debit what this answer costs in the ledger of the data; ``ahead``: only ask whether it may be. Returns why
        not, which the device tells with its check-ins from now on."""
        debit = debit_for(self.record.coordinator, assignment, answer)
        reply = self.observe((yield Spend(debit=debit, bounds=policy.privacy or NO_BOUNDS, ahead=ahead)))
        if not isinstance(reply, Spent):
            raise TypeError(f"the driver answered Spend with {reply!r}")
        if reply.declined is None:
            return None
        self.rests = dict([*self.rests.items(), (assignment.run, reply.declined.until)][-MOST_RESTS:])
        return reply.declined.reason

    def sweep(self) -> Steps[None]:
        """Delete the secrets of an attempt that has expired, also where no coordinator is there to go on with. There
        are none while no secure round is under way: its end deletes them."""
        assignment = self.record.assignment
        if assignment is None or assignment.secure is None:
            return
        if not self.now:
            yield from self.remembered()  # the reply tells the time
        yield from self.keep(lambda newest: newest.swept(self.now))

    def declining(self) -> dict[str, int]:
        """``Policy.rests``."""
        waits = {run: had.version + 1 for run, had in self.failures.items() if self.now < had.until}
        return {**waits, **self.rests}

    def _has_failed(self, assignment: Assignment) -> None:
        """The device would fail again: it takes part with another model, or when a time has passed that grows."""
        version, had = assignment.checkpoint.version, self.failures.get(assignment.run)
        times = had.times + 1 if had is not None and had.version == version else 1
        wait_s = min(self.pacing.failed_s * (2.0 ** min(times - 1, 30) - 1), self.pacing.failed_most_s)
        others = [(run, one) for run, one in self.failures.items() if run != assignment.run]
        self.failures = dict([*others, (assignment.run, Failures(version, times, self.now + wait_s))][-MOST_RESTS:])

    def _withdraw(self, assignment: Assignment, reason: str, *, failed: bool = False) -> Steps[str | None]:
        """``failed``: what is the matter with the device's training, not with the moment. A private run is not told
        which, so there each reason is one."""
        if failed or assignment.privacy is not None:
            self._has_failed(assignment)
        reason = short(reason)
        yield from self.save(withdrawal=reason)
        yield from self._send_withdrawal(assignment, reason)
        return (yield from self._end("withdrawn", reason))

    def _send_withdrawal(self, assignment: Assignment, reason: str) -> Steps[None]:
        """The coordinator assigns this round no more: neither does the device train the same again. Its secrets of the
        round go first, since the coordinator may never answer."""
        yield from self._forget(assignment)
        message = Withdrawal(attempt=assignment.attempt, reason=_told(assignment, reason))
        yield from self.ask(self.of_round("POST", Route.WITHDRAWN, assignment, Noted, message))

    def _outcome(self, assignment: Assignment) -> Steps[Outcome | Problem]:
        answer = yield from self.ask(self.of_round("GET", Route.OUTCOME, assignment, Outcome))
        if not isinstance(answer, Outcome | Problem):
            raise TypeError(f"the driver answered outcome with {answer!r}")
        return answer

    def _end(
        self,
        result: Literal["receipt", "refused", "withdrawn", "dropped"],
        reason: str,
        digest: str | None = None,
        weight: int | None = None,
        logged: LoggedEvent | None = None,
    ) -> Steps[str | None]:
        """Move the round to the history, in one save. Returns the reason to rest, after a withdrawal."""
        record = self.record
        assignment = record.assignment
        if assignment is None:
            raise RuntimeError("there is no round to end")
        yield from self._forget(assignment)
        joined = Joined(
            run=assignment.run,
            round=assignment.round,
            attempt=assignment.attempt,
            device=assignment.device,
            coordinator=record.coordinator,
            plan_digest=assignment.plan_digest,
            learner=assignment.task.learner,
            checkpoint=assignment.checkpoint.digest,
            result=result,
            reason=reason,
            update_digest=digest,
            weight=weight,
            logged=logged,
            authority_inside=record.registered is not None and record.registered.authority_inside,
            joined_at=record.assigned_at,
            ended_at=max(self.now, record.assigned_at),
        )
        self.record = record.changed(
            assignment=None, assigned_at=0.0, withdrawal=None, farewell=None, update_digest=None, work=None
        )
        yield Save(record=self.record, joined=joined)
        return reason if result == "withdrawn" else None

    def _forget(self, assignment: Assignment) -> Steps[None]:
        """Delete the secrets of this round's attempt. What was signed and tried stays in the memory."""
        if assignment.secure is not None:
            yield from self.keep(lambda newest: without_round(newest, assignment))


def _told(assignment: Assignment, reason: str) -> str:
    """What the coordinator is told of the reason: nothing in a private run."""
    return reason if assignment.privacy is None else "This device does not take part in this round."


def without_round(memory: Memory, assignment: Assignment) -> Memory:
    """``memory`` without any attempt of this round, of whichever header; the same object where there is none."""
    for live in list(memory.live.values()):
        header = AttemptHeader.parse(live.header)
        if (header.run, header.round) == (assignment.run, assignment.round):
            memory = memory.ended(live.header)
    return memory


# ------------------------------------------------------------ secure round


class AttemptLeft(Exception):
    """The coordinator answers that this device has no place in the attempt, or does not take its message."""

    def __init__(self, problem: Problem, stage: Stage | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.stage = stage
        """The exchange of the message; None: the device asked for a header."""


class SecureAttempts(RoundEnds):
    """A session's part that plays attempts. Of the device's own secrets it draws one, once: 32 bytes that are saved in
    the record. By them the same update is rounded alike under the same header, and trained alike from the same
    checkpoint."""

    def __init__(
        self, *settings: Any, signer: Signer | None, entropy: Entropy, primitives: Primitives | None = None
    ) -> None:
        """``settings``: of ``Enrolling``. ``signer`` holds the key where the record does not; ``entropy``: where the
        keys of attempts come from."""
        super().__init__(*settings)
        self._signer = signer
        self._entropy = entropy
        self._primitives = primitives or Primitives()

    # ------------------------------------------------------------ one attempt

    def attempt(self, header: AttemptHeader, put_in: DeviceContribution, offer: CheckIn) -> Steps[None]:
        """Play the attempt of ``header`` until its sum is there. AttemptLeft, NoAnswerInTime, SecaggError."""
        assignment, work, _ = self.secure_work()
        tensors = bytes.fromhex(work.tensors)
        memory = yield from self.remembered()
        live = memory.live.get(tensors)
        goes_on = live is not None and live.header == header.encoded
        answer = sha256(header.encoded).hexdigest()
        if (declined := (yield from self.spend(assignment, answer, offer.policy, ahead=True))) is not None:
            raise Refusal(declined, final=True)
        listed = None if goes_on else (yield from self._listed(header))
        expected = self._expected(listed)
        part = self._device(assignment, offer).attempt(header.encoded, expected, put_in, self.now)
        reply: AttemptReply = None
        while True:
            try:
                action = part.send(reply)
            except StopIteration:
                return
            if isinstance(action, Keep):
                memory = yield from self.keep(action.change)
                yield from self._erase_once_signed(memory.live.get(tensors), put_in)
                reply = memory
            else:
                if action.stage == "mask":
                    declined = yield from self.spend(assignment, answer, offer.policy)
                    if declined is not None:  # other answers of the same data have left meanwhile
                        raise Refusal(declined, final=True)
                note = _waits_for(action.stage, memory.live.get(tensors))
                content = yield from self._deliver(action, header, note, offer.hold_s)
                reply = ServerAnswer(self.now, content)

    def secret(self) -> Steps[bytes]:
        """The device's secret for rounding and order in secure rounds, which is saved before it is used."""
        if not self.record.secret:
            yield from self.save(secret=self._entropy(ROUNDING_BYTES).hex())
        return bytes.fromhex(self.record.secret)

    def sketched(self, assignment: Assignment, secure: SecureTask, policy: Policy) -> Steps[tuple[bytes, bool]]:
        """The sketch of this round's model, and whether it is near to one before and the owner allows that. Refusal:
        this device puts no update into its sum."""
        run, terms, bounds = run_key(self.record.coordinator, assignment), terms_of(secure), secure_policy(policy)
        memory = yield from self.remembered()
        known = memory.known.get(run)
        later = 0 if secure.signed is None or bounds.largest_move is None else secure.signed.version
        reply = yield from self._looked_at(assignment, first=known is None or known.version < later)
        if reply.sketch:
            now = Known(version=assignment.checkpoint.version, at=self.now, sketch=reply.sketch)
            if reply.first.version:
                self._require_origin(assignment, bounds, reply.first)
            try:
                require_reachable(terms, bounds, known, reply.first, now, reply.values)
            except Refusal:
                if known is None or now.version > known.version:
                    raise
                known = None  # a run of this name that has begun anew
                reply = yield from self._looked_at(assignment, first=True)
                require_reachable(terms, bounds, None, reply.first, now, reply.values)
            if known is None:
                self._require_origin(assignment, bounds, reply.first)
        near = require_another_model(terms, bounds, memory, reply.tensors, reply.sketch, self.now)
        if reply.sketch:
            yield from self.keep(lambda newest: newest.knowing(run, now, bounds.shortest_round_s))
        return reply.sketch, near

    def _looked_at(self, assignment: Assignment, *, first: bool) -> Steps[Sketched]:
        """The model of this round, and with ``first`` what is known of the run's first or signed one. Refusal."""
        signed = None if assignment.secure is None else assignment.secure.signed
        if first and signed is not None:
            ref = CheckpointRef(version=signed.version, digest=signed.digest, bytes=signed.bytes)
            if reason := why_not((yield from self.fetch_bytes(Fetch(checkpoint=ref), self.due_at))):
                raise Refusal(f"The run's signed model cannot be had: {reason}")
        reply = self.observe((yield Sketch(assignment=assignment, first=first)))
        if isinstance(reply, Failed):
            raise Refusal(reply.reason)
        if not isinstance(reply, Sketched):
            raise TypeError(f"the driver answered Sketch with {reply!r}")
        return reply

    def _require_origin(self, assignment: Assignment, bounds: SecurePolicy, first: First) -> None:
        signed = None if assignment.secure is None else assignment.secure.signed
        signature = b"" if signed is None else bytes.fromhex(signed.signature)
        authority = "" if self.record.authority is None else self.record.authority.public_key
        require_origin(first, signature, bounds, bytes.fromhex(authority), assignment.run)

    def put_in(self) -> Steps[DeviceContribution]:
        """What this device puts into the round: of the saved update, or nothing, where a list was signed for it."""
        assignment, _, secure = self.secure_work()
        rounding = yield from self.secret()
        if self.record.update_digest is None:
            return DeviceContribution(values=np.zeros(0, np.float32), weight=0, rounding_secret=rounding)
        reply = self.observe((yield Load(digest=self.record.update_digest)))
        if not isinstance(reply, Loaded):
            raise TypeError(f"the driver answered Load with {reply!r}")
        return ClearContribution.parse(reply.body).put_in(assignment, secure, rounding)

    def held(
        self, route: Route, path: dict[str, str | int], note: str, hold_s: float, expires_at: float = float("inf")
    ) -> Steps[Octets | Problem]:
        """The answer that the coordinator holds back until it has one, or the problem that is final. ``note``: what is
        waited for. NoAnswerInTime where it has not come by ``expires_at``."""
        message = SecureWait(hold_s=hold_s)
        send = Send(method="POST", route=route, answers=(Octets, NotReady), path=path, message=message, note=note)
        while True:
            asked_at = self.now
            answer = yield from self.ask(send, expires_at=expires_at)
            if isinstance(answer, Octets | Problem):
                return answer
            if not isinstance(answer, NotReady):
                raise TypeError(f"the driver answered {send.method} {send.url} with {answer!r}")
            if self.now > expires_at:
                raise NoAnswerInTime
            if self.now - asked_at < 1.0:
                low, high = self.pacing.soon_s
                yield Sleep(min_s=low, max_s=high, reason=note)

    def secure_work(self) -> tuple[Assignment, TrainedWork, SecureTask]:
        """The secure round under way, what was trained for it, and its terms."""
        assignment, work = self.record.assignment, self.record.work
        if assignment is None or work is None or assignment.secure is None:
            raise RuntimeError("there is no secure round under way")
        return assignment, work, assignment.secure

    # ------------------------------------------------------------ inside

    def _device(self, assignment: Assignment, offer: CheckIn) -> SecureDevice:
        record, signer = self.record, self._signer or key_of(self.record.key_seed)
        if record.authority is None or not record.authority.public_key or not record.certificate or signer is None:
            raise Refusal("This device has no certificate of an authority, so it can join no secure round.")
        return SecureDevice(
            device=assignment.device,
            certificate=bytes.fromhex(record.certificate),
            signer=signer,
            entropy=self._entropy,
            authority=TrustedAuthority.pinned(
                bytes.fromhex(record.authority.public_key), bytes.fromhex(record.authority.digest)
            ),
            policy=secure_policy(offer.policy),
            primitives=self._primitives,
        )

    def _expected(self, listed: RevocationList | None) -> Expected:
        assignment, work, secure = self.secure_work()
        codec, version = assignment.task.codec.rsplit("@", 1)
        return Expected(
            run=assignment.run,
            round=assignment.round,
            model=bytes.fromhex(assignment.checkpoint.digest),
            tensors=bytes.fromhex(work.tensors),
            plan=bytes.fromhex(work.agreed),
            terms=terms_of(secure),
            learner=assignment.task.learner,
            dimension=work.dimension,
            codec=codec,
            codec_version=int(version),
            codec_seed=codec_seed(assignment),
            sketch=bytes.fromhex(work.sketch),
            near=work.near,
            roles=bytes.fromhex(assignment.roles_digest),
            revocations=listed,
        )

    def _listed(self, header: AttemptHeader) -> Steps[RevocationList]:
        """The revocation list that the header names, also where the authority has issued a newer one meanwhile."""
        failures = 0
        while True:
            reply = self.observe((yield FetchList(digest=header.revocations_digest)))
            if isinstance(reply, ListFetched):
                return reply.revocations
            if isinstance(reply, Failed):
                raise Refusal(reply.reason)
            if isinstance(reply, RequestRefused) and reply.problem.is_ours and reply.problem.advice != "retry":
                if reply.problem.advice == "stop":
                    raise ProblemError(reply.problem)
                raise Refusal(str(reply.problem))
            if self.now > header.expires_at:
                raise NoAnswerInTime
            failures += 1
            yield self.wait_after(reply, failures)

    def _deliver(self, message: Transmit, header: AttemptHeader, note: str, hold_s: float) -> Steps[bytes]:
        """Send the message until it is accepted, then ask for the answer until it is there."""
        path: dict[str, str | int] = {
            "run": header.run,
            "round": header.round,
            "attempt": header.attempt,
            "stage": message.stage,
        }
        signed, octets = SecureSigned(signature=message.signature.hex()), message.body
        if message.stage == "advertise":
            signed = signed.changed(certificate=message.blob.hex())
        elif message.stage == "mask":
            signed, octets = signed.changed(body=message.body.hex()), message.blob
        send = Send(
            method="PUT", route=Route.SECURE_MESSAGE, answers=(Noted,), path=path, message=signed, octets=octets
        )
        answer = yield from self.ask(send, expires_at=header.expires_at)
        if isinstance(answer, Problem):
            raise AttemptLeft(answer, message.stage)
        found = yield from self.held(Route.SECURE_ANSWER, path, note, hold_s, header.expires_at)
        if isinstance(found, Problem):
            raise AttemptLeft(found, message.stage)
        return found.content

    def _erase_once_signed(self, live: Live | None, put_in: DeviceContribution) -> Steps[None]:
        """Once the device has signed a list, it contributes on this checkpoint no more: its clear update goes."""
        if live is not None and live.step is Step.SIGNED:
            put_in.erase()
            if self.record.update_digest is not None:
                yield from self.save(update_digest=None)


def _waits_for(stage: Stage, live: Live | None) -> str:
    """What the answer to a message of this stage depends on, in a sentence for people."""
    n = Roster.size_of(live.roster) if live is not None and live.roster else 0
    match stage:
        case "advertise":
            return "Has shown its keys; waiting for the other devices of the secure round."
        case "share":
            return f"Is one of {n} devices of the secure round; waiting until all have dealt their shares."
        case "mask":
            return f"Has sent its update under masks; waiting for those of the other {n - 1} devices."
        case "survivors":
            there = len(Survivors.parse(live.survivors, n).places) if live is not None else 0
            return f"Has signed that {there} devices are in the sum; waiting for the signatures of the others."
        case "unmask":
            return "Has sent what removes the masks from the sum; waiting for the sum."
        case "complain":
            return "Could not open the shares of a peer and has said so; waiting until that is settled."
        case "open":
            return "Has opened shares that a peer says it could not open; waiting for the others."
        case _:
            assert_never(stage)


NO_PLACE = frozenset({"late", "stale", "withdrawn", "not-selected", "conflict", "unknown-round", "unknown-run"})
"""Refusals that say nothing against the device's bytes: it has no place in the attempt, or in the round."""
WAITS_FIRST = "Waiting for an exchange of keys to begin."
WAITS_AGAIN = "Is out of this exchange of keys; waiting for a fresh one, or for the end of the round."


class SecureParts(SecureAttempts):
    """A session's part that takes the device through secure rounds."""

    def take_part(self, assignment: Assignment) -> Steps[str | None]:
        """From the saved update to the round's end. Returns why to rest, None to go on at once.

        StorageError where another program plays this device from the same storage."""
        put_in = yield from self.put_in()
        try:
            return (yield from self._attempts(put_in))
        except Superseded as error:
            raise StorageError(f"Another program plays this device: {error}") from error
        finally:
            put_in.erase()

    def decline(self, assignment: Assignment, reason: str) -> Steps[str | None]:
        """This device takes part in no secure round on this checkpoint: the coordinator is told, and asks no more."""
        yield from self.save(farewell=SecureRefusal(reason=short(reason)))
        yield from self._forget(assignment)
        return (yield from self._bid_farewell(assignment))

    def has_its_part(self) -> Steps[bool]:
        """Whether a restarted device can go on with what it has: the saved update, or what was made of it."""
        _, work, _ = self.secure_work()
        if self.record.update_digest is not None:
            return True
        memory, tensors = (yield from self.remembered()), bytes.fromhex(work.tensors)
        live = memory.live.get(tensors)
        masked = live is not None and live.step >= Step.MASKED
        return masked or memory.is_spent(tensors)

    # ------------------------------------------------------------ attempts, one after the other

    def _attempts(self, put_in: DeviceContribution) -> Steps[str | None]:
        offer = self.offer()
        while True:
            try:
                header = yield from self._header(offer.hold_s)
                yield from self.attempt(header, put_in, offer)
                return (yield from self._ended())
            except Superseded:
                raise  # another program goes on with it
            except (AttemptLeft, NoAnswerInTime, SecaggError) as error:
                trouble = error
            rest = yield from self._after(trouble)
            if self.record.assignment is None:
                return rest

    def _header(self, hold_s: float) -> Steps[AttemptHeader]:
        """The header of an attempt that this device has not left. From here on the record names this attempt."""
        assignment, work, _ = self.secure_work()
        path: dict[str, str | int] = {"run": assignment.run, "round": assignment.round}
        while True:
            note = WAITS_FIRST if work.left < 0 else WAITS_AGAIN
            answer = yield from self.held(Route.SECURE, path, note, hold_s)
            if isinstance(answer, Problem):
                raise AttemptLeft(answer)
            header = AttemptHeader.parse(answer.content)
            if header.attempt > work.left:
                break
            low, high = self.pacing.again_s
            yield Sleep(min_s=low, max_s=high, reason=WAITS_AGAIN)
        if header.attempt != assignment.attempt:
            yield from self.save(assignment=assignment.changed(attempt=header.attempt))
        return header

    # ------------------------------------------------------------ what follows: the round's end, or another attempt

    def _after(self, trouble: AttemptLeft | NoAnswerInTime | SecaggError) -> Steps[str | None]:
        assignment, _, _ = self.secure_work()
        match trouble:
            case AttemptLeft():
                return (yield from self._left(trouble))
            case NoAnswerInTime() | Expired():
                yield from self._leave()
                return None
            case Refusal(retry_s=float() | int() as wait_s):
                yield Sleep(min_s=wait_s, max_s=wait_s + 1, reason=str(trouble))
                return None
            case Refusal(final=True):
                said = SecureRefusal(spent=isinstance(trouble, SpentOnCheckpoint), reason=short(str(trouble)))
                yield from self._leave(farewell=said)
                return (yield from self._bid_farewell(assignment))
            case _:
                return (yield from self._withdraw(assignment, str(trouble)))

    def _leave(self, farewell: SecureRefusal | None = None) -> Steps[None]:
        """Nothing of the present attempt is sent any more."""
        assignment, work, _ = self.secure_work()
        yield from self.save(work=work.changed(left=assignment.attempt), farewell=farewell)
        yield from self._forget(assignment)

    def _bid_farewell(self, assignment: Assignment) -> Steps[str | None]:
        """Tell the coordinator what the record has to tell. The device's part is then over."""
        said = self.record.farewell
        if said is None:
            raise RuntimeError("there is nothing to tell")
        path: dict[str, str | int] = {"run": assignment.run, "round": assignment.round, "attempt": assignment.attempt}
        told = said.changed(reason=_told(assignment, said.reason))
        send = Send(method="POST", route=Route.SECURE_REFUSAL, answers=(Noted,), path=path, message=told)
        yield from self.ask(send)
        return (yield from self._end("withdrawn", said.reason))

    def _left(self, left: AttemptLeft) -> Steps[str | None]:
        """The coordinator has no place for this device in the attempt, or does not take its message."""
        assignment, _, _ = self.secure_work()
        problem, stage = left.problem, left.stage
        if problem.kind not in NO_PLACE:
            self._has_failed(assignment)
            yield from self._send_withdrawal(assignment, short(f"Its message was refused: {problem}"))
            yield from self._end("refused", str(problem))
            return str(problem)
        yield from self._leave()
        if problem.kind == "stale" and stage is not None:
            return None
        outcome = yield from self._outcome(assignment)
        goes_on = isinstance(outcome, Outcome) and outcome.result == "pending"
        if problem.kind == "late" and goes_on and stage is not None:
            if stage != "advertise":
                return None
            yield from self._send_withdrawal(assignment, short(str(problem)))
        return (yield from self._ended(outcome, str(problem)))

    def _ended(self, outcome: Outcome | Problem | None = None, reason: str = "") -> Steps[str | None]:
        """The round is over for this device. ``outcome``: what the coordinator says of its part; None: it is asked."""
        if outcome is None:
            assignment, _, _ = self.secure_work()
            outcome = yield from self._outcome(assignment)
        if isinstance(outcome, Outcome) and outcome.result == "counted":
            return (yield from self._end("receipt", "It was added to the others' under masks."))
        said = outcome.reason if isinstance(outcome, Outcome) else str(outcome)
        return (yield from self._end("dropped", said or reason or "The round ended without a sum."))
