"""What ``quorate flower run`` has its child process do."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Orders(BaseModel):
    """The command's options, as the child process gets them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    """Of the app."""
    coordinator: str
    key_file: Path | None = None
    run: str | None = None
    """None: a new name."""
    simulation: int | None = Field(default=None, ge=1)
    """How many nodes are simulated; None: the devices of the coordinator."""
    data: Path | None = None
    """Of a simulation: the data folder that keeps it."""
    overrides: tuple[str, ...] = ()
    quorum: float | None = Field(default=None, gt=0, le=1)
    grace_s: float = Field(default=0.0, ge=0)
    max_reply: int | None = Field(default=None, ge=1)
    """Bytes."""
    longest_wait_s: float | None = Field(default=None, gt=0)
    quiet: bool = False
    """Whether Flower's own log is left at warnings."""
    events: int = -1
    """The file descriptor for lines of JSON."""
