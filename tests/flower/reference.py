"""Runs apps under Flower's own simulation, all in one process, and writes their numbers as JSON.

``python -m tests.flower.reference FILE APP_DIR ...``: Ray starts once for all of them, which takes most of the time.
``numbers.json`` was written so; a test writes them again and compares.
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
    folders = [Path(argument) for argument in sys.argv[2:]]
    sys.path[:0] = [str(folder) for folder in folders]
    from importlib import import_module

    from flwr.simulation import run_simulation

    found = {}
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        # The names of Ray's sockets have a limit of some 100 characters, and a test's temporary folder is long.
        start = {"num_cpus": 2, "_temp_dir": scratch}
        for folder in folders:
            package, numbers = f"{folder.name}_app", Path(scratch) / f"{folder.name}.json"
            os.environ["NUMBERS"] = str(numbers)
            run_simulation(
                import_module(f"{package}.server_app").app,
                import_module(f"{package}.client_app").app,
                NODES,
                backend_config={"init_args": start, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
            )
            found[folder.name] = json.loads(numbers.read_text())
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    os._exit(0)  # Ray takes its time to end; its processes see that this one is gone


if __name__ == "__main__":
    main()
