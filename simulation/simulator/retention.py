"""Which checkpoints of a simulation without a folder stay: the first, the best and the newest.

A run in a data folder keeps its whole line, which ``quorate verify`` checks and a coordinator serves. A run in a
temporary folder would fill the disk: a large model, once for each round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from client_sdk.protocol.devices import Score
from coordinator.engine.plan import Finish
from simulation.simulator.checks import require_whole
from simulation.simulator.options import Keep
from simulation.simulator.scoring import CENTRAL, CLIENTS

MOST_BYTES = 2**30
"""Bytes of the newest checkpoints in a temporary folder, where the user names no number."""
_FEWEST = 2
"""Newest checkpoints that stay, however large they are: the model of the round under way is one of them."""


def newest_to_keep(keep: Keep, in_folder: bool, model_bytes: int) -> int | None:
    """How many of the newest checkpoints stay; None: all. ValueError for a bad ``keep``."""
    if keep == "all" or (keep is None and in_folder):
        return None
    if keep is None:
        return max(_FEWEST, MOST_BYTES // max(1, model_bytes))
    require_whole("keep_checkpoints", keep, 1)
    if in_folder:
        raise ValueError(
            f"keep_checkpoints={keep} is for a simulation without folder=: a data folder keeps all checkpoints of a run"
        )
    return keep


class Retained:
    """The checkpoints that stay. ``added`` for each new one, in order."""

    def __init__(self, newest: int | None, finish: Finish) -> None:
        """``finish``: of the plan; the metric that it watches decides which checkpoint is the best. Without one it is
        the accuracy, or the loss where there is no accuracy, of the central scores or those of clients."""
        self._most = newest
        self._finish = finish
        self._first: str | None = None
        self._newest: deque[str] = deque()
        self._best: tuple[float, str] | None = None

    def added(self, digest: str, scores: Mapping[str, Score]) -> set[str]:
        """Adds a checkpoint with its scores by source; returns the digests of those that need not stay any longer."""
        if self._most is None:
            return set()
        going = set()
        value = self._goodness(scores)
        if value is not None and (self._best is None or value > self._best[0]):
            if self._best is not None:
                going.add(self._best[1])
            self._best = value, digest
        self._first = self._first or digest
        self._newest.append(digest)
        while len(self._newest) > self._most:
            going.add(self._newest.popleft())
        return going - {self._first, *self._newest, *((self._best[1],) if self._best else ())}

    def _goodness(self, scores: Mapping[str, Score]) -> float | None:
        """A value that is higher for a better model; None where there is no score."""
        finish = self._finish
        if finish.metric is not None:
            found = scores.get(finish.source)
            value = None if found is None else found.metrics.get(finish.metric)
            return value if value is None or finish.better == "higher" else -value
        for source in (CENTRAL, CLIENTS):
            metrics = scores[source].metrics if source in scores else {}
            if "accuracy" in metrics:
                return metrics["accuracy"]
            if "loss" in metrics:
                return -metrics["loss"]
        return None
