"""The benchmark of accuracy: updates that go through a quantizer one by one add up to what a masked sum gives."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import masked_accuracy as subject
from client_sdk import codecs
from client_sdk.chance import labelled, sha256_bytes
from client_sdk.secagg.lanes import lane_bits
from client_sdk.tensors import Tensors


@pytest.mark.parametrize("way", [*subject.WAYS.values(), *subject.PLAIN.values()])
def test_the_weighted_mean_of_such_updates_is_that_of_the_summed_lanes(way: subject.Way) -> None:
    """So no mask has to be made to measure what they cost."""
    rng, quantizer, codec = np.random.default_rng(2), way.quantizer, codecs.linear(way.codec)
    deltas: list[Tensors] = [{"w": rng.normal(0, 0.005, 50_890).astype(np.float32)} for _ in range(5)]
    weights, masked = [40, 560, 100, 7, 600], subject.AsIfMasked(None, way, seed=1)
    found = np.average(
        [
            masked.through(delta, weight, f"d{place}", 3)["w"]
            for place, (delta, weight) in enumerate(zip(deltas, weights, strict=True))
        ],
        axis=0,
        weights=weights,
    )
    shared, bits = codecs.shared_seed("1", 3), lane_bits(subject.COHORT, way.q)
    lanes = [
        quantizer.lanes(
            codec.forward(delta["w"], shared),
            weight,
            bits,
            sha256_bytes(labelled("rounding", 1, 3, f"d{place}"), 32),
            "aes-256-ctr",
        )
        for place, (delta, weight) in enumerate(zip(deltas, weights, strict=True))
    ]
    mean, weight = quantizer.mean(np.sum(lanes, axis=0).astype(lanes[0].dtype), 5)
    wanted = codec.back(lambda start, count: mean[start : start + count].astype(np.float32), 50_890, shared)(0, 50_890)
    assert weight == sum(weights)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert float(np.abs(found).max()) > 0.005
