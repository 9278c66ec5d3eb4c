"""What every driver of a session over HTTP does: requests, certificates, storage, waits, notices, and an end when it
is stopped.

``client.Client`` trains rounds over it, and a datacenter's worker leased ones; ``client_sdk.flower`` serves Flower runs
over it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from random import SystemRandom
from threading import Event
from typing import Any, Self, TypeVar, assert_never

import httpx2

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import (
    Action,
    Certify,
    Failed,
    Fetch,
    FetchList,
    Load,
    Recall,
    Reply,
    RequestRefused,
    Save,
    Send,
    Settle,
    Sketch,
    Sleep,
    Spend,
    Train,
    Unreachable,
    perform_stored,
)
from client_sdk.device.record import Joined, Record, Storage
from client_sdk.http.authority import Certifier, Who
from client_sdk.http.exchange import DeviceFiles, Exchange, RequestSigner
from client_sdk.http.transport import Interrupted, open_http, until
from client_sdk.http.urls import check_url
from client_sdk.identity import Signer, key_of
from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.workers import Lease
from client_sdk.secagg.actions import Keep

# ------------------------------------------------------------ notices
# What a device or a datacenter's worker tells people while it takes part: notices of one sentence each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice for people: one plain sentence, and the round that it is about. ``str`` of it is one line."""

    kind: str
    """enrolled, renewed, waiting, trouble or training; of a device also assigned, trained, exchanging (in a secure
    round), receipt, refused, withdrawn or dropped; of a worker also leased, progress, committed, lost, failed, refused
    or given-back."""
    text: str
    run: str | None = None
    round: int | None = None

    def __str__(self) -> str:
        where = f"{self.run} round {self.round}: " if self.run is not None else ""
        return where + self.text


def of_saved(record: Record, before: Record, joined: Joined | None) -> list[Notice]:
    """The notices of one save, by what it changed."""
    found = []
    if record.certificate and record.certificate != before.certificate:
        found.append(_certified(record.certificate, before.certificate))
    if joined is not None:
        text = {
            "receipt": f"The update was accepted. {joined.reason}".rstrip(),
            "refused": f"The update was not accepted: {joined.reason}",
            "withdrawn": f"Withdrew: {joined.reason}",
            "dropped": f"The round went on without this device: {joined.reason}",
        }[joined.result]
        found.append(Notice(kind=joined.result, text=text, run=joined.run, round=joined.round))
    elif record.assignment is not None and before.assignment is None:
        work = record.assignment
        how = "Selected to train" if work.secure is None else "Selected for a secure round of"
        text = f"{how} {work.task.learner}; {work.report_within_s:.0f} s to report."
        found.append(Notice(kind="assigned", text=text, run=work.run, round=work.round))
    return found


def _certified(encoded: str, before: str) -> Notice:
    certificate = Certificate.parse(bytes.fromhex(encoded))
    until = date_of(certificate.not_after)
    if before:
        return Notice(kind="renewed", text=f"Has a new certificate, which is valid until {until}.")
    return Notice(kind="enrolled", text=f"Enrolled as {certificate.id}; the certificate is valid until {until}.")


def date_of(at: float) -> str:
    """``2026-11-23 09:15 UTC``, of Unix seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# ------------------------------------------------------------ driver


A = TypeVar("A")
T = TypeVar("T")
log = logging.getLogger("quorate.device")

REPEAT_NOTICE_S = 60.0
"""Seconds after which a trouble that lasts is reported again."""


class DeviceDriver:
    """Performs the actions of a session with one coordinator. See ``client.Client`` for the arguments; ``files`` has
    what requests send and fetch (None: ``storage``)."""

    def __init__(
        self,
        coordinator: str,
        storage: Storage,
        *,
        files: DeviceFiles | None = None,
        enrolment_token: str | None = None,
        who: Who | str = "",
        signer: Signer | None = None,
        http: httpx2.Client | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.coordinator = check_url(coordinator)
        self._storage = storage
        self._token = EnrolmentToken.parse(enrolment_token.strip()) if enrolment_token is not None else None
        self._signer = signer
        self._own_http = http is None
        self._http = http if http is not None else open_http(self.coordinator)
        self._on_notice = on_notice
        self._chance = chance if chance is not None else SystemRandom().random
        self._signing = RequestSigner(self.coordinator, self._now, os.urandom)
        self._exchange = Exchange(self._http, self.coordinator, files or storage, self._now, self._signing)
        self._certifier = Certifier(self._now, who, os.urandom)
        self._record = Record()
        self._stop = Event()
        self._clock_offset = time.time() - time.monotonic()
        self._last_trouble: tuple[str, float] = ("", 0.0)

    def close(self) -> None:
        """Close the HTTP client, unless it is shared."""
        if self._own_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ performing

    def _drive(self, session: Generator[A, Any, T], perform: Callable[[A], object]) -> T:
        """Perform the session's actions to its end, and return what it returns. Interrupted soon after this driver is
        to stop; what is to be saved at that moment is saved before."""
        reply: object = None
        try:
            with until(self._stop.is_set):
                while True:
                    action = session.send(reply)
                    if self._stop.is_set() and not isinstance(action, Save | Keep):
                        raise Interrupted
                    reply = perform(action)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            session.close()

    def _perform(self, action: Action) -> Reply:
        match action:
            case Save() | Keep() | Spend() | Load() | Recall() | Settle():
                if isinstance(action, Settle) and action.why:
                    self._notify("trouble", action.why, self._record.assignment)
                if isinstance(action, Save):
                    for notice in of_saved(action.record, self._record, action.joined):
                        self._emit(notice)
                stored = perform_stored(self._storage, action, self._now())
                if isinstance(action, Save):
                    self._use(action.record)
                return stored
            case Certify():
                return self._certify(action)
            case Send():
                return self._exchange.send(action)
            case Fetch():
                return self._exchange.fetch(action)
            case Sleep():
                self._sleep(action)
                return None
            case FetchList() | Sketch() | Train():
                raise TypeError(f"{type(self).__name__} does not perform {action!r}")
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

    def _now(self) -> float:
        """Unix seconds that never go back while this driver lives."""
        return self._clock_offset + time.monotonic()

    # ------------------------------------------------------------ notices

    def _notify(self, kind: str, text: str, about: Assignment | Lease | None = None) -> None:
        run, number = (about.run, about.round) if about is not None else (None, None)
        self._emit(Notice(kind=kind, text=text, run=run, round=number))

    def _notify_once(self, kind: str, reason: str, text: str) -> None:
        """Send the notice, unless it is the same as the last one, less than REPEAT_NOTICE_S ago."""
        last, at = self._last_trouble
        if reason != last or self._now() - at > REPEAT_NOTICE_S:
            self._notify(kind, text)
            self._last_trouble = (reason, self._now())

    def _emit(self, notice: Notice) -> None:
        self._last_trouble = ("", 0.0)
        log.debug("%s", notice)
        if self._on_notice is not None:
            self._on_notice(notice)
