"""Benchmarks: one command each (``python -m benchmarks.<topic>``), with ``--quick`` and ``--json``."""

import sys
from pathlib import Path

# Run as a file, a benchmark would find its neighbours here before the packages that it measures: coordinator.py, say.
sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]
