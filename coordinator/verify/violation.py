"""What ``verify`` says of a run, and what it cannot say."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 400
"""Characters of a finding. Values that somebody else has stored may have any length."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of an invariant."""

    invariant: str
    """Its name in the table of ``coordinator.verify``."""
    run: str
    round: int
    """The round that it concerns; of what concerns the whole run, the latest round. 0: the run has none."""
    what: str


@dataclass(frozen=True, slots=True)
class RunViolation:
    """A violation in a run that the caller knows."""

    invariant: str
    round: int
    what: str

    def of(self, run: str) -> Violation:
        return Violation(self.invariant, run, self.round, printable(self.what))


def printable(text: str) -> str:
    """The text in one line of bounded length, whatever characters somebody has stored."""
    shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


class CannotVerify(Exception):
    """A run's plan names what is not installed here: its updates cannot be folded again. One sentence."""
