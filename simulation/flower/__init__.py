"""Flower apps in one process: a coordinator, its table of requests without sockets, and nodes whose ClientApps work in
resident processes, one for each core. It needs the extras ``simulation`` and ``flower``."""

from simulation.flower.simulated import simulated

__all__ = ["simulated"]
