"""Which devices may have an answer of their secure round, or learn that there will be none."""

from __future__ import annotations

from coordinator.engine.state import RunState
from coordinator.runtime.signals import secure_key

Place = tuple[int, str, int, bool, bool]
"""(number of the round, phase, attempt, whether there is a header, whether there is a roster)."""


class SecureWakes:
    """Remembers where the secure round of each run was. Safe from any thread: to be woken twice does no harm."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Place, tuple[str, ...]]] = {}

    def keys(self, state: RunState) -> list[str]:
        """The keys to wake: those of all devices of the round where it has got to another phase, attempt, header or
        roster that may have an answer for somebody, or has ended; else none."""
        before, here = self._last.get(state.run), place_of(state)
        if state.plan.secure is None or (before is not None and before[0] == here):
            return []
        members = () if state.secure is None else tuple(state.current.members)
        self._last[state.run] = (here, members)
        return [secure_key(device) for device in sorted({*members, *(before[1] if before is not None else ())})]


def place_of(state: RunState) -> Place:
    """Where the run's secure round is: another value wherever there may be an answer for all, or the end."""
    secure = state.secure
    attempt = 0 if state.round is None else state.round.attempt
    phase = state.phase
    if phase == "sharing" and secure is not None and not secure.roster:
        phase = "collecting"  # nobody has an answer by this change: all wait for the roster
    elif phase == "committing":
        phase = "unmasking"  # likewise: for the end of the round
    return (
        state.round_number,
        phase,
        attempt,
        secure is not None and bool(secure.header),
        secure is not None and bool(secure.roster),
    )
