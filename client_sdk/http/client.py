"""Client: a device's session driven over HTTP, with real time, real storage and a trainer.

This file performs the session's actions and reports what happens. ``session`` decides about rounds, ``requests`` about
retries, ``enrolling`` about certificates; ``exchange`` signs and sends a request, ``certifying`` asks the authority.

A device in ten lines::

    storage = FileStorage("~/.my-app/quorate")
    trainer = LearnerTrainer(Catalogue({"clinic:risk": train}), data)
    device = Client("https://coordinator.example", storage, trainer, enrolment_token="qe1_...")
    with stopped_by_signals() as stop, device:
        device.run(stop=stop)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from random import SystemRandom
from threading import Event
from types import TracebackType
from typing import assert_never

import httpx2

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.revocations import RevocationList
from client_sdk.device.actions import (
    Action,
    Certify,
    Failed,
    Fetch,
    FetchList,
    ListFetched,
    Load,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Train,
    Trained,
    Unreachable,
)
from client_sdk.device.enrolling import NEW
from client_sdk.device.performing import perform_stored
from client_sdk.device.record import Record, Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.session import participate
from client_sdk.http.certifying import Certifier, Who
from client_sdk.http.exchange import Exchange
from client_sdk.http.notices import Happening as Happening
from client_sdk.http.notices import of_saved
from client_sdk.http.revocations import fetch_list, fetch_revocations
from client_sdk.http.signing import RequestSigner
from client_sdk.http.training import train
from client_sdk.http.transport import Interrupted, open_http, until
from client_sdk.http.urls import check_url
from client_sdk.identity import Signer, key_of
from client_sdk.learners import Trainer
from client_sdk.protocol.devices import Assignment, CheckIn, Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.memory import Memory

log = logging.getLogger("quorate.device")

REPEAT_NOTICE_S = 60.0
"""The same trouble is reported again after this time."""


class Client:
    """One device of one coordinator.

    ``storage`` survives crashes and is not closed here. ``trainer`` has the learners and the data. ``enrolment_token``:
    from an operator of the authority, until the device has a certificate; ``who``: what the authority asks for beside
    it, where it does (an attestation, an OIDC token), or a function that gets it. ``signer`` holds the device's key in
    place of the storage. ``http``: a client that is shared with others (``transport.open_http``); None: one of its own.
    ``on_happening`` is called from the thread that runs. ``chance`` draws from [0, 1) for the jitter of waits. Keys and
    the secrets of secure rounds come from the operating system, and from nothing that a caller could seed.
    ValueError where ``coordinator`` is not an http or https URL, or the token is none.
    """

    def __init__(
        self,
        coordinator: str,
        storage: Storage,
        trainer: Trainer,
        *,
        enrolment_token: str | None = None,
        who: Who | str = "",
        policy: Policy | None = None,
        label: str = "",
        signer: Signer | None = None,
        http: httpx2.Client | None = None,
        hold_s: float = 25.0,
        pacing: Pacing | None = None,
        on_happening: Callable[[Happening], None] | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.coordinator = check_url(coordinator)
        self._storage = storage
        self._trainer = trainer
        self._token = EnrolmentToken.parse(enrolment_token.strip()) if enrolment_token is not None else None
        self._policy = policy or Policy()
        self._label = label
        self._signer = signer
        self._own_http = http is None
        self._http = http if http is not None else open_http(self.coordinator)
        self._hold_s = hold_s
        self._pacing = pacing
        self._on_happening = on_happening
        self._chance = chance if chance is not None else SystemRandom().random
        self._signing = RequestSigner(self.coordinator, self._now, os.urandom)
        self._exchange = Exchange(self._http, self.coordinator, storage, self._now, self._signing)
        self._certifier = Certifier(self._now, who, os.urandom)
        self._record = Record()
        self._stop = Event()
        self._clock_offset = time.time() - time.monotonic()
        self._fetch_s = 0.0
        self._checked_in = False
        self._last_trouble: tuple[str, float] = ("", 0.0)
        self._wait: tuple[str, float, float] = ("", 0.0, 0.0)
        """What is waited for in a secure round, since when, and when that was said."""

    def run(self, rounds: int | None = None, stop: Event | None = None) -> int:
        """Take part for ``rounds`` rounds (None: until stopped). Returns how many ended here, however they ended.

        ``stop`` ends it within a second, also while it waits for work; in training, after the step under way. What was
        begun then stays in the storage, and the next ``run`` goes on with it.

        Raises ProblemError where the coordinator refuses this device for good, StorageError where the storage cannot be
        used.
        """
        self._stop = stop if stop is not None else Event()
        record = self._storage.load()
        self._use(record if record is not None else Record())
        self._remembered()
        ended = 0
        session = participate(
            record,
            coordinator=self.coordinator,
            offer=self._offer,
            enrolment_token=self._token,
            label=self._label,
            rounds=rounds,
            signer=self._signer,
            entropy=os.urandom,
            pacing=self._pacing,
            at=self._now(),
        )
        try:
            with until(self._stop.is_set):
                action = next(session)
                while isinstance(action, Save | Keep) or not self._stop.is_set():
                    if isinstance(action, Save):
                        ended += action.joined is not None
                        for happening in of_saved(action.record, self._record, action.joined):
                            self._emit(happening)
                    action = session.send(self._perform(action))
        except (StopIteration, Interrupted):
            pass
        finally:
            session.close()
        return ended

    def revocations(self) -> RevocationList:
        """The authority's revocation list as the coordinator serves it on, kept in the storage: never an older one than
        was seen before. Whether it is current is for the caller to check, by this device's own clock.

        ProblemError where it cannot be had, or this device has no certificate yet; CredentialError where it is not the
        authority's, or older than one that was seen."""
        record = self._storage.load()
        found = fetch_revocations(self._http, self._storage, _pinned(record))
        if record is not None and record.assignment is None:  # a round that is under way was announced before
            self._storage.keep(lambda newest: newest.bound_by(found.counter))
        return found

    def close(self) -> None:
        """Close the HTTP client, unless it is shared."""
        if self._own_http:
            self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ performing

    def _perform(self, action: Action) -> Reply:
        match action:
            case Save() | Keep() | Load():
                stored = perform_stored(self._storage, action, self._now())
                if isinstance(action, Save):
                    self._use(action.record)
                return stored
            case FetchList():
                return self._list(action)
            case Certify():
                return self._certify(action)
            case Send():
                if action.route is Route.CHECK_IN and not self._checked_in:
                    self._checked_in = True
                    self._notify("waiting", "Waiting to be selected.")
                if action.note:
                    self._notify_wait(action.note)
                return self._exchange.send(action)
            case Fetch():
                started = time.monotonic()
                reply = self._exchange.fetch(action)
                self._fetch_s += time.monotonic() - started
                return reply
            case Train():
                return self._train(action)
            case Sleep():
                self._sleep(action)
                return None
            case _:
                assert_never(action)

    def _use(self, record: Record) -> None:
        """From now on requests are signed by the key of this record, which is saved."""
        self._record = record
        self._signing.signer = self._signer or key_of(record.key_seed)

    def _certify(self, action: Certify) -> Reply:
        record, signer = self._record, self._signing.signer
        if signer is None:
            raise RuntimeError("the authority is asked before the key was saved")
        following = key_of(record.next_key_seed)
        reply = self._certifier.perform(action, signer, certificate=record.certificate, following=following)
        if action.what == "renew" and isinstance(reply, RequestRefused | Unreachable | Failed):
            why = str(reply.problem) if isinstance(reply, RequestRefused) else reply.reason
            self._notify_once("trouble", why, f"The certificate was not renewed. {why}")
        return reply

    def _sleep(self, action: Sleep) -> None:
        wait_s = action.min_s + (action.max_s - action.min_s) * self._chance()
        if action.trouble:
            end = "" if action.reason.endswith((".", "!", "?", "…")) else "."
            self._notify_once("trouble", action.reason, f"{action.reason}{end} Trying again in {wait_s:.0f} s.")
        else:
            self._notify_once("waiting", action.reason, action.reason)
        self._stop.wait(wait_s)

    def _train(self, action: Train) -> Trained | Failed:
        assignment = action.assignment
        fetch_s, self._fetch_s = self._fetch_s, 0.0
        self._notify("training", f"Training {assignment.task.learner}.", assignment)
        reply, text = train(
            self._trainer,
            action,
            self._storage.checkpoints.get(assignment.checkpoint.digest),
            fetch_s=fetch_s,
            now=self._now,
            stopped=self._stop.is_set,
        )
        if text:
            self._notify("trained", text, assignment)
        return reply

    def _list(self, action: FetchList) -> ListFetched | RequestRefused | Failed:
        try:
            found = fetch_list(self._http, self._storage, _pinned(self._record), action.digest)
            return ListFetched(found, self._now())
        except ProblemError as error:
            return RequestRefused(error.problem, self._now())
        except CredentialError as error:
            return Failed(str(error), self._now())

    def _remembered(self) -> Memory:
        """The device's memory of secure rounds, after expired attempts were deleted."""
        return self._storage.keep(lambda newest: newest.swept(self._now()))

    def _offer(self) -> CheckIn:
        policy, joined = self._policy, self._remembered().learners & set(self._trainer.learners)
        if joined:
            both = sorted(joined | set(policy.secure_learners))
            policy = policy.model_copy(update={"secure_learners": tuple(both)})
        return CheckIn(
            examples=self._trainer.examples,
            learners=self._trainer.learners,
            policy=policy,
            hold_s=self._hold_s,
        )

    def _now(self) -> float:
        """Unix seconds that never go back while this client lives."""
        return self._clock_offset + time.monotonic()

    # ------------------------------------------------------------ notices

    def _notify(self, kind: str, text: str, assignment: Assignment | None = None) -> None:
        run, number = (assignment.run, assignment.round) if assignment is not None else (None, None)
        self._emit(Happening(kind=kind, text=text, run=run, round=number))

    def _notify_once(self, kind: str, reason: str, text: str) -> None:
        """Send the notice, unless it is the same as the last one, less than REPEAT_NOTICE_S ago."""
        last, at = self._last_trouble
        if reason != last or self._now() - at > REPEAT_NOTICE_S:
            self._notify(kind, text)
            self._last_trouble = (reason, self._now())

    def _notify_wait(self, note: str) -> None:
        """Say what is waited for in a secure round, and again every REPEAT_NOTICE_S, with the seconds so far."""
        now = self._now()
        last, since, said_at = self._wait
        if note == last and now - said_at < REPEAT_NOTICE_S:
            return
        begun = since if note == last else now
        text = f"{note} {now - begun:.0f} s so far." if note == last else note
        self._notify("exchanging", text, self._record.assignment)
        self._wait = (note, begun, now)

    def _emit(self, happening: Happening) -> None:
        self._last_trouble = ("", 0.0)
        log.debug("%s", happening)
        if self._on_happening is not None:
            self._on_happening(happening)


def _pinned(record: Record | None) -> TrustedAuthority:
    """The authority that this device trusts. ProblemError where it has no certificate yet."""
    if record is None or record.authority is None or not record.authority.public_key:
        raise problem("enrolment-refused", NEW)
    return TrustedAuthority.pinned(bytes.fromhex(record.authority.public_key), bytes.fromhex(record.authority.digest))
