"""Lists that a coordinator answers in pages, read to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from client_sdk.protocol.names import Message, Page

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.operators import CheckpointView, MetricView, RoundView

M = TypeVar("M", bound=Message)
PAGE = 1000


def every_page(page_after: Callable[[str], Page[M]], after: object = "") -> list[M]:
    """All of a list that is read in pages, each after what the one before says."""
    page = page_after(str(after))
    found = list(page)
    while page.next:
        page = page_after(page.next)
        found += page
    return found


def every_round(client: OperatorClient, run: str) -> list[RoundView]:
    """All rounds of a run, in order."""
    return every_page(lambda after: client.rounds(run, int(after), PAGE), 0)


def every_metric(client: OperatorClient, run: str) -> list[MetricView]:
    """All metrics of a run, in order of version."""
    return every_page(lambda after: client.metrics(run, int(after), PAGE), -1)


def every_checkpoint(client: OperatorClient, run: str, after: int = -1) -> list[CheckpointView]:
    """All checkpoints of a run of versions above ``after``, in order of version."""
    return every_page(lambda found: client.checkpoints(run, int(found), PAGE), after)
