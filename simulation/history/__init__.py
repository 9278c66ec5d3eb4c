"""Reads the record of a run from any store, draws it, makes tables of it, and saves it as a data folder."""

from coordinator.pictures import Curve
from simulation.history.folder import HistoryError, writing
from simulation.history.history import History
from simulation.history.ledger import copy_blobs, copy_run
from simulation.history.recorded_run import WithCurves
from simulation.history.rounds import DeviceWithdrawal, RoundSummary

__all__ = [
    "Curve",
    "DeviceWithdrawal",
    "History",
    "HistoryError",
    "RoundSummary",
    "WithCurves",
    "copy_blobs",
    "copy_run",
    "writing",
]
