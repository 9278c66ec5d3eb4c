"""A device's session with a coordinator, as a generator of actions; the device may crash after any of them.

It decides only: times come with replies, entropy is an argument. A driver (the HTTP client, a simulator, a test)
performs the ``actions`` and sends replies back.

::

    becoming known:  certified by the authority, registered at the coordinator (``enrolling``) -> waiting
    waiting:     Send(check in)   Wait -> Sleep -> waiting
                                  Assignment -> Save(assignment) -> the owner's policy refuses -> withdrawing,
                                  or in a secure round Save(refusal) -> Send(it) -> Save(round's end) -> Sleep
    training:    Fetch -> Send(started) -> Train -> Save(update) -> reporting      cannot -> withdrawing
    reporting:   Spend -> Send(update) again and again until a receipt or a final refusal -> Save(round's end)
                 -> waiting
                 its bytes are refused -> Send(withdrawal) -> Save(round's end) -> Sleep -> waiting
    a secure round:   after Save(update): ``secure_round``. Its update is never sent
    withdrawing: Save(reason) -> Send(withdrawal) -> Save(round's end) -> Sleep -> waiting

A crash loses nothing that was yielded in a Save. A session started from the saved record continues where it was: an
enrolment without an answer is repeated with the same key; a saved assignment is trained again, once the coordinator has
confirmed that the round is under way; a saved update is sent again, the same bytes; a withdrawal is repeated. The
driver signs each request with the key of the record that was saved last; the session signs messages of secure rounds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import (
    Action,
    Failed,
    Fetch,
    Recall,
    Recalled,
    Reply,
    RequestRefused,
    Send,
    Settle,
    Sleep,
    Train,
    Trained,
)
from client_sdk.device.contribution import work_for
from client_sdk.device.enrolling import begun
from client_sdk.device.policy import refusal, refuses_partial, secure_policy, shown
from client_sdk.device.record import Record
from client_sdk.device.requests import NoAnswerInTime, Pacing, short, why_not
from client_sdk.device.secure_round import MOST_RESTS, SecureParts
from client_sdk.device.states import belongs, key_of
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    Noted,
    Outcome,
    Receipt,
    Started,
    Wait,
)
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError
from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.errors import Refusal

OVER = frozenset(
    {"late", "stale", "duplicate", "withdrawn", "not-selected", "conflict", "unknown-round", "unknown-run"}
)
"""Final refusals of an update that say nothing against its bytes: the device has no place in the round. After any other
the device withdraws and rests, since it would train the same again."""

FAILED = "Training failed on this device: its own log says how."
"""What a coordinator is told in a secure round: errors have numbers that follow from the data, as of the step that a
model failed at, on the rest of an epoch."""

Session = Generator[Action, Reply, int]
"""Returns the number of rounds joined."""


def participate(
    record: Record | None,
    *,
    coordinator: str,
    offer: Callable[[], CheckIn],
    enrolment_token: EnrolmentToken | None = None,
    label: str = "",
    rounds: int | None = None,
    signer: Signer | None = None,
    entropy: Entropy = os.urandom,
    primitives: Primitives | None = None,
    pacing: Pacing | None = None,
    at: float = 0.0,
) -> Session:
    """A device's session with one coordinator, from its saved ``record`` (None: a new device).

    ``coordinator``: its URL. A record of another one registers there, with the certificate that it has. ``offer`` is
    asked before each check-in: what this device has, what its owner allows, and for which learners its data may go in
    clear after its first secure round (``Policy.plain``). ``enrolment_token``: needed until there is a
    certificate, and when one has expired. ``signer`` holds the key where the record does not. ``entropy``: where the
    device's keys and its secrets in secure rounds come from; ``primitives``: what a simulation replaces of these.
    ``rounds``: it ends after so many (None: never); a round counts once it has ended for this device, however it ended.
    ``at``: the time at the start, Unix seconds by the driver's clock; 0: the session learns it from the first reply.

    Raises ProblemError where the authority or the coordinator refuses this device for good (enrolment refused, key
    revoked, wrong protocol version), with a text for people. ValueError where the key is missing.
    """
    settings = (begun(record, signer, entropy), offer, enrolment_token, label, pacing or Pacing(), at)
    session = _Session(*settings, signer=signer, entropy=entropy, primitives=primitives)
    return session.life(coordinator, rounds)


class _Session(SecureParts):
    """The steps. Each obeys one rule: all that a Send depends on was yielded in a Save before."""

    _offered: CheckIn
    """What was offered at the last check-in."""

    def life(self, coordinator: str, rounds: int | None) -> Session:
        joined = 0
        yield from self.sweep()
        if self.record.coordinator != coordinator and self.record.assignment is not None:
            yield from self._end("dropped", "This device was started for another coordinator.")
            joined = 1
        yield from self.become_known(coordinator)
        rest = None
        if self.record.assignment is not None:
            rest = yield from self._resume(self.record.assignment)
            joined = 1
        while rounds is None or joined < rounds:
            if rest is not None:
                low, high = self.pacing.withdrawn_s
                yield Sleep(min_s=low, max_s=high, reason=rest, trouble=True)
            assignment = yield from self.wait_for_work(Assignment, self._check_in)
            yield from self.save(assignment=assignment, assigned_at=self.now)
            rest = yield from self._train(assignment, self._offered)
            joined += 1
        return joined

    def _check_in(self) -> Send:
        self._offered = self.offer()
        said = shown(self._offered)
        if declining := self.declining():
            said = said.changed(policy=said.policy.changed(rests=tuple(declining.items())[-MOST_RESTS:]))
        if count := self.record.states_left_out:
            said = said.changed(facts=said.facts.changed(states_left_out=count))
        return Send(method="POST", route=Route.CHECK_IN, answers=(Assignment, Wait), message=said)

    # ------------------------------------------------------------ one round; returns why to rest, None to go on at once

    def _resume(self, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        """A round that a crash interrupted: which of its steps comes next is in the record."""
        if self.record.registered is None or assignment.device != self.record.registered.device:
            return (yield from self._end("dropped", "The coordinator knows this device by another id now."))
        if self.record.withdrawal is not None:
            return (yield from self._withdraw(assignment, self.record.withdrawal))
        if self.record.farewell is not None:
            return (yield from self._bid_farewell(assignment))
        if self.record.work is not None:
            if (yield from self.has_its_part()):
                return (yield from self.take_part(assignment))
        elif self.record.update_digest is not None:
            return (yield from self._report(assignment, self.record.update_digest))
        outcome = yield from self._outcome(assignment)
        if isinstance(outcome, Problem):
            return (yield from self._end("dropped", str(outcome)))
        if outcome.result == "counted":
            return (yield from self._end("receipt", "It was counted; its copy here was lost.", outcome.digest))
        if outcome.result != "pending":
            over = outcome.reason or f"The coordinator says that this device's part is {outcome.result}."
            return (yield from self._end("dropped", over))
        return (yield from self._train(assignment, self.offer()))

    def _train(self, assignment: Assignment, offer: CheckIn) -> Generator[Action, Reply, str | None]:
        reason = refusal(assignment, offer)
        if reason is not None and assignment.secure is not None and not secure_policy(offer.policy).sums_made:
            return (yield from self.decline(assignment, reason))
        if reason is not None:
            return (yield from self._withdraw(assignment, reason, failed=True))
        reason = yield from self.spend(assignment, "", offer.policy, ahead=True)
        if reason is None:
            reason = yield from self._fetch(assignment)
        if reason is None and self.now >= self.due_at:
            reason = "The round's deadline passed before this device could train."
        if reason is not None:
            return (yield from self._withdraw(assignment, reason))
        sketch, near = b"", False
        if assignment.secure is not None:
            try:
                sketch, near = yield from self.sketched(assignment, assignment.secure, offer.policy)
            except NoAnswerInTime:
                late = "The round's deadline passed before the run's first model was here."
                return (yield from self._withdraw(assignment, late))
            except Refusal as refused:
                refuse = self.decline if refused.final else self._withdraw
                return (yield from refuse(assignment, str(refused)))
        over = yield from self._started(assignment)
        if over is not None:
            return (yield from self._end("dropped", over))
        reason = yield from self._settle_state(assignment)
        if reason is not None:
            return (yield from self._withdraw(assignment, reason))
        secret = b"" if assignment.secure is None else (yield from self.secret())
        reply = self.observe((yield Train(assignment=assignment, due_at=self.due_at, secret=secret)))
        if isinstance(reply, Failed):
            told = FAILED if assignment.secure is not None else reply.reason
            return (yield from self._withdraw(assignment, told, failed=True))
        if not isinstance(reply, Trained):
            raise TypeError(f"the driver answered Train with {reply!r}")
        size, most = len(reply.body), assignment.max_update_bytes
        if not reply.complete and refuses_partial(assignment):
            reason = "This device ran out of time, and the plan refuses partial work."
        elif assignment.secure is None and size > most:
            reason = f"The update has {size} bytes; the coordinator takes {most}."
        if reason is not None:
            return (yield from self._withdraw(assignment, reason))
        digest = hashlib.sha256(reply.body).hexdigest()
        if assignment.secure is not None:
            before = self.record.work  # of this round, where what was trained for it was lost
            left = before.left if before is not None else -1
            work = work_for(assignment, reply.body, left, sketch=sketch, near=near)
            yield from self.save(reply.body, reply.state, update_digest=digest, work=work)
            return (yield from self.take_part(assignment))
        yield from self.save(reply.body, reply.state, update_digest=digest)
        return (yield from self._report(assignment, digest))

    def _settle_state(self, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        """What the device keeps for this strategy is settled before it trains again: the coordinator is asked what
        became of the update that the newest state belongs to. Returns why that is not known yet."""
        strategy = assignment.task.strategy
        if strategy is None or strategy.keeps == "nothing":
            return None
        key = key_of(self.record.coordinator, assignment.run)
        reply = self.observe((yield Recall(key=key)))
        if not isinstance(reply, Recalled):
            raise TypeError(f"the driver answered Recall with {reply!r}")
        before = reply.candidate
        if before is None:
            return None
        if before.round >= assignment.round or strategy.keeps == "trained":  # of this round it trains again
            yield Settle(key=key, keep=before.round < assignment.round)
            return None
        path: dict[str, str | int] = {"run": assignment.run, "round": before.round}
        outcome = yield from self.ask(Send(method="GET", route=Route.OUTCOME, answers=(Outcome,), path=path))
        if isinstance(outcome, Outcome) and outcome.result == "pending":
            return f"The outcome of round {before.round}, to which this device's state belongs, is not known yet."
        if not isinstance(outcome, Outcome) or outcome.result == "unknown":
            why = f"It is not known whether the update of round {before.round} counted: its state is left out."
            yield Settle(key=key, keep=False, why=why)
            if assignment.secure is None:
                yield from self.save(states_left_out=self.record.states_left_out + 1)
        else:
            yield Settle(key=key, keep=belongs(outcome, before, masked=assignment.secure is not None))
        return None

    def _fetch(self, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        """Why the checkpoint cannot be fetched; None when it is available."""
        try:
            return why_not((yield from self.fetch_bytes(Fetch(checkpoint=assignment.checkpoint), self.due_at)))
        except NoAnswerInTime:
            return "The round's deadline passed before the checkpoint was here."

    def _started(self, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        """Report once that training begins. Returns why the round is over for this device, where the answer says
        that."""
        send = self.of_round("POST", Route.STARTED, assignment, Noted, Started(attempt=assignment.attempt))
        reply = self.observe((yield send))
        if isinstance(reply, RequestRefused) and reply.problem.advice == "stop":
            raise ProblemError(reply.problem)
        if isinstance(reply, RequestRefused) and reply.problem.advice == "drop" and reply.problem.is_ours:
            return str(reply.problem)
        return None

    def _report(self, assignment: Assignment, digest: str) -> Generator[Action, Reply, str | None]:
        declined = yield from self.spend(assignment, digest, self.offer().policy)
        if declined is not None:  # other answers of the same data have left meanwhile
            return (yield from self._withdraw(assignment, declined))
        path: dict[str, str | int] = {
            "run": assignment.run,
            "round": assignment.round,
            "attempt": assignment.attempt,
        }
        send = Send(method="PUT", route=Route.UPDATE, answers=(Receipt,), path=path, update=digest)
        answer = yield from self.ask(send)
        if isinstance(answer, Receipt):
            if answer.digest == digest:
                return (yield from self._end("receipt", "", digest, answer.weight, answer.logged))
            return (yield from self._end("refused", f"The receipt is for other bytes: {answer.digest[:12]}.", digest))
        if isinstance(answer, Problem) and answer.kind in ("late", "stale", "duplicate"):
            outcome = yield from self._outcome(assignment)
            if isinstance(outcome, Outcome) and outcome.result == "counted" and outcome.digest == digest:
                return (yield from self._end("receipt", "The receipt was lost; the update was counted.", digest))
        if not isinstance(answer, Problem) or not answer.is_ours or answer.kind in OVER:
            return (yield from self._end("refused", str(answer), digest))
        self._has_failed(assignment)
        yield from self._send_withdrawal(assignment, short(f"Its update was refused: {answer}"))
        yield from self._end("refused", str(answer), digest)
        return str(answer)
