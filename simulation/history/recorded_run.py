"""``RecordedRun``: a read-only view of a run in a store and its blobs.

It reads a simulation in this process, the folder of a finished one, and the folder of a deployed coordinator in the
same way, because all three have the same rows.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

import numpy as np

from client_sdk.protocol.insight import DeviceParticipation
from client_sdk.protocol.operators import CheckpointView, MetricView
from client_sdk.tensors import Tensors, from_bytes
from client_sdk.tensors.manifest import of_model
from coordinator.blobs import BlobError, Missing
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.folding.refold import Readable
from coordinator.pictures import Curve
from coordinator.runtime import views
from coordinator.runtime.insight.participation import ParticipationLog, registered
from coordinator.store.port import EventRow, RunRow, Store, StoreError
from simulation.history import folder as folders
from simulation.history.folder import HistoryError
from simulation.history.local_steps import Steps
from simulation.history.rounds import (
    DeviceWithdrawal,
    RoundExchange,
    RoundSummary,
    current_state,
    read_events,
    read_exchanges,
    read_rounds,
    withdrawal_of,
)

TRAINING = "training"
"""The source of metrics that devices measure during training, averaged over a round's counted updates."""


NOT_DETERMINISTIC = "; its learner is declared not deterministic"
RESUMED_UNCHECKED = "simulate.resume, not deterministic"
"""The action in the audit where a run was resumed with such a learner."""
PROTECTS_NOBODY = "; its noise follows from the simulation's seed and protects nobody"
"""In the origin of a simulated run whose plan has ``[privacy]``."""
UNMASKED = "; secure rounds are simulated without masks"
"""The end of the origin of a simulated run whose secure rounds were only quantized."""


def curves_of(
    scores: Iterable[tuple[tuple[str, str], tuple[int, float]]],
) -> Mapping[tuple[str, str], Curve]:
    """The curves of scores, each ((source, name), (version, value)), in the order of the versions."""
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for key, point in scores:
        points.setdefault(key, []).append(point)
    return MappingProxyType({key: Curve.of(points[key]) for key in sorted(points)})


class WithCurves(ABC):
    """An object with a curve for each of its metrics: a ``History``, or a ``Baseline`` of the recipes."""

    @property
    @abstractmethod
    def curves(self) -> Mapping[tuple[str, str], Curve]:
        """Every metric as a curve, by (source, name)."""

    @abstractmethod
    def _called(self) -> str:
        """What it is called, at the beginning of a sentence."""

    def better(self, name: str) -> Literal["higher", "lower"]:
        """Which way is better: lower for losses, errors and perplexities, higher for the rest."""
        return "lower" if any(word in name.lower() for word in ("loss", "error", "perplexity")) else "higher"

    def metric(self, name: str, source: str = "evaluator") -> Curve:
        """(versions, values) of one metric. HistoryError lists the metrics that exist."""
        curves = self.curves
        if (source, name) not in curves:
            there = ", ".join(f"{name} of {source}" for source, name in curves) or "none at all"
            raise HistoryError(f"{self._called()} has no metric {name!r} of {source!r}; there is {there}.")
        return curves[source, name]

    def final(self, name: str, source: str = "evaluator") -> float:
        """The value at the newest version that was scored."""
        return float(self.metric(name, source).values[-1])

    def best(
        self, name: str, source: str = "evaluator", better: Literal["higher", "lower"] | None = None
    ) -> tuple[int, float]:
        """(version, value) where the metric was best; the first of equal ones. ``better``: which way is better; None:
        see the method of that name."""
        versions, values = self.metric(name, source)
        place = int(np.argmin(values) if (better or self.better(name)) == "lower" else np.argmax(values))
        return int(versions[place]), float(values[place])


