"""An evaluator: follows a run, scores each of its checkpoints on held-out data, and reports the metrics.

It finds the checkpoints without a score, waits for new ones, and ends with the run. A function of the caller scores a
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Event

from client_sdk.http.operator import OperatorClient
from client_sdk.http.paging import every_checkpoint, every_metric
from client_sdk.metrics import undefined
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import CheckpointView, MetricReport, RunView
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Tensors, from_bytes


def follow(
    operator: OperatorClient,
    run: str,
    score: Callable[[Tensors], Score],
    *,
    source: str = "evaluator",
    values: Callable[[Mapping[str, Sequence[float]]], Mapping[str, float]] | None = None,
    on_score: Callable[[CheckpointView, Score], None] | None = None,
    on_trouble: Callable[[str], None] | None = None,
    stop: Event | None = None,
    poll_s: float = 1.0,
) -> RunView:
    """Score all checkpoints of ``run`` that have no metrics of ``source`` yet, as they come, oldest first, until the
    run has ended.

    ``source`` names the data (``test``, ``hospital-7``). ``values`` computes metrics by the states that devices sent
    about a checkpoint, added: they are reported for the source ``devices``, once the round is committed. While the
    coordinator cannot be reached the request is repeated, and ``on_trouble`` is called once. Returns the last view of
    the run. Raises ProblemError for what the coordinator refuses.
    """
    stop = stop if stop is not None else Event()
    scored: set[int] | None = None
    line: list[CheckpointView] = []
    seen_version = -1
    troubled = False
    view: RunView | None = None
    while True:
        try:
            if scored is None:
                scored = {metric.version for metric in every_metric(operator, run) if metric.source == source}
            view = operator.run(run)
            if view.version > seen_version:
                line += every_checkpoint(operator, run, after=line[-1].version if line else -1)
                if values is not None:
                    _report_devices(operator, run, line, values)
                for checkpoint in line:
                    if stop.is_set():
                        return view
                    if checkpoint.version not in scored:
                        found = score(from_bytes(operator.checkpoint(checkpoint.digest)))
                        plain = Score(examples=found.examples, metrics=found.metrics)
                        report = MetricReport(
                            version=checkpoint.version, digest=checkpoint.digest, source=source, score=plain
                        )
                        operator.report_metrics(run, report)
                        scored.add(checkpoint.version)
                        if on_score is not None:
                            on_score(checkpoint, found)
                    seen_version = max(seen_version, checkpoint.version)
            elif view.over:
                return view
            troubled = False
        except ProblemError as error:
            if error.problem.advice != "retry":
                raise
            if on_trouble is not None and not troubled:
                on_trouble(str(error))
            troubled = True
        if stop.wait(poll_s) and view is not None:
            return view
        if stop.is_set():
            raise InterruptedError("Stopped before the run could be read.")


def _report_devices(
    operator: OperatorClient,
    run: str,
    line: Sequence[CheckpointView],
    values: Callable[[Mapping[str, Sequence[float]]], Mapping[str, float]],
) -> None:
    """Report the values of the states that devices sent, of each version that has none yet."""
    known: dict[int, dict[str, int]] = {}
    for metric in every_metric(operator, run):
        if metric.source == "devices":
            known.setdefault(metric.version, {})[metric.name] = metric.examples
    for scored, following in pairwise(line):
        have = known.get(scored.version, {})
        if not have or following.round is None:
            continue
        sent = operator.round(run, following.round).states
        lacking = {name: state for name, state in sent.items() if not have.keys() & {name, undefined(name)}}
        if lacking:
            score = Score(examples=max(have.values()), metrics=dict(values(lacking)))
            report = MetricReport(version=scored.version, digest=scored.digest, source="devices", score=score)
            operator.report_metrics(run, report)
