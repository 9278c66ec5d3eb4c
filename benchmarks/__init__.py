"""Benchmarks: one command each (``python -m benchmarks.<topic>``), with ``--quick`` and ``--json``."""

import sys
from pathlib import Path

# A benchmark that is run as a file would import files of this folder (coordinator.py) in place of our packages.
sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]
