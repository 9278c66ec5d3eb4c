"""Client: a device's session driven over HTTP, with real time, real storage and a trainer.

This file performs the actions that concern rounds, and ``driver`` all others. ``session`` decides about rounds,
``requests`` about retries, ``enrolling`` about certificates; ``exchange`` signs and sends a request, ``authority``
asks the authority.

A device in ten lines::

    storage = FileStorage("~/.my-app/quorate")
    trainer = LearnerTrainer(Catalogue({"clinic:risk": train}), data)
    device = Client("https://coordinator.example", storage, trainer, enrolment_token="qe1_...")
    with stopped_by_signals() as stop, device:
        device.run(stop=stop)
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Event

import httpx2

from client_sdk import codecs
from client_sdk.credentials.certificate import RevocationList, following
from client_sdk.credentials.errors import BadCredential, CredentialError, RolledBackList
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.device.actions import (
    Action,
    Answered,
    Failed,
    Fetch,
    FetchList,
    ListFetched,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sketch,
    Sketched,
    Train,
    Trained,
)
from client_sdk.device.contribution import (
    ClearContribution,
    first_made,
    in_private_order,
    model_digest,
    sketch_for,
)
from client_sdk.device.enrolling import NEW
from client_sdk.device.policy import secure_policy
from client_sdk.device.record import Record, Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.session import participate
from client_sdk.device.states import MOST_BYTES, Kept, key_of
from client_sdk.device.strategies import Local, StrategyError, half_of
from client_sdk.extensions import installed_version
from client_sdk.http.authority import LIST_LIMIT, Who
from client_sdk.http.driver import REPEAT_NOTICE_S, DeviceDriver
from client_sdk.http.driver import Notice as Notice
from client_sdk.http.exchange import exchanged, headers
from client_sdk.http.transport import Interrupted, in_short
from client_sdk.identity import Signer
from client_sdk.learners import LearnerError, Trainer
from client_sdk.protocol.devices import Assignment, CheckIn, DeviceFacts, Policy, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, parse_problem, problem
from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg.consent import sums_made
from client_sdk.secagg.memory import SKETCH_SECRET_BYTES, Memory
from client_sdk.secagg.origin import First
from client_sdk.tensors import Layout, Manifest, Roles, Tensors, canonical_digest, from_bytes, to_bytes
from client_sdk.tensors.manifest import of_model
from client_sdk.update import Seconds, Update, body_of, report_of


def fetch_revocations(http: httpx2.Client, storage: Storage, authority: TrustedAuthority) -> RevocationList:
    """The newest list that ``http``'s coordinator serves, kept in ``storage``, where it may follow what was seen
    before. Whether it is current is for the caller to check. A coordinator can hide a newer list, never bring an older
    one back: the counter that was seen is on the disk.

    RolledBackList for an older one, BadCredential for what is no list of this authority, ProblemError for what the
    coordinator refuses, *busy* where it cannot be reached. The list that is kept then stays."""
    body = _fetched(http, Route.REVOCATIONS)
    held = storage.load_revocations()
    found = following(held, body, authority)
    seen = storage.load_secure().revocations
    if found.counter < seen:
        raise RolledBackList(f"Revocation list {found.counter} is older than {seen}, which was seen in a secure round.")
    if found is not held:
        storage.save_revocations(found)
    return found


def fetch_list(http: httpx2.Client, storage: Storage, authority: TrustedAuthority, digest: bytes) -> RevocationList:
    """The list of this digest (SHA-256, 32 bytes): the one in ``storage``, or else the coordinator's, kept where it is
    newer than that one. An older one is returned too: a secure attempt begins by the list that its header names, for as
    long as that is in date and no earlier attempt of this device has begun by a newer one. Errors as
    ``fetch_revocations``."""
    held = storage.load_revocations()
    if held is not None and held.digest == digest:
        return held
    body = _fetched(http, Route.REVOCATION_LIST.format(digest=digest.hex()))
    if hashlib.sha256(body).digest() != digest:
        raise BadCredential("The coordinator shows another revocation list than the one that its header names.")
    newer = held is None or RevocationList.parse(body).counter >= held.counter
    found = following(held if newer else None, body, authority)
    if newer:
        storage.save_revocations(found)
    return found


def _fetched(http: httpx2.Client, path: str) -> bytes:
    """The bytes at this path. ProblemError."""
    try:
        response, body = exchanged(http, "GET", path, LIST_LIMIT, headers=headers())
    except httpx2.HTTPError as error:
        raise problem("busy", f"The revocation list cannot be fetched ({in_short(error)}).") from error
    if not response.is_success:
        raise ProblemError(parse_problem(response.status_code, body, response.headers))
    return body


class Client(DeviceDriver):
    """One device of one coordinator.

    ``storage`` survives crashes and is not closed here. ``trainer`` has the learners and the data. ``enrolment_token``:
    from an operator of the authority, until the device has a certificate; ``who``: what the authority asks for beside
    it, where it does (an attestation, an OIDC token), or a function that gets it. ``signer`` holds the device's key in
    place of the storage. ``http``: a client that is shared with others (``transport.open_http``); None: one of its own.
    ``state_days``: what it keeps for a strategy is deleted after so many days without a training for that run.
    ``on_notice`` is called from the thread that runs. ``chance`` draws from [0, 1) for the jitter of waits. Keys and
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
        state_days: float = 365.0,
        pacing: Pacing | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(
            coordinator,
            storage,
            enrolment_token=enrolment_token,
            who=who,
            signer=signer,
            http=http,
            on_notice=on_notice,
            chance=chance,
        )
        self._trainer = trainer
        self._policy = policy or Policy()
        self._label = label
        self._hold_s = hold_s
        self._state_days = state_days
        self._pacing = pacing
        self._fetch_s = 0.0
        self._ended = 0
        self._checked_in = False
        self._process = os.urandom(8).hex()
        self._warned_at = float("-inf")
        self._expired_at = float("-inf")
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
        self._ended = 0
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
        with suppress(Interrupted):
            self._drive(session, self._perform)
        return self._ended

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

    # ------------------------------------------------------------ performing

    def _perform(self, action: Action) -> Reply:
        if isinstance(action, FetchList):
            return self._list(action)
        if isinstance(action, Train):
            return self._train(action)
        if isinstance(action, Sketch):
            return self._sketched(action)
        if isinstance(action, Save):
            self._ended += action.joined is not None
        if isinstance(action, Send):
            if action.route is Route.CHECK_IN and not self._checked_in:
                self._checked_in = True
                self._notify("waiting", "Waiting to be selected.")
            if action.note:
                self._notify_wait(action.note)
        started = time.monotonic()
        reply = super()._perform(action)
        if isinstance(reply, Answered) and isinstance(reply.message, Assignment | Wait):
            self._warn(reply.message.warning)
        if isinstance(action, Fetch):
            self._fetch_s += time.monotonic() - started
        return reply

    def _sketched(self, action: Sketch) -> Sketched | Failed:
        task = action.assignment.task
        checkpoint = self._storage.checkpoints.get(action.assignment.checkpoint.digest)
        if checkpoint is None:
            return Failed(LOST, self._now())
        drawn = os.urandom(SKETCH_SECRET_BYTES)
        secret = self._storage.keep(lambda newest: newest.sketching(drawn)).sketch_secret
        try:
            sketch = self._sketch(action.assignment, secret, checkpoint)
            tensors = bytes.fromhex(canonical_digest(checkpoint))
            layout = Layout.of(Manifest.of(from_bytes(checkpoint)), task.averaged, action.assignment.roles)
            first = self._first(action.assignment, secret, checkpoint) if action.first else First()
        except Exception as error:
            log.exception("a checkpoint cannot be read in run %s", action.assignment.run)
            return Failed(_sentence(error), self._now())
        return Sketched(sketch, tensors, self._now(), layout.parameters.elements, first)

    def _sketch(self, assignment: Assignment, secret: bytes, checkpoint: bytes) -> bytes:
        return sketch_for(secret, checkpoint, lambda model: self._statistics(assignment, model))

    def _first(self, assignment: Assignment, secret: bytes, checkpoint: bytes) -> First:
        """What this device finds out of the run's first model, or of the signed one. LearnerError."""
        secure, made_by = assignment.secure, getattr(self._trainer, "first_model", None)
        make: Callable[[int], Tensors] | None = None if made_by is None else made_by(assignment.task.learner)
        if secure is None or (secure.signed is None and (make is None or secure.first_seed is None)):
            return First(can_make=make is not None)
        later = 0 if secure.signed is None else secure.signed.version
        if make is not None and secure.first_seed is not None and not later:
            made = make(secure.first_seed)
            sketch = self._sketch(assignment, secret, to_bytes(made))
            return first_made(made, checkpoint, assignment.checkpoint.version, sketch)
        if secure.signed is None or (body := self._storage.checkpoints.get(secure.signed.digest)) is None:
            raise LearnerError("The run's signed model was lost from this device's storage.")
        sketch = self._sketch(assignment, secret, body)
        return First(version=later, sketch=sketch, signed=model_digest(body), can_make=make is not None)

    def _statistics(self, assignment: Assignment, model: Manifest) -> Collection[str]:
        """The tensors that the learner itself calls statistics."""
        roles = getattr(self._trainer, "roles", None)
        said: Roles | None = None if roles is None else roles(assignment.task.learner, model)
        return () if said is None else said.keys()

    def _train(self, action: Train) -> Trained | Failed:
        assignment = action.assignment
        fetch_s, self._fetch_s = self._fetch_s, 0.0
        self._notify("training", f"Training {assignment.task.learner}.", assignment)
        kept = None
        if assignment.task.strategy is not None and assignment.task.strategy.keeps != "nothing":
            kept = self._kept(assignment)
        reply, text = train(
            self._trainer,
            action,
            self._storage.checkpoints.get(assignment.checkpoint.digest),
            fetch_s=fetch_s,
            now=self._now,
            stopped=self._stop.is_set,
            kept=kept,
            most_state=MOST_BYTES if self._policy.max_state_bytes is None else self._policy.max_state_bytes,
        )
        if text:
            self._notify("trained", text, assignment)
        return reply

    def _kept(self, assignment: Assignment) -> Kept | None:
        """What this device keeps for the run's strategy."""
        self._expire_states()
        kept = self._storage.states.current(key_of(self.coordinator, assignment.run))
        if kept is not None and (away := assignment.round - kept.round) >= LONG_AWAY:
            self._notify("returned", f"Its state is of round {kept.round}, {away} rounds ago.", assignment)
        return kept

    def _expire_states(self) -> None:
        """Delete what is older than the owner allows, of all runs: many of them are over."""
        self._expired_at = now = self._now()
        for number, at in self._storage.states.expire(now - 86_400 * self._state_days):
            days = (now - at) / 86_400
            text = f"Its state of round {number} is {days:.0f} days old, and is deleted as its owner wants."
            self._notify("trouble", text)

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
        if self._now() - self._expired_at > EXPIRE_S:
            self._expire_states()
        policy, memory = self._policy, self._remembered()
        plain, bounds = memory.plain, secure_policy(policy)
        if sums_made(bounds, memory, self._now()):
            said = policy.secure or SecureBounds()
            policy = policy.model_copy(update={"secure": said.changed(sums_made=True)})
        if plain is not None:
            here = plain & set(self._trainer.learners)
            both = here if policy.plain is None else here & set(policy.plain)
            policy = policy.model_copy(update={"plain": tuple(sorted(both))})
        return CheckIn(
            examples=self._trainer.examples,
            learners=self._trainer.learners,
            strategies=dict(getattr(self._trainer, "strategies", {})),
            policy=policy,
            hold_s=self._hold_s,
            process=self._process,
            facts=DeviceFacts(sdk=installed_version()),
        )

    def _warn(self, warning: str) -> None:
        """Pass on what the coordinator noticed about this device, at most once in REPEAT_NOTICE_S."""
        now = self._now()
        if warning and now - self._warned_at >= REPEAT_NOTICE_S:
            self._warned_at = now
            self._notify("warning", f"The coordinator says: {warning}.")

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


