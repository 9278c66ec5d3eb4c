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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import SystemRandom
from threading import Event
from types import TracebackType
from typing import assert_never, cast

import httpx2

from client_sdk import codecs
from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.revocations import RevocationList
from client_sdk.device.actions import (
    Action,
    Certify,
    Failed,
    Fetch,
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
from client_sdk.device.record import Record, Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.session import participate
from client_sdk.http.certifying import Certifier, Who
from client_sdk.http.exchange import Exchange
from client_sdk.http.notices import Happening as Happening
from client_sdk.http.notices import of_saved
from client_sdk.http.revocations import fetch_revocations
from client_sdk.http.signing import RequestSigner
from client_sdk.http.transport import Interrupted, open_http, until
from client_sdk.http.urls import check_url
from client_sdk.identity import Entropy, Signer, key_of
from client_sdk.learners import Trainer
from client_sdk.protocol.devices import Assignment, CheckIn, Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from client_sdk.secagg.memory import Memory
from client_sdk.tensors import Array, Tensors, from_bytes
from client_sdk.update import Seconds, encode_update

log = logging.getLogger("quorate.device")

REPEAT_NOTICE_S = 60.0
"""The same trouble is reported again after this time."""
SPARE = 0.05
"""Share of the time left that is reserved for encoding and sending, at most SPARE_MOST_S."""
SPARE_MOST_S = 10.0


class Client:
    """One device of one coordinator.

    ``storage`` survives crashes and is not closed here. ``trainer`` has the learners and the data. ``enrolment_token``:
    from an operator of the authority, until the device has a certificate; ``who``: what the authority asks for beside
    it, where it does (an attestation, an OIDC token), or a function that gets it. ``signer`` holds the device's key in
    place of the storage. ``http``: a client that is shared with others (``transport.open_http``); None: one of its own.
    ``on_happening`` is called from the thread that runs. ``chance`` draws from [0, 1) for the jitter of waits.
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
        entropy: Entropy = os.urandom,
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
        self._entropy = entropy
        self._chance = chance if chance is not None else SystemRandom().random
        self._signing = RequestSigner(self.coordinator, self._now, entropy)
        self._exchange = Exchange(self._http, self.coordinator, storage, self._now, self._signing)
        self._certifier = Certifier(self._now, who, entropy)
        self._record = Record()
        self._stop = Event()
        self._clock_offset = time.time() - time.monotonic()
        self._fetch_s = 0.0
        self._checked_in = False
        self._last_trouble: tuple[str, float] = ("", 0.0)

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
            entropy=self._entropy,
            pacing=self._pacing,
            at=self._now(),
        )
        try:
            with until(self._stop.is_set):
                action = next(session)
                while isinstance(action, Save) or not self._stop.is_set():
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
        if record is None or record.authority is None or not record.authority.public_key:
            raise problem("enrolment-refused", NEW)
        authority = TrustedAuthority.pinned(
            bytes.fromhex(record.authority.public_key), bytes.fromhex(record.authority.digest)
        )
        return fetch_revocations(self._http, self._storage, authority)

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
            case Save():
                self._storage.save(action.record, action.update, action.joined)
                self._use(action.record)
                return None
            case Certify():
                return self._certify(action)
            case Send():
                if action.route is Route.CHECK_IN and not self._checked_in:
                    self._checked_in = True
                    self._notify("waiting", "Waiting to be selected.")
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
        checkpoint = self._storage.checkpoints.get(assignment.checkpoint.digest)
        if checkpoint is None:
            return Failed("The checkpoint was lost from this device's storage before training.", self._now())
        fetch_s, self._fetch_s = self._fetch_s, 0.0
        self._notify("training", f"Training {assignment.task.learner}.", assignment)
        started = time.monotonic()
        try:
            update = self._trainer.train(
                assignment, from_bytes(checkpoint), assignment.device, self._deadline(action.due_at)
            )
            if self._stop.is_set() and not update.work.complete:
                raise Interrupted
            train_s = time.monotonic() - started
            codec = codecs.get(assignment.task.codec)
            origin = codecs.Origin(seed=assignment.task.seed, round=assignment.round, device=assignment.device)
            encoded = _Encoded(codec.name, codec.encode(update.delta, origin))
            encode_s = time.monotonic() - started - train_s
            body = encode_update(
                update,
                cast("codecs.Codec", encoded),
                run=assignment.run,
                round=assignment.round,
                attempt=assignment.attempt,
                seconds=Seconds(fetch_s=fetch_s, train_s=train_s, encode_s=encode_s),
            )
        except Exception as error:
            if self._stop.is_set():
                raise Interrupted from error
            log.exception("training failed in run %s, round %s", assignment.run, assignment.round)
            return Failed(_sentence(error), self._now())
        self._notify("trained", f"Trained in {train_s:.1f} s; the update has {len(body)} bytes.", assignment)
        return Trained(body, update.work.complete, self._now())

    def _deadline(self, due_at: float) -> Callable[[], float]:
        """Seconds left for training, read before each step; 0 once the device is to stop."""
        due_at -= min(SPARE_MOST_S, SPARE * max(0.0, due_at - self._now()))
        return lambda: 0.0 if self._stop.is_set() else due_at - self._now()

    def _remembered(self) -> Memory:
        """The device's memory of secure rounds, after expired attempts were deleted."""
        memory = self._storage.load_secure()
        swept = memory.swept(self._now())
        if swept is not memory:
            self._storage.save_secure(swept)
        return swept

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

    def _emit(self, happening: Happening) -> None:
        self._last_trouble = ("", 0.0)
        log.debug("%s", happening)
        if self._on_happening is not None:
            self._on_happening(happening)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A codec with the result of its encoding, so that the report inside the body can hold the time that it took."""

    name: str
    tensors: Tensors

    def encode(self, delta: Mapping[str, Array], origin: codecs.Origin) -> Tensors:
        return self.tensors


def _sentence(error: Exception) -> str:
    """``ValueError: the loss is not finite``: an error's type and text on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
