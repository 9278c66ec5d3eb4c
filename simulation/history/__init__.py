"""Reads the record of a run from any store, draws it, makes tables of it, and saves it as a data folder."""

from coordinator.pictures import Curve as Curve
from simulation.history.folder import HistoryError as HistoryError
from simulation.history.folder import writing as writing
from simulation.history.history import History as History
from simulation.history.ledger import copy_blobs as copy_blobs
from simulation.history.ledger import copy_run as copy_run
from simulation.history.recorded_run import WithCurves as WithCurves
from simulation.history.rounds import DeviceWithdrawal as DeviceWithdrawal
from simulation.history.rounds import RoundSummary as RoundSummary
