"""What all devices with the same data remember together: the sums that their updates went into during the last day, and
what their answers have cost in differential privacy, over all runs and coordinators.

One file for each data set, JSON and its SHA-256, which is replaced as a whole under a lock. What an answer costs is
debited before the answer leaves, once for each answer: a device cannot know which of them are counted. The same answer
sent again costs nothing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from client_sdk.device.durable_folder import DurableFolder, explained
from client_sdk.device.policy import cost_of, under_masks
from client_sdk.device.record import StorageError
from client_sdk.privacy.accounting import epsilon_of, rho_for
from client_sdk.protocol.devices import Assignment, PrivacyBounds
from client_sdk.protocol.names import Message
from client_sdk.secagg.memory import DAY_S

NEVER = -1
"""No version of the run's model changes the answer."""


class Declined(NamedTuple):
    """Why a device does not answer."""

    reason: str
    until: int
    """The version of the run's model from which it answers again, or NEVER."""


class Debit(Message):
    """What one answer costs: an update that is sent, or a masked vector."""

    coordinator: str
    run: str
    device: str
    round: int
    version: int
    """Of the checkpoint that was trained from."""
    answer: str
    """Tells this answer from others: sent again it costs nothing."""
    rho: float | None
    """Its zCDP. None: nothing bounds what it tells."""
    most_rounds: int | None
    """In how many rounds of the run one device counts at most, by its plan."""
    apart: int = 1
    """How many rounds are committed from one of these to the next, at least, by its plan."""


def debit_for(coordinator: str, assignment: Assignment, answer: str) -> Debit:
    """What the answer to this assignment costs."""
    terms = assignment.privacy
    return Debit(
        coordinator=coordinator,
        run=assignment.run,
        device=assignment.device,
        round=assignment.round,
        version=assignment.checkpoint.version,
        answer=answer,
        rho=cost_of(terms, under_masks(assignment.secure)),
        most_rounds=None if terms is None else terms.most_rounds,
        apart=1 if terms is None else terms.apart,
    )


class Spending(Message):
    """What one device has told of the data in one run."""

    last: Debit
    rounds: int = 1
    answers: int = 1
    rho: float | None
    """The zCDP of all answers. None: nothing bounds it."""

    def pays(self, debit: Debit) -> bool:
        """Whether this answer is the last one, sent again."""
        return (debit.round, debit.answer) == (self.last.round, self.last.answer)


