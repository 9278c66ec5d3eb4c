"""How a device becomes known: certified by its authority, then registered at the coordinator with the certificate.

::

    no certificate       -> Save(key, authority) -> Certify(enrol) -> Save(certificate) -> registering
    registering          -> Send(registration) -> Save(registered)
    before a check-in, in the second half of the certificate's time, once in RENEWAL_S
                         -> Certify(renew) -> a newer one: Save(certificate) -> registering; else it goes on as it was
    next key saved       -> Certify(rotate) -> Save(next key is the key, certificate) -> registering
    advice *register*    -> registering
    advice *renew*       -> Certify(renew); refused, and there is a token: Certify(enrol) -> Save -> registering

A crash after any of them loses nothing: each is asked again with the same keys, and gets the same answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import (
    Action,
    Certified,
    Certify,
    Failed,
    Reply,
    RequestRefused,
    Save,
    Send,
    SharedAction,
    Sleep,
    Unreachable,
)
from client_sdk.device.policy import shown
from client_sdk.device.record import AuthorityRef, Record
from client_sdk.device.requests import Asking, Pacing
from client_sdk.identity import DeviceKey, Entropy, Signer
from client_sdk.protocol.devices import CheckIn, Registered, Registration, Wait
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, ProblemError, problem

RENEWAL_S = 3600.0
"""A renewal before its time is pressing is asked for once in this time, in seconds, however it is answered."""


def ask_authority(question: Certify, pacing: Pacing) -> Generator[Certify | Sleep, object, Certified]:
    """The authority's certificate. While the authority does not answer, or is busy, it is asked again.

    The driver performs ``Certify``. It has checked that the pinned authority signed the certificate, for the key that
    was asked for. Who answers with another key than the pinned one is never asked again: the session ends.

    ProblemError: what the authority refuses for good; *not-certified* where another authority answers."""
    failures = 0
    while True:
        reply = yield question
        match reply:
            case Certified():
                return reply
            case RequestRefused(problem=refused):
                if refused.is_ours and refused.advice != "retry":
                    raise ProblemError(refused)
                window, reason = pacing.backoff(failures + 1, refused.retry_after_s), str(refused)
            case Unreachable(reason=reason):
                window = pacing.backoff(failures + 1)
            case Failed(reason=reason):
                raise problem("not-certified", reason)
            case _:
                raise TypeError(f"the driver answered {question.what} with {reply!r}")
        failures += 1
        yield Sleep(min_s=window[0], max_s=window[1], reason=reason, trouble=True)


def is_half_over(certificate: Certificate, at: float) -> bool:
    """Whether more than half of its time is over: the authority then issues a longer one."""
    return at >= certificate.not_before + (certificate.not_after - certificate.not_before) / 2


def authority_for(known: AuthorityRef | None, token: EnrolmentToken, whose: str) -> AuthorityRef:
    """The authority of ``token``, which must be the one that the device or worker (``whose``) has. ProblemError
    *enrolment-refused* where it is another one. Its URL may be another than before."""
    named = AuthorityRef(url=token.url, digest=token.authority.hex())
    if known is not None and known.digest != named.digest:
        raise problem(
            "enrolment-refused",
            f"This enrolment token is of another authority, at {token.url}, than this {whose}'s, at {known.url}. Start "
            f"it without a token or with one of its own authority; for the other one give it a folder of its own.",
        )
    return known.changed(url=named.url) if known is not None else named


REGISTRATIONS = 6
"""How often a device registers again for one request before it gives up."""
NEW = "This device has no certificate; start it with --token-file FILE ('quorate authority token' makes one)."


M = TypeVar("M", bound=Message)


def begun(record: Record | None, signer: Signer | None, entropy: Entropy) -> Record:
    """The saved record, or one with a new key where there is none. ValueError where the key is in neither the record
    nor ``signer``."""
    if record is None or record == Record():
        return Record(key_seed="" if signer is not None else DeviceKey.create(entropy).seed.hex())
    if signer is None and not record.key_seed:
        raise ValueError("The key is stored outside the record: give the signer that holds it.")
    return record


def lacking(record: Record | None) -> str:
    """What a device with this record needs before it can start without a token, in a sentence; empty: nothing."""
    if record is not None and (record.certificate or record.registered is not None):
        return ""
    return NEW


class Enrolling(Asking):
    """A session's part that makes the device known, keeps it known, and waits for work. A datacenter's worker overrides
    its hooks."""

    holder: HolderClass = "device"
    new = NEW
    """What is missing where there is neither a certificate nor a token."""

    def __init__(
        self,
        record: Record,
        offer: Callable[[], CheckIn],
        token: EnrolmentToken | None,
        label: str,
        pacing: Pacing,
        at: float = 0.0,
    ) -> None:
        super().__init__(record, pacing, at)
        self.offer = offer
        self.token = token
        self.label = label
        self._renewal_at = float("-inf")

    def become_known(self, coordinator: str) -> Generator[SharedAction, Reply, None]:
        """Whatever is missing to work for the coordinator of this URL: the answer to a rotation, a certificate, the
        registration. A record of another coordinator registers there, with the certificate that it has."""
        if self.record.coordinator != coordinator:
            self.record = self.record.changed(coordinator=coordinator, registered=None)
        if self.token is not None:
            authority = authority_for(self.record.authority, self.token, self.holder)
            if authority != self.record.authority:
                yield from self.save(authority=authority)
        if self.record.next_key_seed:
            yield from self._finish_rotation()
        if self.record.registered is None:
            if not self.record.certificate:
                yield from self._enrol()
            yield from self._register()

    def regain(self, reply: RequestRefused, times: int) -> Generator[SharedAction, Reply, None]:
        if times >= REGISTRATIONS or not self.record.certificate:
            raise ProblemError(reply.problem)
        if times > 0:
            yield self.wait_after(reply, times)
        if reply.problem.advice == "renew":
            yield from self._replace()
        yield from self._register()

    def renew_in_time(self) -> Generator[SharedAction, Reply, None]:
        """Before a check-in: ask for a longer certificate, once, where it is time. Without one the work goes on."""
        record = self.record
        if not record.certificate or record.authority is None or self.now < self._renewal_at:
            return
        present = Certificate.parse(bytes.fromhex(record.certificate))
        if not is_half_over(present, self.now):
            return
        self._renewal_at = self.now + RENEWAL_S
        reply = yield Certify(what="renew", authority=record.authority)
        if reply is not None:
            self.now = reply.at
        if isinstance(reply, Certified) and reply.certificate.not_after > present.not_after:
            yield from self._take(reply)
            yield from self._register()

    def wait_for_work(self, work: type[M], check_in: Callable[[], Send]) -> Generator[SharedAction, Reply, M]:
        """Send what ``check_in`` returns, again and again, until there is work of this type."""
        while True:
            yield from self.renew_in_time()
            send = check_in()
            asked_at = self.now
            answer = yield from self.ask(send, checking_in=True)
            if isinstance(answer, work):
                return answer
            if isinstance(answer, Problem):
                raise ProblemError(answer)
            if not isinstance(answer, Wait):
                raise TypeError(f"the driver answered {send.method} {send.url} with {answer!r}")
            low, high = answer.min_s, max(answer.min_s, answer.max_s)
            if self.now - asked_at < 1.0:
                low, high = max(low, self.pacing.soon_s[0]), max(high, self.pacing.soon_s[1])
            if high > 0:
                yield Sleep(min_s=low, max_s=high, reason=answer.reason)

    def rotate(self) -> Generator[SharedAction, Reply, None]:
        """The certificate of the next key, which the record has: from then on it is the key. ProblemError; the record
        has no next key any more where the authority has decided that the old one stays."""
        try:
            certified = yield from self._certified("rotate")
        except ProblemError as refused:
            if refused.kind in ("conflict", "enrolment-refused"):  # it did not replace the old key
                yield from self.save(next_key_seed="")
            raise
        yield from self._take(certified, key_seed=self.record.next_key_seed, next_key_seed="")

    # ------------------------------------------------------------ hooks

    def registration(self) -> Send:
        """The request that presents the certificate to the coordinator."""
        examples = shown(self.offer()).examples
        message = Registration(certificate=self.record.certificate, examples=examples, label=self.label)
        return Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=message)

    def registered(self, answer: Message | Problem) -> Registered | None:
        """What is saved of the answer to it; None where it is no such answer."""
        return answer if isinstance(answer, Registered) else None

    # ------------------------------------------------------------ steps

    def _finish_rotation(self) -> Generator[SharedAction, Reply, None]:
        try:
            yield from self.rotate()
        except ProblemError:
            if self.record.next_key_seed:
                raise

    def _enrol(self) -> Generator[SharedAction, Reply, None]:
        if self.token is None:
            raise problem("enrolment-refused", self.new)
        certified = yield from self._certified("enrol")
        found = certified.certificate.holder
        if found != self.holder:
            yield Save(record=Record())  # the key is certified for the other class now: the next try draws another one
            text = f"This enrolment token is for a {found}; a {self.holder} needs one of its own class."
            raise problem("not-certified", text)
        yield from self._take(certified)

    def _replace(self) -> Generator[SharedAction, Reply, None]:
        """A certificate in place of one that the coordinator takes no more. ProblemError where there is none."""
        try:
            certified = yield from self._certified("renew")
        except ProblemError:
            if self.token is None:
                raise
            certified = yield from self._certified("enrol")
        yield from self._take(certified)

    def _certified(self, what: Literal["enrol", "renew", "rotate"]) -> Generator[SharedAction, Reply, Certified]:
        if self.record.authority is None:
            raise problem("enrolment-refused", self.new)
        question = Certify(what=what, authority=self.record.authority)
        if what == "enrol":
            question = Certify(what=what, authority=self.record.authority, token=self.token, label=self.label)
        certified = yield from ask_authority(question, self.pacing)
        self.now = certified.at
        return certified

    def _take(self, certified: Certified, **changes: Any) -> Generator[SharedAction, Reply, None]:
        authority = self.record.authority
        if authority is not None and certified.authority_key:
            changes["authority"] = authority.changed(public_key=certified.authority_key)
        yield from self.save(certificate=certified.certificate.encoded.hex(), registered=None, **changes)

    def _register(self) -> Generator[SharedAction, Reply, None]:
        """Present the certificate until the coordinator knows it."""
        for times in range(1, REGISTRATIONS + 1):
            answer = yield from self.ask(self.registration(), registering=True)
            registered = self.registered(answer)
            if registered is not None:
                if registered.device != Certificate.parse(bytes.fromhex(self.record.certificate)).id:
                    raise problem("not-certified", f"The coordinator registered another {self.holder} than this one.")
                return (yield from self.save(registered=registered))
            if not isinstance(answer, Problem):
                raise TypeError(f"the driver answered a registration with {answer!r}")
            if answer.advice != "renew" or times == REGISTRATIONS:
                raise ProblemError(answer)
            if times > 1:
                low, high = self.pacing.backoff(times)
                yield Sleep(min_s=low, max_s=high, reason=str(answer), trouble=True)
            yield from self._replace()
        return None


# ------------------------------------------------------------ rotating
# A device's key is replaced by another one under the same id: at the owner's wish, as a generator of actions.
#
# ::
#
#     Save(next key) -> Certify(rotate) -> Save(the next key is the key, its certificate)
#
# A crash in between loses nothing: this, or the next session, asks again with the same next key. The memory of secure
# rounds stays: the device is the same one, and has signed what it has signed.


def rotate_key(
    record: Record | None, *, entropy: Entropy = os.urandom, pacing: Pacing | None = None, at: float = 0.0
) -> Generator[Action, Reply, Record]:
    """Returns the record with the new key. The coordinator learns of it when the device registers the new certificate.

    ProblemError: there is no certificate, or the authority refuses; the old key then stays, unless it is revoked.
    ValueError where the key is kept outside the record: whoever keeps it has to replace it."""
    if record is None or not record.certificate:
        raise problem("enrolment-refused", NEW)
    if not record.key_seed:
        raise ValueError("This device's key is stored outside its record: rotate it where it is stored.")
    rotation = Enrolling(record, CheckIn, None, "", pacing or Pacing(), at)
    if not record.next_key_seed:
        yield from rotation.save(next_key_seed=DeviceKey.create(entropy).seed.hex())
    yield from rotation.rotate()
    return rotation.record
