"""What people see of a secure round's exchanges: counts, bytes and times, and never which device sent what. The fields
are those of ``client_sdk.protocol.operators.SecureView``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from client_sdk.protocol.operators import EXCHANGES, AttemptView, ExchangeView
from coordinator.engine.plan import Cohort
from coordinator.engine.secure.holders import needed
from coordinator.engine.secure.plan import Secure
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import Round

_SENT = ("advertised", "shared", "masked", "signed", "revealed")
_PHASES = ("collecting", "sharing", "masking", "agreeing", "unmasking", "committing")


def progress(current: Round, secure: SecureRound, plan: Secure, cohort: Cohort) -> dict[str, object]:
    """The attempt under way and those before it, exchange by exchange, those that have begun."""
    return {
        "attempts": current.attempt + 1,
        **_numbers(secure),
        **(_divided(secure) if len(secure.groups) > 1 else {}),
        "excluded": len(current.excluded),
        "opened": bool(secure.sums),
        "exchanges": [one.model_dump() for one in _exchanges(current, secure, plan, cohort)],
        "earlier": [attempt.model_dump(mode="json") for attempt in current.earlier],
    }


def given_up(current: Round, secure: SecureRound, plan: Secure, cohort: Cohort, reason: str, at: float) -> AttemptView:
    """The attempt under way, which ends now."""
    return AttemptView(
        reason=reason,
        ended_at=at,
        **_numbers(secure),
        exchanges=_exchanges(current, secure, plan, cohort),
    )


def _numbers(secure: SecureRound) -> dict[str, int]:
    """Of the roster, and of its largest group."""
    return {
        "roster": len(secure.group_of),
        "threshold": max((group.threshold for group in secure.groups), default=0),
        "signers": max((group.signers for group in secure.groups), default=0),
    }


def _divided(secure: SecureRound) -> dict[str, object]:
    """Of several groups."""
    orders = [secure.groups[number].order for number in sorted(secure.sums)]
    sums = [len(secure.masked.keys() & set(order)) for order in orders]
    return {"groups": len(secure.groups), "fallen": len(secure.fallen), "sums": sums}


def _exchanges(current: Round, secure: SecureRound, plan: Secure, cohort: Cohort) -> tuple[ExchangeView, ...]:
    sent: list[Mapping[str, str]] = [getattr(secure, name) for name in _SENT]
    expected: list[Sized] = [current.members, secure.group_of, *sent[1:-1]]
    enough, listed = needed(cohort.quorum_count, secure), needed(cohort.quorum_count, secure, listed=True)
    standing = secure.standing.values()
    signers, threshold = sum(group.signers for group in standing), sum(group.threshold for group in standing)
    least = [plan.fewest_advertisers(cohort), enough, listed, signers, threshold]
    begins = [secure.began.get(phase) for phase in _PHASES]
    return tuple(
        ExchangeView(
            exchange=name,
            expected=len(expected[place]),
            came=len(sent[place]),
            needed=least[place],
            bytes=secure.bytes.get(_SENT[place], 0),
            began_at=began_at,
            ended_at=begins[place + 1],
        )
        for place, name in enumerate(EXCHANGES)
        if (began_at := begins[place]) is not None
    )