class DataLedger(Message):
    """The content of the file."""

    format: Literal[1] = 1
    data: str = ""
    """The data set, for people."""
    sums: tuple[float, ...] = ()
    """When masked vectors left: Unix seconds, of the last day."""
    spent: tuple[Spending, ...] = Field(default=(), repr=False)

    @property
    def answers(self) -> int:
        """How many answers were debited. It never falls."""
        return sum(one.answers for one in self.spent)

    @property
    def rho(self) -> float | None:
        """The zCDP of all answers; None: nothing bounds it."""
        found = [one.rho for one in self.spent]
        return None if None in found else sum(one for one in found if one is not None)

    def summed(self, at: float) -> DataLedger:
        """A copy with one more masked vector, and without those that are a day older or newer."""
        return self.changed(sums=(*(one for one in self.sums if abs(at - one) < DAY_S), at))

    def debited(self, debit: Debit) -> DataLedger:
        """A copy in which the answer is paid for. The same object where it was before, or where it is one more without
        a bound in a run that counts no rounds."""
        before = self._of(debit)
        if before is None:
            return self.changed(spent=(*self.spent, Spending(last=debit, rho=debit.rho)))
        if before.pays(debit) or (before.rho, debit.rho, debit.most_rounds) == (None, None, None):
            return self
        after = Spending(
            last=debit,
            rounds=before.rounds + (debit.round != before.last.round),
            answers=before.answers + 1,
            rho=None if before.rho is None or debit.rho is None else before.rho + debit.rho,
        )
        return self.changed(spent=tuple(after if one is before else one for one in self.spent))

    def declines(self, debit: Debit, bounds: PrivacyBounds) -> Declined | None:
        """Why the data's owner, or the run's plan, allows no such answer; None: it is allowed, or was paid before.

        ``most_rounds`` and ``apart`` are held over all devices with this data, whatever their ids."""
        mine = self._of(debit)
        if mine is not None and mine.pays(debit):
            return None
        if debit.most_rounds is not None and (declined := self._too_often(debit, debit.most_rounds, bounds.apart)):
            return declined
        if bounds.most_epsilon is None:
            return None
        allows = f"its owner allows epsilon {bounds.most_epsilon:g} at delta {bounds.delta:g}"
        if self.rho is None or debit.rho is None:
            return Declined(f"This device's data was in rounds without noise, which nothing bounds; {allows}.", NEVER)
        epsilon = epsilon_of(self.rho + debit.rho, bounds.delta)
        if epsilon > bounds.most_epsilon:
            return Declined(f"With this round, this device's data would lose epsilon {epsilon:.4g}; {allows}.", NEVER)
        return None

    def _too_often(self, debit: Debit, most_rounds: int, apart: int | None) -> Declined | None:
        run = [one for one in self.spent if (one.last.coordinator, one.last.run) == (debit.coordinator, debit.run)]
        rounds = sum(one.rounds for one in run) - any(one.last.round == debit.round for one in run)
        if rounds >= most_rounds:
            said = f"This device's data has been in {rounds} rounds of this run; its plan allows {most_rounds}."
            return Declined(said, NEVER)
        newest = max((one.last.version for one in run if one.last.round != debit.round), default=None)
        if newest is None:
            return None
        if apart is not None and debit.version < newest + apart:
            said = f"This device's owner wants {apart} committed rounds between two in which it takes part."
            return Declined(said, newest + apart)
        # Of a round from the same version nothing was committed. An older one is of a coordinator that was set back.
        if debit.apart > 1 and debit.version != newest and debit.version < newest + debit.apart:
            said = f"The run's plan wants {debit.apart} committed rounds between two in which this device takes part."
            return Declined(said, newest + debit.apart)
        return None

    def shown(self, delta: float, most_epsilon: float | None) -> dict[str, Any]:
        """What people are shown: what the data has lost, and for each run in how many more rounds it may be, where that
        is bounded."""
        return {
            "data": self.data,
            "delta": delta,
            "epsilon": None if self.rho is None else epsilon_of(self.rho, delta),
            "most_epsilon": most_epsilon,
            "runs": [
                {
                    "coordinator": one.last.coordinator,
                    "run": one.last.run,
                    "device": one.last.device,
                    "rounds": one.rounds,
                    "answers": one.answers,
                    "zcdp": one.rho,
                    "rounds_left": self._left(one, delta, most_epsilon),
                }
                for one in self.spent
            ],
        }

    def _left(self, one: Spending, delta: float, most_epsilon: float | None) -> int | None:
        """In how many more rounds like its last one the data may be; None: in any number."""
        most = [] if one.last.most_rounds is None else [max(0, one.last.most_rounds - one.rounds)]
        if most_epsilon is not None:
            spent, cost = self.rho, one.last.rho
            if spent is None or cost is None:
                return 0
            more = max(0, int((rho_for(most_epsilon, delta) - spent) / cost))
            most.append(more + (epsilon_of(spent + (more + 1) * cost, delta) <= most_epsilon))  # it was rounded down
        return min(most, default=None)

    def _of(self, debit: Debit) -> Spending | None:
        key = debit.coordinator, debit.run, debit.device
        found = (one for one in self.spent if (one.last.coordinator, one.last.run, one.last.device) == key)
        return next(found, None)

    @property
    def encoded(self) -> bytes:
        body = self.model_dump_json().encode()
        return body + b"\n" + sha256(body).hexdigest().encode() + b"\n"


class LedgerFile:
    """The file, at ``path``, of which there may be none yet, and beside it its lock, with the ending ``.lock``. What it
    counts is stored here before it leaves, so a crash in between counts one too many."""

    def __init__(self, path: Path, durable: bool, data: str = "") -> None:
        try:
            self.path = path.expanduser()
        except RuntimeError:
            raise StorageError(
                f"This system does not say which folder is home, so {path} cannot be found: name another for sums."
            ) from None
        self._files = DurableFolder(self.path.parent, durable)
        self._data = data

    def read(self) -> DataLedger:
        """What is in the file. StorageError where that cannot be known."""
        with explained(self.path.parent):
            if not self.path.exists():
                return DataLedger(data=self._data)
            body, _, said = self.path.read_bytes().partition(b"\n")
        try:
            if said.strip() == sha256(body).hexdigest().encode():
                return DataLedger.model_validate_json(body)
        except ValidationError:
            pass  # of another version
        raise StorageError(
            f"{self.path} cannot be read, so this device cannot know into how many sums its data went today, nor what "
            "it has lost in rounds with noise."
        )

    def change(self, change: Callable[[DataLedger], DataLedger]) -> DataLedger:
        """Apply ``change`` to the newest content, store what it returns, and return that. Nothing is stored where it
        returns the same object."""
        with explained(self.path.parent):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                newest = self.read()
                changed = change(newest)
                if changed is not newest:
                    self._files.replace(self.path, changed.encoded)
                return changed
