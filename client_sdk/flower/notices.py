"""What a device that serves Flower runs tells people: notices of one sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerNotice:
    """A notice for people. ``str`` of it is one line."""

    kind: Literal[
        "enrolled", "renewed", "waiting", "trouble", "message", "replied", "error", "refused", "sent-again", "stopped"
    ]
    text: str
    run: str | None = None
    group: str = ""
    """Shown as the round."""
    message: str | None = None

    def __str__(self) -> str:
        if self.run is None:
            return self.text
        return f"{self.run}{f' round {self.group}' if self.group else ''}: {self.text}"


def size(count: int) -> str:
    """``1.5 MB``, of bytes."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
