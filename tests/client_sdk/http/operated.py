"""What an operator of a real ``quorate serve`` does in tests: creates a run, waits for its end, reads its model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from client_sdk.http.operator import OperatorClient
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from tests.coordinator.service.conftest import Server


def create(server: Server, plan: Mapping[str, Any], model: Tensors) -> str:
    """A run of this plan, from this model."""
    with OperatorClient(server.url) as operator:
        return operator.create_run(plan, operator.upload_checkpoint(to_bytes(model)), "a test").run


def wait_for_end(server: Server, run: str, within_s: float = 200) -> Any:
    """The view of the run once it is over."""
    deadline = time.monotonic() + within_s
    with OperatorClient(server.url) as operator:
        while (view := operator.run(run)).status == "running":
            assert time.monotonic() < deadline, operator.rounds(run)
            time.sleep(0.1)
    return view


def model_of(server: Server, run: str) -> Tensors:
    """The newest checkpoint."""
    with OperatorClient(server.url) as operator:
        return from_bytes(operator.checkpoint(operator.checkpoints(run)[-1].digest))
