"""One attempt of a secure round: the device's part is played, its messages are sent, and their answers waited for.

``client_sdk.secagg.device`` decides what is said. The ways in which an attempt ends before the sum are exceptions:
``AttemptLeft`` (the coordinator says so), ``NoAnswerInTime``, and the errors of secure rounds. ``secure_round`` has
what follows from them.
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.revocations import RevocationList
from client_sdk.device.actions import (
    Failed,
    FetchList,
    ListFetched,
    Load,
    Loaded,
    RequestRefused,
    Send,
    Sleep,
)
from client_sdk.device.contribution import ClearContribution, codec_seed
from client_sdk.device.ending import RoundEnds, Steps
from client_sdk.device.policy import secure_policy
from client_sdk.device.record import TrainedWork
from client_sdk.device.requests import NoAnswerInTime
from client_sdk.identity import Entropy, Signer, key_of
from client_sdk.protocol.devices import Assignment, CheckIn, Noted
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError
from client_sdk.protocol.secure import NotReady, Octets, SecureSigned, SecureTask, SecureWait, Stage
from client_sdk.secagg.actions import AttemptReply, DeviceContribution, Keep, Primitives, ServerAnswer, Transmit
from client_sdk.secagg.consent import Expected
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.live import Live, Step
from client_sdk.secagg.quantize import ROUNDING_BYTES
from client_sdk.secagg.roster import Roster
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.terms import terms_of


class AttemptLeft(Exception):
    """The coordinator answers that this device has no place in the attempt, or does not take its message."""

    def __init__(self, problem: Problem, stage: Stage | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.stage = stage
        """The exchange of the message; None: the device asked for a header."""


class SecureAttempts(RoundEnds):
    """A session's part that plays attempts. Of the device's own secrets it draws the rounding secret, once: 32 bytes
    that are saved in the record, and by which the same update is rounded alike under the same header."""

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
                note = _waits_for(action.stage, memory.live.get(tensors))
                content = yield from self._deliver(action, header, note, offer.hold_s)
                reply = ServerAnswer(self.now, content)

    def put_in(self) -> Steps[DeviceContribution]:
        """What this device puts into the round: of the saved update, or nothing, where a list was signed for it."""
        assignment, _, secure = self.secure_work()
        if not self.record.rounding_secret:
            yield from self.save(rounding_secret=self._entropy(ROUNDING_BYTES).hex())
        rounding = bytes.fromhex(self.record.rounding_secret)
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
        case _:
            assert_never(stage)
