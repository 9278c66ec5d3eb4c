"""FedAvg of the older API, which sends to each node from a thread of its own."""

from __future__ import annotations

import random

import numpy as np
from flwr.common import Context, Metrics, Parameters, Scalar, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from legacy_app.task import first_model, leave

numbers: dict[str, object] = {}


def weighted(metrics: list[tuple[int, Metrics]]) -> Metrics:
    """The mean of the losses, by examples."""
    examples = sum(count for count, _ in metrics)
    return {"loss": sum(count * float(found["loss"]) for count, found in metrics) / examples}


def evaluate(server_round: int, model: list[np.ndarray], config: dict[str, Scalar]) -> None:
    """Keep the model of each round; leave them all after each, since the older API has no last word."""
    numbers[str(server_round)] = [part.tolist() for part in model]
    leave(numbers)


def fit_metrics(metrics: list[tuple[int, Metrics]]) -> Metrics:
    """Keep the metrics of training."""
    found = weighted(metrics)
    numbers[f"fit {len(numbers)}"] = dict(found)
    return found


def evaluate_metrics(metrics: list[tuple[int, Metrics]]) -> Metrics:
    """Keep the metrics of evaluation."""
    found = weighted(metrics)
    numbers[f"evaluate {len(numbers)}"] = dict(found)
    leave(numbers)
    return found


def server_fn(context: Context) -> ServerAppComponents:
    """All five clients train and evaluate."""
    random.seed(5)
    np.random.seed(5)
    first: Parameters = ndarrays_to_parameters(first_model())
    strategy = FedAvg(
        min_fit_clients=5,
        min_evaluate_clients=5,
        min_available_clients=5,
        initial_parameters=first,
        evaluate_fn=evaluate,
        fit_metrics_aggregation_fn=fit_metrics,
        evaluate_metrics_aggregation_fn=evaluate_metrics,
        on_fit_config_fn=lambda server_round: {"steps": 3 + server_round},
    )
    rounds = int(context.run_config.get("rounds", 2))
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


app = ServerApp(server_fn=server_fn)
