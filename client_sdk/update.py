"""An update: the change by a device's training. A sum of updates is an update too, and its mean has the same bits in
any order.

An update has deltas by name, examples, metrics and work. It is sent as safetensors with one metadata key, which holds
the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from pydantic import ValidationError

from client_sdk import codecs
from client_sdk.metrics import Tally, measured, require_finite
from client_sdk.protocol.devices import Score, UpdateReport, Work
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.tensors import split
from client_sdk.tensors.exact_sum import ExactSum, peak
from client_sdk.tensors.floats import Float32, as_array, widen
from client_sdk.tensors.manifest import (
    Array,
    Manifest,
    NotFinite,
    OutOfRange,
    TensorError,
    Tensors,
    shown,
)
from client_sdk.tensors.safetensors_file import TensorHeader, to_bytes


class BadReport(TensorError):
    """An update's report is missing, or a field of it is not what the protocol says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """How long the device took, by its own clock: see ``UpdateReport``."""

    fetch_s: float = 0.0
    train_s: float = 0.0
    encode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Tallies:
    metrics: Tally
    scores: Tally
    epochs: Fraction

    def __add__(self, other: _Tallies) -> _Tallies:
        return _Tallies(self.metrics + other.metrics, self.scores + other.scores, self.epochs + other.epochs)


