"""What people see of a secure round's exchanges: counts, bytes and times, and never which device sent what. The fields
are those of ``client_sdk.protocol.operators.SecureView``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from coordinator.engine.secure.holders import needed
from coordinator.engine.secure.plan import CohortSizes, Secure
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import Round

_EXCHANGES = ("advertise", "share", "mask", "agree", "unmask")
_SENT = ("advertised", "shared", "masked", "signed", "revealed")
_PHASES = ("collecting", "sharing", "masking", "agreeing", "unmasking", "committing")


def progress(current: Round, secure: SecureRound, plan: Secure, cohort: CohortSizes) -> dict[str, object]:
    """The attempt under way, exchange by exchange, those that have begun."""
    sent: list[Mapping[str, str]] = [getattr(secure, name) for name in _SENT]
    expected: list[Sized] = [current.members, secure.order, *sent[1:-1]]
    enough = needed(cohort.quorum_count, secure)
    least = [plan.fewest_advertisers(cohort), enough, enough, secure.signers, secure.threshold]
    begins = [secure.began.get(phase) for phase in _PHASES]
    exchanges = [
        {
            "exchange": name,
            "expected": len(expected[place]),
            "came": len(sent[place]),
            "needed": least[place],
            "bytes": secure.bytes.get(_SENT[place], 0),
            "began_at": begins[place],
            "ended_at": begins[place + 1],
        }
        for place, name in enumerate(_EXCHANGES)
        if begins[place] is not None
    ]
    return {
        "attempts": current.attempt + 1,
        "roster": len(secure.order),
        "threshold": secure.threshold,
        "signers": secure.signers,
        "left_out": len(current.excluded),
        "opened": bool(secure.sum),
        "exchanges": exchanges,
    }
