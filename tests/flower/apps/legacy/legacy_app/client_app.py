"""A NumPyClient for each partition."""

from __future__ import annotations

import numpy as np
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context, Scalar

from legacy_app import task


class Regression(NumPyClient):
    """Trains on one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """Local steps."""
        trained, loss = task.train(parameters, self.partition, steps=int(config["steps"]))
        return trained, len(task.data(self.partition)[0]), {"loss": loss}

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """The loss."""
        loss = task.loss(parameters, self.partition)
        return loss, len(task.data(self.partition)[0]), {"loss": loss}


def client_fn(context: Context) -> Client:
    """The client of this node's partition."""
    return Regression(int(context.node_config["partition-id"])).to_client()


app = ClientApp(client_fn=client_fn)
