"""Flower's simulation of an app in a folder: ``python -m benchmarks._flower_simulation APP_DIR NODES RESULT``."""

from __future__ import annotations

import sys
from pathlib import Path


def run(folder: Path, nodes: int, result: str) -> None:
    """Three rounds by ``run_simulation`` with its default backend, one core for each client."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    sys.path.insert(0, str(folder))
    from flower_app import client_app, server_app

    outer = ServerApp()

    @outer.main()
    def _(grid: Grid, context: Context) -> None:
        context.run_config = {"rounds": 3, "nodes": nodes, "result": result}
        server_app.main(grid, context)

    run_simulation(
        server_app=outer,
        client_app=client_app.app,
        num_supernodes=nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