class Update:
    """The change by one device's training, or the sum of such updates: both have ``+``, examples, a count and a mean.

    ::

        round = Update({"w": w_local - w_global}, examples=600, metrics={"loss": 0.3}) + other
        new = {name: w_global[name] + change for name, change in round.mean().items()}

    ``delta``: local minus global weights by name, floating-point arrays or torch tensors on the CPU (taken as float32
    and copied; ``copy=False``: the caller gives float32 arrays away). ``examples``: what the device trained on, a whole
    number; the update's weight in ``+`` and ``mean``. In a run the plan decides the weight (section ``[aggregation]``),
    since a device could claim any. ``metrics``: means over those examples; one that has no value (NaN) on them, such as
    an AUC of one label, is left out, but for ``loss``. ``held_out``: the received model scored on held-out data.
    ``model``: what the learner's own model consists of; None: of the tensors of the delta, all float32. In a secure
    round a device masks nothing unless the checkpoint has exactly these tensors.

    Raises ManifestMismatch (no floating-point array), OutOfRange (examples) and ValueError (a metric that is infinite,
    a loss that is not finite, a name such as ``F1 score``, more than 64 metrics). Values are checked when they are
    added or encoded.
    """

    def __init__(
        self,
        delta: Mapping[str, Array],
        examples: int,
        *,
        work: Work | None = None,
        metrics: Mapping[str, float] | None = None,
        held_out: Score | None = None,
        model: Manifest | None = None,
        copy: bool = True,
    ) -> None:
        if isinstance(examples, bool) or not hasattr(examples, "__index__") or examples < 0:
            raise OutOfRange(f"examples must be a whole number from 0 up, not {examples!r}")
        arrays = {name: as_array(name, array) for name, array in delta.items()}
        taken = {name: _widened(name, arrays[name]) for name in sorted(arrays)}
        if copy:
            flat, start = np.empty(sum(array.size for array in taken.values()), np.float32), 0
            for name, array in taken.items():
                taken[name] = flat[start : start + array.size].reshape(array.shape)
                taken[name][...] = array
                start += array.size
        self._delta: Tensors | None = taken
        self._sum: ExactSum | None = None
        require_finite(held_out.metrics if held_out else {})
        self._scored = held_out.examples if held_out else 0
        self._work = work or Work()
        self._tallies: _Tallies | None = None
        self._given = (measured(metrics or {}), held_out)
        self.examples = int(examples)
        """Training examples behind this update, all devices together: the weight of its delta in a mean."""
        self.manifest = Manifest.of(self._delta)
        """Names and shapes of the deltas: all F32, in the order of their names."""
        self.model = self.manifest if model is None else model
        """Names, dtypes and shapes of the learner's own model."""

    def __repr__(self) -> str:
        size = f"{len(self.manifest)} tensors, {self.manifest.elements} values"
        return f"<Update of {self.count}, {self.examples} examples, {size}>"

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same: names, shapes, examples, counts, scores, and the same bits in the exact sum. So
        ``a + b == b + a``. Raises NotFinite and OutOfRange as ``+`` does.
        """
        if not isinstance(other, Update):
            return NotImplemented
        return (
            self.manifest == other.manifest
            and (self.count, self.examples) == (other.count, other.examples)
            and (self.metrics, self.held_out, self.work) == (other.metrics, other.held_out, other.work)
            and self._exact().same_as(other._exact())
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def delta(self) -> Tensors:
        """A device's own change, float32 by name; of a sum, its mean."""
        return dict(self._delta) if self._delta is not None else self.mean()

    @property
    def count(self) -> int:
        """Devices' updates in this one."""
        return self._sum.count if self._sum else 1

    @property
    def work(self) -> Work:
        """Steps, epochs and examples seen, added up; complete when every part was."""
        if self._tallies is None:
            return self._work
        return self._work.model_copy(update={"epochs": float(self._tallies.epochs)})

    @property
    def metrics(self) -> dict[str, float]:
        """Training metrics by name: means over the examples of the updates that gave them."""
        return dict(self._given[0]) if self._tallies is None else self._tallies.metrics.means()

    @property
    def held_out(self) -> Score | None:
        """The received model's score on held-out data, over all devices that scored it; None when none did. A sum has
        means of values, without states."""
        if self._tallies is None:
            return self._given[1]
        return Score(examples=self._scored, metrics=self._tallies.scores.means()) if self._scored else None

    def mean(self) -> Tensors:
        """The weighted mean of the deltas, float32 by name: float32(sum_k n_k q(x_k) * 2^-32 / sum_k n_k) with n_k the
        examples, see ``exact_sum``.

        A function of the set of updates: order and grouping change no bit. Raises NotFinite, OutOfRange, EmptySum (no
        examples).
        """
        return split(self._exact().mean(), self.manifest)

    def __add__(self, other: Update) -> Update:
        """The sum of two updates; neither changes. Raises ManifestMismatch, NotFinite, OutOfRange, SumOverflow."""
        if not isinstance(other, Update):
            return NotImplemented
        return self._as_sum()._absorb(other)

    def __radd__(self, other: object) -> Update:
        """``sum(updates)`` starts from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def _exact(self) -> ExactSum:
        return self._sum if self._sum is not None else self._folded_into(ExactSum.of(self.manifest))

    def _as_sum(self) -> Update:
        twin = object.__new__(Update)
        twin.__dict__.update(self.__dict__)
        twin._delta = None
        twin._tallies = self._tallied()
        twin._sum = self._sum.copy() if self._sum else self._folded_into(ExactSum.of(self.manifest))
        return twin

    def _absorb(self, other: Update) -> Update:
        if self._sum is None or self._tallies is None:
            raise TypeError("only a sum of its own can absorb")
        self.manifest.require(other.manifest, "the other update")
        if other._sum is None:
            other._folded_into(self._sum)
        else:
            self._sum.merge(other._sum)
        self.examples += other.examples
        self._tallies += other._tallied()
        self._scored += other._scored
        self._work = Work(
            steps=self._work.steps + other._work.steps,
            steps_planned=self._work.steps_planned + other._work.steps_planned,
            examples_seen=self._work.examples_seen + other._work.examples_seen,
            complete=self._work.complete and other._work.complete,
        )
        return self

    def _tallied(self) -> _Tallies:
        """Metrics, scores and epochs as exact fractions: computed only when an update is added."""
        if self._tallies is not None:
            return self._tallies
        metrics, held_out = self._given
        scores = Tally.of(held_out.metrics, held_out.examples, held_out.weights) if held_out else Tally()
        return _Tallies(Tally.of(metrics, self.examples), scores, Fraction(self._work.epochs))

    def _folded_into(self, total: ExactSum) -> ExactSum:
        """Check all values, then add them: ``total`` is unchanged when anything is refused."""
        largest = 0.0
        for name, array in self.delta.items():
            try:
                largest = max(largest, peak(array))
            except NotFinite:
                raise NotFinite(f"the delta of {shown(name)} holds NaN or infinity") from None
            except OutOfRange as error:
                raise OutOfRange(f"the delta of {shown(name)} is out of range: {error}") from None
        total.add_blocks(self._flat(), self.examples, largest)
        return total

    def _flat(self) -> Iterator[Float32]:
        return (array.reshape(-1) for array in self.delta.values())


def encode_update(
    update: Update,
    codec: codecs.Codec | str,
    run: str,
    round: int,
    attempt: int = 0,
    seconds: Seconds | None = None,
    *,
    device: str = "",
    seed: int = 0,
    plan: str = "",
) -> bytes:
    """The body that reports ``update``: its encoded deltas and an UpdateReport, as safetensors. Equal arguments give
    equal bytes. ``device``, ``seed`` (``Task.seed``) and ``plan`` (its digest): for codecs that draw.

    A sum travels as its mean, with all its examples. Raises UnknownCodec, NotFinite, OutOfRange, and BadReport for
    metrics or counts that the protocol does not take.
    """
    chosen = codecs.get(codec) if isinstance(codec, str) else codec
    report = report_of(update, chosen.name, run, round, attempt, seconds)
    return body_of(chosen.encode(update.delta, codecs.Origin(seed=seed, round=round, device=device, plan=plan)), report)


def body_of(encoded: Tensors, report: UpdateReport) -> bytes:
    """The body with these encoded deltas and this report."""
    return to_bytes(encoded, {REPORT_KEY: report.model_dump_json()})


def report_of(
    update: Update,
    codec: str,
    run: str,
    round: int,
    attempt: int = 0,
    seconds: Seconds | None = None,
    *,
    private: bool = False,
) -> UpdateReport:
    """The report about ``update`` beside its tensors. ``private``: it tells nothing that was computed from data.
    BadReport for metrics or counts that the protocol does not accept.
    """
    if private:
        return UpdateReport(run=run, round=round, attempt=attempt, codec=codec, examples=1)
    took = seconds or Seconds()
    try:
        return UpdateReport(
            run=run,
            round=round,
            attempt=attempt,
            codec=codec,
            examples=update.examples,
            work=update.work,
            fetch_s=took.fetch_s,
            train_s=took.train_s,
            encode_s=took.encode_s,
            metrics=update.metrics,
            held_out=update.held_out,
        )
    except ValidationError as error:
        raise BadReport(f"the update's report cannot be made: {_first(error)}") from None


def decode_report(header: TensorHeader) -> UpdateReport:
    """The report in the header of an update's body. BadReport when it is missing, not alone, or not what the protocol
    says.
    """
    if set(header.metadata) != {REPORT_KEY}:
        raise BadReport(f"the update's metadata must hold {REPORT_KEY} and nothing else")
    try:
        return UpdateReport.model_validate_json(header.metadata[REPORT_KEY])
    except ValidationError as error:
        raise BadReport(f"the update's report is not valid: {_first(error)}") from None


def _widened(name: str, array: Array) -> Float32:
    try:
        return widen(array)
    except TensorError as error:
        raise type(error)(f"the delta of {shown(name)}: {error}") from None


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in found["loc"])
    return f"{shown(place)}: {found['msg']}" if place else found["msg"]
