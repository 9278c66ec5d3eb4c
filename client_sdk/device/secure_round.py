"""A device's part in a secure round, from the trained update to its end: as actions, after any of which it may crash.

``secure_attempt`` plays the attempts. Here is what stands around them: a header is waited for, and an end of any kind
is told to the coordinator and clears up.

::

    waiting       Send(header) until there is an attempt that this device has not left, or the round is over
    an attempt    Load, FetchList -> Keep, Send(message), Send(answer), for each of the five exchanges -> over
                  once a list of survivors is signed: Save(no update), which erases the clear one
    *stale*, or the attempt has expired      -> leaving -> waiting, with the same update
    *late*, while the round goes on          -> leaving -> waiting, for an attempt with new keys
    shares that do not open                  -> Save(complaint) -> leaving -> Send(it) -> waiting
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

from client_sdk.device.actions import Send, Sleep
from client_sdk.device.ending import Steps
from client_sdk.device.record import StorageError
from client_sdk.device.requests import NoAnswerInTime, short
from client_sdk.device.secure_attempt import AttemptLeft, SecureAttempts
from client_sdk.protocol.devices import Assignment, Noted, Outcome
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.secure import Complaint, SecureRefusal
from client_sdk.secagg.actions import DeviceContribution
from client_sdk.secagg.errors import Expired, Refusal, SecaggError, SpentOnCheckpoint, Superseded, Unopened
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.live import Step

NO_PLACE = frozenset({"late", "stale", "withdrawn", "not-selected", "conflict", "unknown-round", "unknown-run"})
"""Refusals that say nothing against the device's bytes: it has no place in the attempt, or in the round."""
WAITS_FIRST = "Waiting for an exchange of keys to begin."
WAITS_AGAIN = "Is out of this exchange of keys; waiting for a fresh one, or for the end of the round."


class SecureParts(SecureAttempts):
    """A session's part that takes the device through secure rounds."""

    def take_part(self, assignment: Assignment) -> Steps[str | None]:
        """From the saved update to the round's end. Returns why to rest, None to go on at once.

        StorageError where another program plays this device from the same storage."""
        if self.record.farewell is not None:
            rest = yield from self._bid_farewell(assignment)
            if self.record.assignment is None:
                return rest
        put_in = yield from self.put_in()
        try:
            return (yield from self._attempts(put_in))
        except Superseded as error:
            raise StorageError(f"Another program plays this device: {error}") from error
        finally:
            put_in.erase()

    def has_its_part(self) -> Steps[bool]:
        """Whether a restarted device can go on with what it has: the saved update, or what was made of it."""
        _, work, _ = self.secure_work()
        if self.record.update_digest is not None or self.record.farewell is not None:
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
            case Unopened(dealers=dealers):
                yield from self._leave(farewell=Complaint(dealers=dealers))
                return (yield from self._bid_farewell(assignment))
            case Refusal(retry_s=float() | int() as wait_s):
                yield Sleep(min_s=wait_s, max_s=wait_s + 1, reason=str(trouble))
                return None
            case Refusal(final=True):
                said = SecureRefusal(spent=isinstance(trouble, SpentOnCheckpoint), reason=short(str(trouble)))
                yield from self._leave(farewell=said)
                return (yield from self._bid_farewell(assignment))
            case _:
                return (yield from self._withdraw(assignment, str(trouble)))

    def _leave(self, farewell: Complaint | SecureRefusal | None = None) -> Steps[None]:
        """Nothing of the present attempt is sent any more."""
        assignment, work, _ = self.secure_work()
        yield from self.save(work=work.changed(left=assignment.attempt), farewell=farewell)
        yield from self._forget(assignment)

    def _bid_farewell(self, assignment: Assignment) -> Steps[str | None]:
        """Tell the coordinator what the record has to tell. After a refusal the device's part is over."""
        said = self.record.farewell
        if said is None:
            raise RuntimeError("there is nothing to tell")
        path: dict[str, str | int] = {"run": assignment.run, "round": assignment.round, "attempt": assignment.attempt}
        route = Route.SECURE_COMPLAINT if isinstance(said, Complaint) else Route.SECURE_REFUSAL
        yield from self.ask(Send(method="POST", route=route, answers=(Noted,), path=path, message=said))
        if isinstance(said, SecureRefusal):
            return (yield from self._end("withdrawn", said.reason))
        yield from self.save(farewell=None)
        return None

    def _left(self, left: AttemptLeft) -> Steps[str | None]:
        """The coordinator has no place for this device in the attempt, or does not take its message."""
        assignment, _, _ = self.secure_work()
        problem, stage = left.problem, left.stage
        if problem.kind not in NO_PLACE:
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
