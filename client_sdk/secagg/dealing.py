"""Exchange 2 on the device: its two secrets are split and sealed for the holders, and the peers' shares are opened
and compared with the digests that their dealers signed.

The coefficients of Shamir's polynomials are no fresh entropy: they are the key stream of
HKDF(dealing secret, salt = h, info = domain, kind of secret). So one roster has one bundle, whatever the device has
forgotten in between: a storage that is set back deals the same shares, and seals the same bytes with the same AES-GCM
key and nonce. Another roster has another h, so other polynomials and other keys. Errors: BadParameters, Unopened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.advertisement import AttemptSecrets
from client_sdk.secagg.agreement import derive
from client_sdk.secagg.errors import BadMessage, BadShare, Unopened
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shares import Bundle, SharePair
from client_sdk.secagg.statement import DOMAIN
from client_sdk.secagg.stream import KeyStream

SecretKind = Literal["self-mask", "mask-key"]

_UNIT = 64


def coefficients(dealing: bytes, h: bytes, kind: SecretKind) -> Callable[[int], bytes]:
    """The source of the coefficients for one secret of an attempt, for one call: ``dealing`` is its dealing secret."""
    key = derive(dealing, salt=h, info=DOMAIN + b"dealing " + kind.encode())

    def draw(length: int) -> bytes:
        stream = KeyStream(-(-length // _UNIT) * _UNIT)
        stream.start(key)
        drawn = stream.take(length).tobytes()
        stream.wipe()
        return drawn

    return draw


def deal(
    cohort: MaskingCohort, place: int, secrets: AttemptSecrets, tools: Primitives
) -> tuple[Bundle, dict[int, SharePair]]:
    """The bundle of the device at ``place`` for its holders, and the pair that it holds of its own secrets (by place;
    none on a ring)."""
    holders, threshold = cohort.graph.holders(place), cohort.parameters.threshold
    xs = [holder + 1 for holder in holders]
    seeds = tools.split(secrets.self_mask, xs, threshold, coefficients(secrets.dealing, cohort.h, "self-mask"))
    keys = tools.split(secrets.mask_key.private, xs, threshold, coefficients(secrets.dealing, cohort.h, "mask-key"))
    rows, own = [], dict[int, SharePair]()
    dealer = (place, cohort.device(place))
    for holder, seed, key in zip(holders, seeds, keys, strict=True):
        pair = SharePair(seed, key)
        if holder == place:
            own[place] = pair
            continue
        agreed = tools.agree(secrets.share_key, cohort.roster.entries[holder].advertisement.share_key)
        sealed = tools.seal(agreed, cohort.h, dealer, (holder, cohort.device(holder)), pair)
        rows.append((holder, sealed, pair.digests(cohort.h, place, holder)))
    digests = own[place].digests(cohort.h, place, place) if own else b""
    return Bundle(place, tuple(rows), digests), own


def take(
    cohort: MaskingCohort, place: int, secrets: AttemptSecrets, delivered: Bundle, tools: Primitives
) -> dict[int, SharePair]:
    """The pairs that peers sealed for the device at ``place``, by dealer. Unopened, which names every dealer whose pair
    does not open or is not the one whose digests it signed; BadMessage where the delivery is not for this device, or
    not of its neighbours."""
    if delivered.owner != place or delivered.own or not set(delivered.places) <= set(cohort.graph.neighbours(place)):
        raise BadMessage("shares were delivered that are not for this device, or not of its neighbours")
    holder = (place, cohort.device(place))
    taken: dict[int, SharePair] = {}
    unopened: dict[str, str] = {}
    for dealer, sealed, digests in delivered.rows:
        agreed = tools.agree(secrets.share_key, cohort.roster.entries[dealer].advertisement.share_key)
        name = cohort.device(dealer)
        try:
            taken[dealer] = tools.unseal(agreed, cohort.h, (dealer, name), holder, sealed)
            taken[dealer].require_dealt(cohort.h, dealer, place, digests)
        except BadShare as error:
            unopened[name] = str(error)
    if unopened:
        raise Unopened(tuple(unopened), next(iter(unopened.values())))
    return taken
