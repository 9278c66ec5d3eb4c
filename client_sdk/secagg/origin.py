"""Where a run's model comes from: what a device knows of each run's last model, and how far from it the next may be.

A device knows the first model of a run because it makes it itself, by the learner's ``initial(seed)``, or because
somebody whom its owner trusts has signed it. After that it knows the last model that it has accepted, by its sketch
(``nearness``), its version, and the time by its own clock; or a later version that somebody has signed, as after a
round in a datacenter, which moves a model anywhere. A later one is no further away than the rounds between can
have moved it: by at most ``Terms.reach`` each, of which it believes at most one per ``shortest_round_s``, and one more.
Of a run that it has not seen before it cannot know the age, so it believes ``late_moves`` rounds.

The sketch estimates a distance to a tenth or so; ``ROOM`` makes up for this. It leaves out statistics of a
normalization, and tensors that a strategy shares: these are not bounded here. Distance does not prove origin.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.identity_keys import require_signed
from client_sdk.identity import Signer
from client_sdk.secagg.consent import SecurePolicy, moves_too_far
from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import Terms
from client_sdk.secagg.memory import Known
from client_sdk.secagg.nearness import distance
from client_sdk.secagg.statement import DIGEST_BYTES

ROOM = 1.5
"""By which an estimated distance may be above the bound: more than four standard deviations of the estimate, and the
rounding of a sum."""
CLOSE = 1e-5
"""By which a tensor may differ from the learner's own, in L2, as a part of its norm: other machines add in other
orders."""
_STATEMENT = b"quorate first model 1\x00"
_LATER = b"quorate later model 1\x00"


def statement_of(model: bytes, run: str = "", version: int = 0) -> bytes:
    """What is signed under a first model, of any run, or under a later ``version`` of this ``run``. ``model``:
    ``contribution.model_digest`` of it."""
    if len(model) != DIGEST_BYTES:
        raise ValueError(f"a model's digest has {DIGEST_BYTES} bytes, not {len(model)}")
    return _STATEMENT + model if version == 0 else _LATER + version.to_bytes(8, "big") + model + run.encode()


def sign_model(signer: Signer, model: bytes, run: str = "", version: int = 0) -> bytes:
    """The signature of the authority, or of another key that owners trust, under such a model: 64 bytes."""
    return signer.sign(statement_of(model, run, version))


@dataclass(frozen=True, kw_only=True, slots=True)
class First:
    """What a device found out of a run's first model, or of a later one that is said to be signed."""

    version: int = 0
    sketch: bytes = b""
    """Of that model; empty where this device does not have it."""
    made: bool = False
    """The device has made it itself, by the learner's ``initial(seed)``."""
    differs: str = ""
    """The received model is said to be that one, and is another: in this tensor."""
    signed: bytes = b""
    """The digest under which its signature must stand."""
    can_make: bool = False
    """Whether this device's learner makes first models."""


def require_origin(first: First, signature: bytes, policy: SecurePolicy, authority: bytes, run: str = "") -> None:
    """Raise Refusal where the owner's policy takes no run of this ``first`` model, or no trusted key has signed the
    later one. ``authority``: its public key."""
    keys = (authority, *map(bytes.fromhex, policy.model_keys))
    if policy.origins == "any" and (policy.largest_move is None or not first.version):
        return
    if first.version:
        if not _is_signed(statement_of(first.signed, run, first.version), signature, keys):
            raise Refusal(
                f"The signature under version {first.version} of the run's model is of no key that this device trusts, "
                "or is of another run, version or model.",
                final=True,
            )
        return
    if first.differs:
        raise Refusal(
            f"This model is not the one that the learner makes of the run's seed: {first.differs} is another.",
            final=True,
        )
    if first.made or (first.signed and _is_signed(statement_of(first.signed), signature, keys)):
        return
    if first.signed:
        raise Refusal("The signature under the run's first model is of no key that this device trusts.", final=True)
    if first.can_make or policy.origins == "signed":
        raise Refusal(
            "This device does not know where the run's model comes from: the run says neither of which seed its "
            "learner makes it, nor who has signed it.",
            final=True,
        )


def _is_signed(statement: bytes, signature: bytes, keys: Collection[bytes]) -> bool:
    for key in keys:
        try:
            require_signed(key, statement, signature, "a model")
        except CredentialError:
            continue
        return True
    return False


def require_reachable(
    terms: Terms, policy: SecurePolicy, known: Known | None, first: First, now: Known, values: int
) -> None:
    """Raise Refusal where the rounds since ``known``, the last model of this run that this device has accepted, or
    since the ``first`` or signed one, cannot have led to the model of ``now``. ``values``: how many parameters are
    averaged."""
    if policy.largest_move is None:
        return
    reach = terms.reach_with_noise(values)
    if further := moves_too_far(terms, policy, values):
        raise Refusal(further, final=True)
    if known is not None and (not first.version or known.version >= first.version):
        origin, moves = known.sketch, min(max(1, abs(now.version - known.version)), _believed(known, now, policy))
    elif first.sketch and not (first.made and now.version == 0):  # that was compared already
        origin, moves = first.sketch, min(now.version - first.version, policy.late_moves)
    else:
        return
    if distance(now.sketch, origin, unmeasured=math.inf) > ROOM * moves * reach:
        raise Refusal("This model is further from the last one that this device knows than rounds move it.", final=True)


def _believed(known: Known, now: Known, policy: SecurePolicy) -> float:
    return 1 + max(0.0, now.at - known.at) / policy.shortest_round_s
