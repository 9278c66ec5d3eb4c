"""What a plan is said to cost in bytes, beside the messages that devices really send and receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks._secagg_bytes import around_the_vector
from benchmarks._secagg_crowd import STRICT, Crowd, OneDevice, header_of
from client_sdk.protocol.devices import Work
from client_sdk.protocol.insight import CheckPlan
from client_sdk.secagg.header import GraphRule
from client_sdk.tensors import Layout, Manifest, to_bytes
from client_sdk.update import Seconds, Update, encode_update
from coordinator.runtime.insight.plan_check import of_secure_round, of_update
from tests.coordinator.runtime.insight.test_plan_check import any_run, uploaded
from tests.coordinator.world import World

RING = GraphRule(profile="fast", drop=4, corrupt_millionths=100_000, sigma=80, eta=30)


def costs(world: World, init: str, **sections: Any) -> dict[str, float]:
    asked = CheckPlan(plan=world.plan(**sections), init=init)
    return {line.name: line.value for line in world.coordinator.insight.plans.check(asked, permitted=any_run).cost}


@pytest.mark.parametrize("codec", ["float32@1", "float16@1", "stochastic8@1"])
def test_repro_a_plan_costs_the_bytes_of_the_files_with_their_headers(codec: str) -> None:
    """It said 264 bytes of a file of 392, and 65.8 kB of an update of 600."""
    world = World(4)
    init = uploaded(world)
    found = costs(world, init, task={"codec": codec})
    assert found["device_download_bytes"] == len(to_bytes(world.model())) == world.blobs.size(init)
    body = world.body(0, 1, codec=codec)
    assert found["device_upload_bytes"] == pytest.approx(len(body), abs=200)
    assert found["round_upload_bytes"] == 4 * found["device_upload_bytes"]
    assert found["round_download_bytes"] == 4 * found["device_download_bytes"]


def test_an_update_of_a_device_that_reports_times_and_two_metrics_is_as_long_as_said() -> None:
    delta = {"layer.0.weight": np.full((64, 32), 0.1234, np.float32)}
    metrics = {"loss": 0.12345678901234567, "accuracy": 0.9876543210987654}
    work = Work(steps=90, steps_planned=90, epochs=2.8125, examples_seen=2880)
    update = Update(delta, 1024, work=work, metrics=metrics)
    seconds = Seconds(fetch_s=0.012345678901234567, train_s=1.2345678901234567, encode_s=0.0012345678901234567)
    body = encode_update(update, "float32@1", "marks", 17, 0, seconds)
    assert of_update("marks", "float32@1", Layout.of(Manifest.of(delta), ("*",), {})).sent == pytest.approx(
        len(body), abs=60
    )


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rule"), [(64, STRICT), (81, STRICT), (150, RING)], ids=["64", "81", "ring"])
def test_the_messages_of_a_secure_round_have_the_bytes_that_devices_send_and_receive(n: int, rule: GraphRule) -> None:
    crowd = Crowd(n, header_of(rule, 1))
    crowd.share()
    around = around_the_vector(OneDevice(crowd)) - len(crowd.header.encoded)
    vector = 12_345
    said = of_secure_round(crowd.cohort.parameters, vector, n)
    assert said.sent + said.received - vector == pytest.approx(around, rel=0.02)
    assert said.sent > vector
