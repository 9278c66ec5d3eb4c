"""The margin of a survivor list: how many of those on it may vanish before the sum is there.

A list that as many devices are on as must sign it fails with the first that vanishes, and all others have signed for
nothing. So it is shown only when the signatures that it takes and the margin are there; else a fresh attempt begins,
which costs nobody a signature, and whose roster of fewer devices takes fewer signatures.

The margin is the plan's, or what the last lists lost, and always at most half of the devices that need not sign: of
n - t, on a ring of D. Each attempt that failed for want of it halves it, until a list has the whole of it again, so
that a run of few devices goes on.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine.secure.plan import LEAST_MARGIN
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState

LISTS = 5
"""So many lists are remembered."""


def whole(state: RunState, n: int, signers: int) -> int:
    """The margin of a roster of ``n`` devices, of whom ``signers`` must sign, where no attempt has failed for it."""
    share = max((LEAST_MARGIN, *state.lists_lost))
    return 0 if state.plan.secure is None else state.plan.secure.margin_of(n, signers, share)


def margin(state: RunState, n: int, signers: int) -> int:
    """What the next list of such a roster has."""
    return whole(state, n, signers) >> state.margin_missed


def short(state: RunState) -> RunState:
    """The state after an attempt that failed for want of the margin alone."""
    return replace(state, margin_missed=state.margin_missed + 1)


def shown(state: RunState, secure: SecureRound) -> RunState:
    """The state whose list is shown."""
    has_all = all(
        len(secure.masked.keys() & set(group.order)) >= group.signers + whole(state, len(group.order), group.signers)
        for group in secure.standing.values()
    )
    return replace(state, margin_missed=0) if has_all and state.margin_missed else state


def ended(state: RunState, secure: SecureRound, lost: int) -> RunState:
    """The state after a list of which so many devices have vanished, as far as anybody can know."""
    last = (*state.lists_lost, -(-1000 * lost // len(secure.masked)))[-LISTS:]
    return replace(state, lists_lost=last if any(last) else ())
