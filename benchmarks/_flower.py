"""Flower's simulation of the same setting, in a process of its own that plays one round for each line that it reads.

It follows Flower's quickstart for PyTorch: a ServerApp with FedAvg, a ClientApp that loads the weights, trains with
plain SGD and returns them; the default backend, Ray, with one core for each client. Data set, partition and model are
Quorate's, so that both train the same.

``python -m benchmarks._flower SELECT``: waits for a line, plays a round, prints PLAYED, and repeats.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from types import TracebackType
from typing import Any

from benchmarks._process_tree import end, living, spent_s

PLAYED = "a round was played"
MANY = 1000


class Flower:
    """``play`` plays a round; ``cpu_s`` is the CPU time of its processes so far. A context manager."""

    def __init__(self, select: int) -> None:
        """``select``: clients in each round."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._flower", str(select)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"},
        )

    def __enter__(self) -> Flower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(living(self._process.pid))
        self._process.wait()

    def play(self) -> None:
        """Plays one round. SystemExit if Flower has ended."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Flower's process has no pipes")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.strip() == PLAYED:
                return
        raise SystemExit("Flower's simulation ended before its round was played")

    def cpu_s(self) -> float:
        """CPU seconds of all its living processes."""
        return sum(spent_s(process) or 0.0 for process in living(self._process.pid))


@cache
def _clients() -> Any:
    """The data, loaded once in each of Flower's processes."""
    import torch

    from benchmarks.simulation import clients_of

    torch.set_num_threads(1)
    return clients_of()


@cache
def _module() -> Any:
    from simulation.learners import MnistMlp200

    return MnistMlp200()


def _train(message: Any, context: Any) -> Any:
    """One client's epoch."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from torch import nn

    clients, module = _clients(), _module()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = clients[clients.id(int(context.node_config["partition-id"]))].train
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.train()
    for chosen in torch.randperm(len(y)).split(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[chosen]), y[chosen]).backward()
        optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    )
    return Message(content=content, reply_to=message)


def _run(select: int) -> None:
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Paced(FedAvg):
        """FedAvg that waits for a line before each round and prints PLAYED after its aggregation."""

        def configure_train(self, *given: Any, **named: Any) -> Any:
            if not sys.stdin.readline():
                os._exit(0)
            return super().configure_train(*given, **named)

        def aggregate_train(self, *given: Any, **named: Any) -> Any:
            found = super().aggregate_train(*given, **named)
            print(PLAYED, flush=True)
            return found

    client, server = ClientApp(), ServerApp()
    client.train()(_train)

    @server.main()
    def lead(grid: Any, context: Any) -> None:
        total = len(_clients())
        strategy = Paced(
            fraction_train=select / total,
            fraction_evaluate=0.0,
            min_train_nodes=select,
            min_evaluate_nodes=0,
            min_available_nodes=total,
        )
        strategy.start(grid=grid, initial_arrays=ArrayRecord(_module().state_dict()), num_rounds=MANY)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=len(_clients()),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    from benchmarks import _flower  # what Ray's processes import must not be named __main__

    _flower._run(int(sys.argv[1]))
