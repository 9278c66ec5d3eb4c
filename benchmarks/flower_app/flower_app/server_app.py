"""FedAvg over all nodes; the last model's sum goes to the file that ``result`` names."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_app.task import initial

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    nodes = int(context.run_config["nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes, min_train_nodes=nodes)
    began = time.monotonic()
    found = strategy.start(grid, ArrayRecord(initial()), num_rounds=int(context.run_config["rounds"]))
    last = sum(float(array.sum()) for array in found.arrays.to_numpy_ndarrays())
    losses = [metrics["loss"] for _, metrics in sorted(found.train_metrics_clientapp.items())]
    Path(str(context.run_config["result"])).write_text(f"{last!r} {losses[-1]!r} {time.monotonic() - began!r}\n")
