"""Bugs in the device's session: what it saves before it sends, and what it does after a crash."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from client_sdk.device import session
from client_sdk.device.actions import Action, Reply
from client_sdk.device.session import _Session
from client_sdk.protocol.devices import Assignment
from tests.explorer.mutants.registry import mutant
from tests.explorer.plans import KEEPS

Patches = list[tuple[Any, str, Any]]


@mutant("trained-anew", "receipt", focus=("device-crash", "collecting"))
def _trained_anew() -> Patches:
    """After a crash a device trains again instead of sending the update that it had saved."""
    resume = _Session._resume

    def anew(self: _Session, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        self.record = self.record.model_copy(update={"update_digest": None})
        return (yield from resume(self, assignment))

    return [(_Session, "_resume", anew)]


@mutant("trains-too-late", "deadline", focus=("device-crash", "collecting"))
def _trains_too_late() -> Patches:
    """A device begins to train though the deadline of the round has passed."""
    return [(_Session, "due_at", float("inf"))]


@mutant("sent-unsaved", "receipt")
def _sent_unsaved() -> Patches:
    """A device sends its update before it has saved it."""
    save = _Session.save

    def forgetful(self: _Session, update: bytes | None = None, state: Any = None, **changes: Any) -> Any:
        if update is not None:
            self.record = self.record.model_copy(update=changes)
            return iter(())
        return save(self, update, state, **changes)

    return [(_Session, "save", forgetful)]


@mutant("state-of-what-was-sent", "client-state", plan={"strategy": KEEPS})
def _state_of_what_was_sent() -> Patches:
    """A device keeps the state of its last training, whatever became of the update."""
    return [(session, "belongs", lambda outcome, candidate, *, masked: True)]


@mutant("state-left-out", "client-state", plan={"strategy": KEEPS})
def _state_left_out() -> Patches:
    """A device that is assigned its next round goes on with its older state, though the update counts."""
    return [(session, "belongs", lambda outcome, candidate, *, masked: False)]


@mutant("state-not-settled", "client-state", plan={"strategy": KEEPS})
def _state_not_settled() -> Patches:
    """A device does not ask what became of its last update before it trains again."""

    def trusting(self: _Session, assignment: Assignment) -> Generator[Action, Reply, str | None]:
        return None
        yield

    return [(_Session, "_settle_state", trusting)]
