"""Waits for one run of a demo, and shows it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from client_sdk.http.operator import OperatorClient
from client_sdk.terminal import Failure
from simulation.demo.children import CommandChild, CommandChildren
from simulation.demo.journal import METRIC, Journal, read
from simulation.demo.screen import Screen

SCORE_S = 60.0
"""Seconds that the last score may take after the run has ended."""
STRAGGLERS_S = 2.0
"""Seconds to wait for late devices of the last round."""


def follow(
    operator: OperatorClient, run: str, children: CommandChildren, scorer: CommandChild, screen: Screen, stop: Event
) -> Journal:
    """Show the run until it has ended, every checkpoint is scored, and late devices had time to send. Failure where it
    ends without a committed round, or without scores."""
    over_at: float | None = None
    with _closing(screen):
        while True:
            children.look()
            scorer_ended = scorer.process.poll() is not None
            journal = read(operator.run(run), operator.rounds(run), operator.metrics(run))
            screen.show(journal)
            if journal.over:
                now = time.monotonic()
                over_at = now if over_at is None else over_at
                if journal.scored and now - over_at >= STRAGGLERS_S:
                    screen.show(journal, final=True)
                    break
                if not journal.scored and (scorer_ended or now - over_at > SCORE_S):
                    raise Failure(f"Not every checkpoint got its {METRIC}: {scorer.last_line} ({scorer.log})")
            stop.wait(screen.every_s)
    if not journal.committed:
        raise Failure(f"The run {journal.run.status} without a committed round: {journal.run.reason}")
    return journal


@contextmanager
def _closing(screen: Screen) -> Iterator[None]:
    try:
        yield
    finally:
        screen.close()
