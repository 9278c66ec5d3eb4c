"""Shows the progress of a simulation: one line for each round, with the estimated time that is left.

On a terminal and in a notebook the line of the current round is updated in place. In a log nothing is shown, unless
the caller wants lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from client_sdk.protocol.operators import RoundView
from client_sdk.terminal import span

_OFTEN_S = 0.1
_NOTEBOOK_OFTEN_S = 0.5
_CLEAR = "\r\x1b[2K"


class RoundProgress:
    """``wanted``: True: a line for each round in any case; False: nothing; None: live lines on a terminal or in a
    notebook, nothing in a log."""

    def __init__(self, rounds: int, wanted: bool | None, stream: TextIO | None = None) -> None:
        """``rounds``: how many rounds the run shall commit."""
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        terminal, notebook = _is_terminal(self._stream), _is_notebook(self._stream)
        self._shown = self._stream is not None and (terminal or notebook if wanted is None else wanted)
        self._live = self._shown and (terminal or notebook)
        self._clears = terminal
        self._often_s = _OFTEN_S if terminal else _NOTEBOOK_OFTEN_S
        self._width = 0
        self._rounds = rounds
        self._began = self._looked = time.monotonic()
        self._committed = 0

    def training(self, round: int, done: int, of: int) -> None:
        """``done`` clients of the round have trained."""
        now = time.monotonic()
        if self._live and now - self._looked >= self._often_s:
            self._looked = now
            self._line(f"round {round}: {done} of {of} clients trained{self._left(done / max(1, of))}")

    def ended(self, round: RoundView, scores: Mapping[str, float]) -> None:
        """A round has ended; its model has these scores."""
        committed = round.status == "committed"
        self._committed += committed
        if not self._shown:
            return
        if committed:
            seconds = (round.closed_at or 0.0) - round.opened_at
            text = f"{round.funnel.reported} of {round.funnel.selected} clients in {span(seconds)} (virtual)"
            text += "".join(f", {name} {value:.4g}" for name, value in scores.items())
            text += self._left(0.0)
        else:
            text = f"{'missed its selection' if round.status == 'open' else 'abandoned'}: {round.reason}"
        self._line(f"round {round.round}: {text}", end="\n")

    def close(self, last: str = "") -> None:
        """Clears the live line, and prints ``last`` where it is not empty."""
        if self._live:
            self._line("")
        if self._shown and last:
            self._line(last, end="\n")

    def _left(self, share: float) -> str:
        done = self._committed + share
        left = self._rounds - done
        if done <= 0 or left <= 0:
            return ""
        return f", {span((time.monotonic() - self._began) / done * left)} left"

    def _line(self, text: str, end: str = "") -> None:
        """Prints in place of the live line. A notebook can clear a line only by overwriting it."""
        if self._stream is None:
            return
        if self._live:
            begin = _CLEAR if self._clears else "\r" + " " * self._width + "\r" if self._width else ""
            self._width = 0 if end else len(text)
            text = begin + text
        self._stream.write(text + end)
        self._stream.flush()


def _is_terminal(stream: Any) -> bool:
    """Whether the stream is a terminal. A replacement of ``sys.stderr`` may lack ``isatty``, or be None."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _is_notebook(stream: Any) -> bool:
    """Whether output on the stream appears below a notebook's cell."""
    return type(stream).__module__.split(".")[0] == "ipykernel"
