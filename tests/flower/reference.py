"""Runs apps under Flower's own simulation, all in one process, and prints their numbers as JSON.

``python -m tests.flower.reference APP_DIR ...``: Ray starts once for all of them, which takes most of the time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

NODES = 5


def main() -> None:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folders = [Path(argument) for argument in sys.argv[1:]]
    sys.path[:0] = [str(folder) for folder in folders]
    from importlib import import_module

    from flwr.simulation import run_simulation

    found = {}
    for folder in folders:
        package = f"{folder.name}_app"
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            os.environ["NUMBERS"] = file.name
            run_simulation(
                import_module(f"{package}.server_app").app,
                import_module(f"{package}.client_app").app,
                NODES,
                backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
            )
            found[folder.name] = json.loads(Path(file.name).read_text())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
