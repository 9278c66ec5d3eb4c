"""Lists that a coordinator answers in pages, read to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from client_sdk.protocol.names import Message

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.operators import CheckpointView, MetricView, RoundView

M = TypeVar("M", bound=Message)
PAGE = 1000


def every_page(page_after: Callable[[M | None], list[M]]) -> list[M]:
    """All of a list that is read in pages of PAGE, each after the last one read."""
    found: list[M] = []
    while page := page_after(found[-1] if found else None):
        found += page
        if len(page) < PAGE:
            break
    return found


def every_round(client: OperatorClient, run: str) -> list[RoundView]:
    """All rounds of a run, in order."""
    return every_page(lambda last: client.rounds(run, after=0 if last is None else last.round, limit=PAGE))


def every_metric(client: OperatorClient, run: str) -> list[MetricView]:
    """All metrics of a run, in order of version."""
    return every_page(lambda last: client.metrics(run, after=-1 if last is None else last.version, limit=PAGE))


def every_checkpoint(client: OperatorClient, run: str, after: int = -1) -> list[CheckpointView]:
    """All checkpoints of a run of versions above ``after``, in order of version."""
    return every_page(lambda last: client.checkpoints(run, after=after if last is None else last.version, limit=PAGE))
