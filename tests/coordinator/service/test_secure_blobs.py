"""What a lying device names is not its own: blobs of others survive it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureSigned
from client_sdk.tensors import Tensors
from tests.coordinator.served import RUN, Served
from tests.coordinator.service.wire import kind


class Half(Served):
    """A model of float16, whose checkpoint is shorter than a masked vector."""

    def model(self) -> Tensors:
        return {"w": np.linspace(-1, 1, self.dimension).astype(np.float16)}


@pytest.fixture
def world() -> Iterator[Half]:
    made = Half(dimension=2000)
    yield made
    made.close()


def test_repro_a_refused_masked_vector_deletes_no_blob_of_others(world: Half) -> None:
    """A device that sent a checkpoint's bytes as a second vector, unsigned, had their digest recorded as a refused
    one: with the round's blobs the checkpoint was deleted."""
    world.secure_run()
    world.begin()
    world.play(lambda: world.state.phase == "agreeing")
    checkpoint = world.state.checkpoint
    body = world.stored()[checkpoint]
    told = world.ask(
        world.phones[0], "PUT", Route.SECURE_MESSAGE, body=body, beside=SecureSigned(signature=""), stage="mask"
    )
    assert kind(told) == "duplicate"
    assert not [row for row in world.store.refusals(RUN, 1) if row.digest is not None], "its bytes are not read"
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1
    assert {row.digest for row in world.store.checkpoints(RUN)} <= set(world.stored())