def _pinned(record: Record | None) -> TrustedAuthority:
    """The authority that this device trusts. ProblemError where it has no certificate yet."""
    if record is None or record.authority is None or not record.authority.public_key:
        raise problem("enrolment-refused", NEW)
    return TrustedAuthority.pinned(bytes.fromhex(record.authority.public_key), bytes.fromhex(record.authority.digest))


# ------------------------------------------------------------ training
# Trains one update on this device, and encodes it for its round.


log = logging.getLogger("quorate.device")

LOST = "The checkpoint was lost from this device's storage before training."
LONG_AWAY = 100
"""Rounds after which a device that comes back with a state says so."""
EXPIRE_S = 3600.0
"""How often a device that waits looks for states that are too old."""
SPARE = 0.05
"""Share of the time left that is reserved for encoding and sending, at most SPARE_MOST_S."""
SPARE_MOST_S = 10.0


def train(
    trainer: Trainer,
    action: Train,
    checkpoint: bytes | None,
    *,
    fetch_s: float,
    now: Callable[[], float],
    stopped: Callable[[], bool],
    kept: Kept | None = None,
    most_state: int = MOST_BYTES,
) -> tuple[Trained | Failed, str]:
    """The reply to ``action``, and a sentence for people where there is an update. ``fetch_s``: how long the download
    took. ``kept``: what the device keeps for the task's strategy; ``most_state``: how many bytes that may take.
    Interrupted where the device is to stop before the work is done."""
    if checkpoint is None:
        return Failed(LOST, now()), ""
    assignment = action.assignment
    started = time.monotonic()
    try:
        if action.secret:
            assignment = in_private_order(assignment, action.secret, checkpoint)
        left = _time_left(action.due_at, now, stopped)
        model, state = from_bytes(checkpoint), None
        if assignment.task.strategy is None:
            update = trainer.train(assignment, model, assignment.device, left)
        else:
            local = _by_strategy(trainer, assignment, model, {} if kept is None else kept.tensors, left, most_state)
            update, state = local.update, local.state if assignment.task.strategy.keeps != "nothing" else None
        if stopped() and not update.work.complete:
            raise Interrupted
        train_s = time.monotonic() - started
        body = _encoded(assignment, update, checkpoint, fetch_s, train_s)
    except Exception as error:
        if stopped():
            raise Interrupted from error
        log.exception("training failed in run %s, round %s", assignment.run, assignment.round)
        return Failed(_sentence(error), now()), ""
    text = f"Trained in {train_s:.1f} s; the update has {len(body)} bytes."
    return Trained(body, update.work.complete, now(), state), text


