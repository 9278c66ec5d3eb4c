"""Whether the body of an update is what its task asks for: names, shapes, dtypes, values, and the report that goes with it.

All of it is checked before the update is acknowledged, so that a round never fails for one device's update. The body is read by blocks:
however many arrive at once, memory stays small. This file has never heard of rounds' states or HTTP; it raises problems for the peer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_sdk import codecs
from client_sdk.exact_sum import peak as peak_of
from client_sdk.problems import problem
from client_sdk.protocol import Task, UpdateReport
from client_sdk.tensors import Manifest, TensorError, read_header
from client_sdk.update import decode_report


@dataclass(frozen=True, slots=True)
class Measures:
    """What a pass over an update's values found."""

    peak: float
    """The largest magnitude, or a bound on it."""
    norm: float
    """L2 norm, accumulated in float64."""


def check(path: Path, manifest: Manifest, task: Task, *, run: str, round: int, attempt: int) -> tuple[UpdateReport, Measures]:
    """The report of an update and its values' measures. ``manifest``: of the run's checkpoint. ProblemError for anything wrong."""
    try:
        header = read_header(path)
        report = decode_report(header)
    except TensorError as error:
        raise problem("invalid-update", str(error)) from None
    if (report.run, report.round, report.attempt) != (run, round, attempt):
        raise problem(
            "invalid-update",
            f"the body was made for run {report.run}, round {report.round}, attempt {report.attempt}, "
            f"but was sent to run {run}, round {round}, attempt {attempt}",
        )
    if report.codec != task.codec:
        raise problem("invalid-update", f"the body is encoded with {report.codec}; the task asks for {task.codec}")
    try:
        codecs.get(task.codec).wire(manifest.select(task.averaged)).require(header.manifest)
        return report, measure(path, task.codec)
    except TensorError as error:
        raise problem("invalid-update", str(error)) from None


def measure(path: Path, codec: str) -> Measures:
    """One pass over an update's decoded values. TensorError for NaN, infinity and values out of range."""
    header = read_header(path)
    peak, squares = 0.0, 0.0
    for block in codecs.get(codec).blocks(path, header):
        peak = max(peak, peak_of(block))
        squares += float(np.dot(block.astype(np.float64), block))
    return Measures(peak=peak, norm=math.sqrt(squares))
