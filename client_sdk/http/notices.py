"""What a device or a datacenter's worker tells people while it takes part: notices of one sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.record import Joined, Record


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