def _by_strategy(
    trainer: Trainer, assignment: Assignment, model: Tensors, state: Tensors, left: Callable[[], float], most: int
) -> Local:
    """The result of the device's half of the task's strategy. StrategyError where the device has none, or its state
    would take more than ``most`` bytes."""
    strategy, task, train_by = assignment.task.strategy, assignment.task, getattr(trainer, "train_by", None)
    if strategy is None or train_by is None:
        raise StrategyError("This device trains by no strategy.")
    half = half_of(strategy)
    size = half.state_bytes(Manifest.of(of_model(model)), task)
    if size > most:
        raise StrategyError(
            f"The strategy {strategy.name} would keep {size:,} bytes on this device, whose owner allows {most:,}."
        )
    local: Local = train_by(half, assignment, model, state, assignment.device, left)
    size = sum(array.nbytes for array in local.state.values())
    if size > most:
        raise StrategyError(f"The strategy {strategy.name} has made {size:,} bytes to keep; {most:,} are allowed.")
    return local


def _encoded(assignment: Assignment, update: Update, checkpoint: bytes, fetch_s: float, train_s: float) -> bytes:
    """What is saved: the body to send, or of a secure round what goes under masks, with no metrics and no times."""
    if assignment.secure is not None:
        return ClearContribution.of(update, checkpoint, assignment.task).encoded
    codec, started = codecs.beside(assignment.task.codec, assignment.roles), time.monotonic()
    encoded = codec.encode(update.delta, codecs.Origin.of(assignment))
    took = Seconds(fetch_s=fetch_s, train_s=train_s, encode_s=time.monotonic() - started)
    number, attempt, private = assignment.round, assignment.attempt, assignment.privacy is not None
    report = report_of(update, codec.name, assignment.run, number, attempt, took, private=private)
    return body_of(encoded, report)


def _time_left(due_at: float, now: Callable[[], float], stopped: Callable[[], bool]) -> Callable[[], float]:
    """Seconds left for training, read before each step; 0 once the device is to stop."""
    due_at -= min(SPARE_MOST_S, SPARE * max(0.0, due_at - now()))
    return lambda: 0.0 if stopped() else due_at - now()


def _sentence(error: Exception) -> str:
    """``ValueError: the loss is not finite``: an error's type and text on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
