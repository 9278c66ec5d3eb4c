"""Noise in the exact sum of a private round, and the mean that becomes the next model.

The noise is drawn from the round's seed and from what it is added to: another run, round, parent or sum has another
stream. So a commit that is made again after a crash, or on another replica, has the same bits, and no two sums ever
have the same noise, also where the coordinator's folder was set back: the difference of the two would be without any.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from client_sdk.chance import labelled
from client_sdk.privacy.noise import DiscreteGaussian
from client_sdk.secagg.agreement import derive
from client_sdk.tensors.exact_sum import FRACTION_BITS, ExactSum
from coordinator.engine.aggregation.combining import Blocks, Computed
from coordinator.engine.plan import Plan
from coordinator.engine.privacy import Privacy

SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class RoundSeed:
    """The secret seed of a round's noise."""

    run: str
    round: int
    seed: bytes = field(repr=False)

    def key(self, parent: str, total: bytes) -> bytes:
        """The key of the noise in the values of the sum with this digest, added to ``parent``: 32 bytes."""
        info = labelled("noise", self.run, self.round, parent, total.hex(), "gaussian", "values")
        return derive(self.seed, salt=b"", info=info)


def noised_mean(total: ExactSum, plan: Plan, privacy: Privacy, seed: RoundSeed, parent: str) -> Blocks:
    """The sum with its noise, over ``cohort.goal``."""
    lanes = total.whole_totals()
    key = seed.key(parent, hashlib.sha256(lanes.astype("<i8", copy=False).data).digest())
    lanes += DiscreteGaussian(Fraction(privacy.deviation(plan)) ** 2).draw(key, lanes.size)
    unit = np.float64(plan.cohort.goal) * 2.0**FRACTION_BITS
    return Computed(lambda start, count: (lanes[start : start + count] / unit).astype(np.float32))
