"""Exchange 3 on the device: its contribution as lanes, under its own mask and one mask with each peer that shared."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from client_sdk.secagg.actions import DeviceContribution, Primitives
from client_sdk.secagg.advertisement import AttemptSecrets
from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import cut, pack
from client_sdk.secagg.masks import pair_sign, self_seed
from client_sdk.secagg.quantize import ROUNDING_BYTES, largest, rounding_key
from client_sdk.secagg.roster import MaskingCohort


def require_fitting(header: AttemptHeader, put_in: DeviceContribution) -> None:
    """Raise Refusal where the contribution cannot be masked under ``header``."""
    values, weight = put_in.values, put_in.weight
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise Refusal("This device's update is not an array of float32.")
    if values.shape != (header.dimension,):
        raise Refusal("This device's update has another number of values than the header says.")
    if put_in.tensors != tuple((one.elements, one.non_negative) for one in header.statistics):
        raise Refusal("This device's model has other statistics than the header says.")
    if put_in.statistics.shape != (sum(size for size, _ in put_in.tensors),):
        raise Refusal("This device's update has another number of values of statistics than its tensors.")
    if not math.isfinite(largest(values)) or not math.isfinite(largest(put_in.statistics)):
        raise Refusal("This device's update holds NaN or infinity.")
    if not header.quantizer.takes_weight(weight):
        raise Refusal("This device's weight is not within the header's cap.")
    if len(put_in.rounding_secret) != ROUNDING_BYTES:
        raise Refusal(f"This device's rounding secret is not {ROUNDING_BYTES} bytes.")


def masked_vector(
    cohort: MaskingCohort,
    place: int,
    secrets: AttemptSecrets,
    peers: Iterable[int],
    put_in: DeviceContribution,
    tools: Primitives,
) -> bytes:
    """The packed vector of the device at ``place``, masked with each of ``peers`` (places). Where it fails, no partly
    masked vector is left in memory."""
    header, bits = cohort.header, cohort.roster.lane_bits
    rounding = rounding_key(put_in.rounding_secret, header.digest)
    quantizer = header.quantizer
    vector = quantizer.lanes(put_in.values, put_in.weight, bits, rounding, put_in.statistics)
    masker = tools.masker(bits)
    try:
        masker.apply(vector, self_seed(secrets.self_mask, cohort.h, place), 1)
        for peer in peers:
            agreed = tools.agree(secrets.mask_key, cohort.roster.entries[peer].advertisement.mask_key)
            masker.apply(vector, tools.pair_seed(agreed, cohort.h, place, peer), pair_sign(place, peer))
    except BaseException:
        vector[:] = 0
        raise
    finally:
        masker.wipe()
    cut(vector, bits)
    return pack(vector, bits)
