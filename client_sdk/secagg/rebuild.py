"""Rebuilds a device's secret from t revealed shares, and checks it against what the device advertised.

The shares are those that match the digests their dealer signed (``share_digests``). Where they do not give the secret
that the dealer committed to, the dealer lied, and nobody else. Errors: BadShare.
"""

from __future__ import annotations

from collections.abc import Mapping

from client_sdk.secagg.advertisement import Advertisement, commitment_to
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shamir import combine


def rebuild_self_mask(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> bytes:
    """The secret behind a survivor's own mask, from the first ``threshold`` of ``shares`` (x -> 33 bytes). BadShare
    where it does not fit the commitment."""
    secret = combine(shares, threshold)
    if commitment_to(secret) != advertised.commitment:
        raise BadShare("the shares do not give the secret that the device committed to")
    return secret


def rebuild_mask_key(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> bytes:
    """The private mask key of a device that dropped out, likewise. BadShare where it does not fit the advertised
    key."""
    secret = combine(shares, threshold)
    if AgreementKey(secret).public != advertised.mask_key:
        raise BadShare("the shares do not give the private half of the key that the device advertised")
    return secret
