"""Benchmarks: one command each (``python -m benchmarks.<topic>``), with ``--quick`` and ``--json``."""
