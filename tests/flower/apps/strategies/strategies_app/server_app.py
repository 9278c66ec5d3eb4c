"""Runs FedAvg, FedAdam, FedProx, Krum and FedAvg with differential privacy, each from the same first model."""

from __future__ import annotations

import random

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
    Krum,
    Strategy,
)

from strategies_app.task import first_model, leave

app = ServerApp()


def strategies() -> dict[str, Strategy]:
    """Each with all five nodes."""
    all_ = {"min_available_nodes": 5, "min_train_nodes": 5, "min_evaluate_nodes": 5}
    return {
        "FedAvg": FedAvg(**all_),
        "FedAdam": FedAdam(**all_, eta=0.05),
        "FedProx": FedProx(**all_, proximal_mu=0.5),
        "Krum": Krum(**all_, num_malicious_nodes=1),
        "DP": DifferentialPrivacyServerSideFixedClipping(
            FedAvg(**all_), noise_multiplier=0.1, clipping_norm=0.5, num_sampled_clients=5
        ),
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Leave the model and the metrics of each strategy."""
    numbers = {}
    for name, strategy in strategies().items():
        random.seed(5)
        np.random.seed(5)
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(first_model()),
            num_rounds=int(context.run_config.get("rounds", 2)),
            train_config=ConfigRecord({"steps": 5}),
            timeout=600,
        )
        numbers[name] = {
            "model": [part.tolist() for part in result.arrays.to_numpy_ndarrays()],
            "train": {str(key): dict(record) for key, record in result.train_metrics_clientapp.items()},
            "evaluate": {str(key): dict(record) for key, record in result.evaluate_metrics_clientapp.items()},
        }
    leave(numbers)
