"""Noise in the exact sum of a private round, and the mean that becomes the next model.

The noise is drawn from the round's seed and from what it is added to: another run, round, parent or sum has another
stream. So a commit that is made again after a crash, or on another replica, has the same bits, and no two sums ever
have the same noise, also where the coordinator's folder was set back: the difference of the two would be without any.

Where noise is correlated over rounds (``client_sdk.privacy.correlated``), the key of a round is kept until the run
ends: the noise of later rounds is made of it too. Where the clip adapts (``client_sdk.secagg.clip_bit``), noise is
added to updates in units of the round's clip, to their bits too, and the mean is scaled afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from client_sdk.chance import labelled
from client_sdk.privacy.correlated import Buffers, Integers, Stream
from client_sdk.secagg.agreement import derive
from client_sdk.secagg.clip_bit import kappa_of, part_within
from client_sdk.secagg.noise import DiscreteGaussian
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
    before: Sequence[bytes] = field(default=(), repr=False)
    """The keys of the noise of all committed rounds before, where the mechanism correlates it."""

    def key(self, parent: str, total: bytes, mechanism: str = "gaussian") -> bytes:
        """The key of the noise in the values of the sum with this digest, added to ``parent``: 32 bytes."""
        info = labelled("noise", self.run, self.round, parent, total.hex(), mechanism, "values")
        return derive(self.seed, salt=b"", info=info)


class Noise:
    """The noise of the rounds of one run. Not safe from several threads."""

    def __init__(self, plan: Plan, privacy: Privacy) -> None:
        self._goal = plan.cohort.goal
        self._mechanism, self._correlated = privacy.mechanism, privacy.correlated
        self._strategy = privacy.strategy(plan)
        self._drawn = DiscreteGaussian(Fraction(privacy.deviation(plan)) ** 2)
        self._bit, self._kept = round(privacy.bit(plan) * 2**FRACTION_BITS), privacy.clip * kappa_of(privacy.beta(plan))
        self._stream: Stream | None = None
        """Of a buffered strategy: it stands at the step after those with the keys in ``_ended``."""
        self._ended: list[bytes] = []

    def mean(
        self, total: ExactSum, seed: RoundSeed, parent: str, clip: float = 0.0
    ) -> tuple[Blocks, bytes, float | None]:
        """The sum with its noise, over ``cohort.goal``; the key of that noise, if later rounds need it; and where the
        clip adapts, to this ``clip`` for the round, the part of updates within it."""
        lanes = total.whole_totals()
        digest = hashlib.sha256(lanes.astype("<i8", copy=False).data).digest()
        key = seed.key(parent, digest, self._mechanism)
        lanes += self._of((*seed.before, key), lanes.size)
        unit = np.float64(self._goal) * 2.0**FRACTION_BITS
        if self._bit:
            unit *= self._kept / clip
        within = part_within(int(lanes[-1]), self._bit, self._goal) if self._bit else None
        noised = Computed(lambda start, count: (lanes[start : start + count] / unit).astype(np.float32))
        return noised, key if self._correlated else b"", within

    def _of(self, keys: Sequence[bytes], size: int) -> Integers:
        """The noise of the step whose key is the last."""
        if isinstance(self._strategy, Buffers):
            return self._buffered(self._strategy, keys, size)
        return self._strategy.noise(len(keys), lambda step, level: self._draw(keys[step - 1], level, size))

    def _buffered(self, strategy: Buffers, keys: Sequence[bytes], size: int) -> Integers:
        """Draws again what the process has not, as after a restart: the noise of each step before."""
        ended = len(self._ended)
        if self._stream is None or list(keys[:ended]) != self._ended:
            self._stream, self._ended, ended = Stream(strategy, size), [], 0
        for key in keys[ended:-1]:
            self._stream.end(self._stream.noise(self._draw(key, 0, size)))
            self._ended.append(key)
        return self._stream.noise(self._draw(keys[-1], 0, size))

    def _draw(self, key: bytes, level: int, size: int) -> Integers:
        own = derive(key, salt=b"", info=labelled("noise level", level)) if self._correlated else key
        return self._drawn.draw(own, size)
