"""What the commands share that ask a coordinator over HTTP: the client, lists in pages, and how an answer is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from client_sdk.protocol.names import Message
from client_sdk.terminal import say, say_json

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient

M = TypeVar("M", bound=Message)
PAGE = 1000


def asking(coordinator: str, key_file: Path | None) -> OperatorClient:
    """A client of this coordinator, whose module is imported now."""
    from client_sdk.http.operator import OperatorClient

    return OperatorClient(coordinator, key_file=key_file)


def every_page(page_after: Callable[[M | None], list[M]]) -> list[M]:
    """All of a list that is read in pages of at most PAGE, each after the last one read."""
    found: list[M] = []
    while page := page_after(found[-1] if found else None):
        found += page
        if len(page) < PAGE:
            break
    return found


def show_answer(found: Message, text: str, *, as_json: bool) -> None:
    """Print what was done as a sentence; with ``as_json`` the message that the coordinator answered."""
    say_json(found) if as_json else say(text)