class RecordedRun(WithCurves):
    """One run: its rounds, metrics, participation and checkpoints.

    ``store`` and ``blobs``: where the run is. ``run`` may be left out where there is only one. ``interrupted``: the
    simulation was stopped by its user. ``wall``: seconds that each round took on this machine, from the first on, or by
    round. HistoryError where there is no such run. ``len(run)`` is the number of committed rounds.
    """

    def __init__(
        self,
        store: Store,
        blobs: Readable,
        run: str | None = None,
        *,
        interrupted: bool = False,
        wall: Sequence[float] | Mapping[int, float] = (),
        place: object = "this store",
        clients: Mapping[str, str] | None = None,
    ) -> None:
        """``clients``: those that could take part, with their classes, also where the store does not know them yet."""
        self._store = store
        self._blobs = blobs
        self.run: str = folders.pick(store, run, place)
        self.interrupted = interrupted
        self._wall = dict(wall) if isinstance(wall, Mapping) else dict(enumerate(wall, 1))
        self._state_at: tuple[int, RunState] | None = None
        self._clients = dict(clients or {})
        self._taken_part = ParticipationLog(self.run)
        self._counted: Counter[str] = Counter()
        self._counted_to = 0
        self._withdrew: list[DeviceWithdrawal] = []
        self._withdrew_to = 0

    # ------------------------------------------------------------ the run

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self._state().plan

    @property
    def status(self) -> str:
        """running | paused | finished | stopped."""
        return self._state().status

    @property
    def reason(self) -> str:
        """Why it is finished, stopped or paused; empty while it is running."""
        return self._state().reason

    @property
    def deterministic(self) -> bool:
        """Whether the learner was to be checked for state: False where it is declared ``deterministic = False``."""
        resumed = (row.action for row in self._store.audit(self.run))
        return NOT_DETERMINISTIC not in self._row().origin and RESUMED_UNCHECKED not in resumed

    @property
    def steps(self) -> str:
        """How clients made their local steps: ``exact``, ``traced``, ``channels_last`` or ``stacked-<clients at once>``
        (``simulation.engines.steps``)."""
        return Steps.of(self._row().origin).name

    @property
    def steps_reason(self) -> str:
        """Why local steps were exact where something else was asked for; else empty."""
        return Steps.of(self._row().origin).reason

    @property
    def unmasked(self) -> bool:
        """Whether this is a simulation whose secure rounds were quantized, with the same result, and not masked."""
        return self._row().origin.endswith(UNMASKED)

    @property
    def created_at(self) -> float:
        """By the coordinator's clock, seconds since 1970."""
        return self._row().created_at

    def __len__(self) -> int:
        return self._state().version

    def __bool__(self) -> bool:
        """Always True, although the length is 0 before the first commit."""
        return True

    @property
    def wall(self) -> list[float]:
        """Seconds that the rounds took on this machine, in order; only measured rounds."""
        return [seconds for _, seconds in sorted(self._wall.items())]

    @property
    def rounds(self) -> tuple[RoundSummary, ...]:
        """All rounds in order, also the abandoned ones and the current one. Read from the store at each access."""
        return tuple(read_rounds(self._store, self.run, self._state(), self._wall))

    @property
    def staleness(self) -> Mapping[int, tuple[int, ...]]:
        """Buffered round -> how many reports are of the model that it began with, of the version before, and so on."""
        rows = self._store.rounds(self.run, 0, self._state().round_number)
        buffered = (row for row in rows if row.kind == "buffered")
        return {row.round: tuple(cast("list[int]", row.body.get("staleness", []))) for row in buffered}

    @property
    def exchanges(self) -> tuple[RoundExchange, ...]:
        """The exchanges of all secure rounds in order: how many devices came to each, and how many it took."""
        return tuple(read_exchanges(self._store, self.run, self._state()))

    @property
    def participation(self) -> Mapping[str, int]:
        """In how many committed rounds each device counted, by device id; 0 of those that never did."""
        for row in self._store.checkpoints(self.run)[self._counted_to + 1 :]:
            if row.round is not None:
                self._counted.update(item.device for item in self._store.contributions(self.run, row.round))
            self._counted_to = row.version
        nobody = dict.fromkeys(self._known(), 0)
        return MappingProxyType(dict(sorted((nobody | self._counted).items())))

    @property
    def participants(self) -> tuple[DeviceParticipation, ...]:
        """What became of each device in the rounds that have ended: all of them, also those that never counted."""
        return tuple(self._taken_part.read(self._store, self._known()))

    @property
    def events(self) -> Iterator[EventRow]:
        """The log, in order."""
        return read_events(self._store, self.run)

    @property
    def withdrawals(self) -> tuple[DeviceWithdrawal, ...]:
        """The devices that withdrew, with round and reason, in order. Examples: no data, a loss that is not
        finite, a low battery."""
        for event in read_events(self._store, self.run, self._withdrew_to):
            self._withdrew_to = event.seq
            if (found := withdrawal_of(event)) is not None:
                self._withdrew.append(found)
        return tuple(self._withdrew)

    # ------------------------------------------------------------ metrics

    @property
    def metrics(self) -> tuple[MetricView, ...]:
        """Every score, by version, source and name, and the training metrics under the source ``training``."""
        scores = [views.metric_view(row) for row in self._store.metrics(self.run)]
        unit = self._state().weight_unit
        for row in read_rounds(self._store, self.run, self._state()):
            if row.version is not None and row.closed_at is not None:
                scores += [
                    MetricView(
                        version=row.version,
                        source=TRAINING,
                        name=name,
                        value=value,
                        examples=row.weight // unit,
                        at=row.closed_at,
                    )
                    for name, value in row.metrics.items()
                ]
        return tuple(sorted(scores, key=lambda score: (score.version, score.source, score.name)))

    @property
    def curves(self) -> Mapping[tuple[str, str], Curve]:
        """Every metric as a curve, by (source, name)."""
        return curves_of(((one.source, one.name), (one.version, one.value)) for one in self.metrics)

    def better(self, name: str) -> Literal["higher", "lower"]:
        """Which way is better: as the plan says for the metric that it watches; otherwise lower for losses, errors and
        perplexities, higher for the rest."""
        finish = self.plan.finish
        return finish.better if finish.metric == name else super().better(name)

    def _called(self) -> str:
        return f"Run {self.run}"

    # ------------------------------------------------------------ checkpoints

    @property
    def checkpoints(self) -> Mapping[int, CheckpointView]:
        """The line of models by version: digest, bytes, origin, round."""
        line = self._store.checkpoints(self.run)
        digests = {row.version: row.digest for row in line}
        return MappingProxyType({row.version: views.checkpoint_view(row, digests) for row in line})

    def checkpoint(self, version: int = -1) -> Tensors:
        """The tensors of a version, read only, without a strategy's shared ones; -1 is the newest."""
        return of_model(from_bytes(self._checkpoint_bytes(version)))

    def save_checkpoint(self, path: str | os.PathLike[str], version: int = -1) -> Path:
        """Writes a version as a safetensors file, atomically (temporary file, then rename); returns the path."""
        content, target = self._checkpoint_bytes(version), Path(path)
        draft = target.with_name(target.name + ".part")
        try:
            draft.write_bytes(content)
            draft.replace(target)
        except OSError as error:
            raise HistoryError(f"The checkpoint cannot be written to {target} ({error.strerror}).") from None
        return target

    # ------------------------------------------------------------ inside

    def _known(self) -> dict[str, str]:
        return registered(self._store) | self._clients

    def _row(self) -> RunRow:
        row = self._store.run(self.run)
        if row is None:
            raise HistoryError(f"Run {self.run} is no longer there.")
        return row

    def _state(self) -> RunState:
        head = self._store.head(self.run)
        if self._state_at is None or self._state_at[0] != head:
            self._state_at = (head, current_state(self._store, self._row()))
        return self._state_at[1]

    def _checkpoint_bytes(self, version: int) -> bytes:
        newest = len(self._store.checkpoints(self.run)) - 1
        wanted = newest + 1 + version if version < 0 else version
        row = self._store.checkpoint(self.run, wanted)
        if row is None:
            raise HistoryError(f"Run {self.run} has no version {version}: the newest is {newest}.")
        try:
            with self._blobs.open(row.digest) as file:
                return file.read()
        except Missing:
            raise HistoryError(
                f"The bytes of version {wanted} of run {self.run} are not stored any more: simulate() keeps all "
                'checkpoints with folder=, or with keep_checkpoints="all".'
            ) from None
        except (BlobError, StoreError) as error:
            raise HistoryError(f"Version {wanted} of run {self.run} cannot be read: {error}") from error
