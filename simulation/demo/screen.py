"""Prints a demo: a live table on a terminal, plain lines in a file, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from client_sdk.protocol.operators import MetricView, RoundView, RunView
from client_sdk.terminal import say, say_json, span
from coordinator.commands.watching import rest_s

# ------------------------------------------------------------ journal
# Summarises a run from the operators' views, with one line for each round.


METRIC = "accuracy"
SOURCE = "evaluator"


class Line(RoundView):
    """One round, with the score of its checkpoint."""

    accuracy: float | None = None
    """From 0 to 1; None while it is not scored."""

    @property
    def collected(self) -> int:
        """Updates in the sum: of a secure round, devices whose masked update came."""
        return self.funnel.reported if self.secure is None else self.came("mask")

    @property
    def withdrawn(self) -> int:
        """Devices that withdrew, or whose report was refused."""
        return self.funnel.withdrawn + self.funnel.refused

    @property
    def seconds(self) -> float | None:
        """From its opening to the commit; None while it is open."""
        return None if self.status == "open" or self.closed_at is None else self.closed_at - self.opened_at

    def came(self, exchange: str) -> int:
        """Devices of a secure round that have sent their message of this exchange."""
        exchanges = self.secure.exchanges if self.secure is not None else ()
        return sum(found.came for found in exchanges if found.exchange == exchange)

    def needed(self, exchange: str) -> int | None:
        """The fewest with which a secure round goes on; None where the exchange has not begun."""
        exchanges = self.secure.exchanges if self.secure is not None else ()
        return next((found.needed for found in exchanges if found.exchange == exchange), None)

    def report(self) -> dict[str, Any]:
        """What the file that ``DEMO_JSON`` names gets of this round."""
        body: dict[str, Any] = {
            "round": self.round,
            "selected": self.funnel.selected,
            "collected": self.collected,
            "late": self.funnel.late,
            "dropped": self.funnel.dropped,
            "accuracy": None if self.accuracy is None else round(self.accuracy, 6),
        }
        if self.secure is not None:
            body["exchanges"] = {found.exchange: found.came for found in self.secure.exchanges}
        return body


@dataclass(frozen=True, kw_only=True)
class Journal:
    """A run as it stands."""

    run: RunView
    lines: tuple[Line, ...]

    @property
    def over(self) -> bool:
        return self.run.over

    @property
    def committed(self) -> list[Line]:
        return [line for line in self.lines if line.status == "committed"]

    @property
    def scored(self) -> bool:
        """Whether every committed round has its accuracy."""
        return all(line.accuracy is not None for line in self.committed)


def read(run: RunView, rounds: Iterable[RoundView], metrics: Iterable[MetricView]) -> Journal:
    """The journal of these views."""
    scores = {metric.version: metric.value for metric in metrics if (metric.source, metric.name) == (SOURCE, METRIC)}
    return Journal(
        run=run,
        lines=tuple(
            Line(**dict(view), accuracy=None if view.version is None else scores.get(view.version)) for view in rounds
        ),
    )


# ------------------------------------------------------------ screen


SHOWN = 24
"""Rounds in the live table; earlier ones scroll out of it."""
BAR = 24
"""Columns of the bar; fewer on a narrow terminal."""
BESIDE_BAR = 72
"""Columns of the rest of the table."""
EXCHANGES = {"advertise": "advertised", "share": "shared", "mask": "masked", "agree": "signed", "unmask": "revealed"}
"""The exchanges of a secure round, by what a device has done in each."""
SECURE_LEGEND = "With fewer than needed no round goes on. The masks of devices that vanished are removed from the sum."
LEGEND = "late: sent after the round had closed, and refused. dropped: no report."


class Screen(Protocol):
    """The output of a demo."""

    every_s: float
    """Seconds between two journals."""
    is_terminal: bool
    """Whether it goes to a person's terminal, and into no file."""

    def command(self, line: str) -> None:
        """A command line is about to run."""

    def note(self, line: str) -> None:
        """One plain sentence, or a line of something longer."""

    def show(self, journal: Journal, final: bool = False) -> None:
        """The run as it stands. ``final``: it will not change any more."""

    def close(self) -> None:
        """End the output."""


class Plain:
    """Lines, each printed once: when a cohort is selected, and when a round is settled."""

    every_s = 0.5
    is_terminal = False

    def __init__(self) -> None:
        self._selected: set[tuple[str, int]] = set()
        self._shown_to: Counter[str] = Counter()

    def command(self, line: str) -> None:
        say(f"$ {line}")

    def note(self, line: str) -> None:
        say(line)

    def show(self, journal: Journal, final: bool = False) -> None:
        for line in journal.lines:
            if line.funnel.selected and (journal.run.run, line.round) not in self._selected:
                self._selected.add((journal.run.run, line.round))
                say(f"round {line.round}: {line.funnel.selected} of {line.funnel.waiting} waiting devices are selected")
            if _is_next(line, journal, self._shown_to, final):
                say(sentence(line))

    def close(self) -> None:
        pass


class Json:
    """One JSON object a line for each round, once it is settled."""

    every_s = 0.5
    is_terminal = False

    def __init__(self) -> None:
        self._shown_to: Counter[str] = Counter()

    def command(self, line: str) -> None:
        say_json({"kind": "command", "command": line})

    def note(self, line: str) -> None:
        pass

    def show(self, journal: Journal, final: bool = False) -> None:
        for line in journal.lines:
            if _is_next(line, journal, self._shown_to, final):
                say_json(
                    {
                        "kind": "round",
                        "run": journal.run.run,
                        "status": line.status,
                        **line.report(),
                        "seconds": line.seconds,
                    }
                )

    def close(self) -> None:
        pass


class Terminal:
    """A table that is redrawn several times a second, with a bar for the open round."""

    every_s = 0.3
    is_terminal = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def command(self, line: str) -> None:
        for part in wrapped(f"$ {line}", self._console.width):
            self._console.print(Text(part, style="bold cyan"), soft_wrap=True)

    def note(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def show(self, journal: Journal, final: bool = False) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(picture(journal, self._console.width), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def wrapped(command: str, width: int) -> list[str]:
    """A command line on several lines of a shell, broken before options, so that it can be copied and is not cut off.
    An option that is longer than ``width`` has a line of its own."""
    first, *options = command.split(" --")
    lines = [first]
    for option in (f"--{option}" for option in options):
        if len(lines[-1]) + len(option) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {option}")
        else:
            lines[-1] += f" {option}"
    return lines


def sentence(line: Line) -> str:
    """A round that has ended, in a sentence."""
    funnel = line.funnel
    if line.status == "abandoned":
        return f"round {line.round}: abandoned: {line.reason}"
    accuracy = "not scored" if line.accuracy is None else f"accuracy {100 * line.accuracy:.2f} %"
    end = f"{line.seconds or 0:.1f} s, {line.bytes_in / 1e6:.1f} MB in; {accuracy}"
    if line.secure is not None:
        did = ", ".join(f"{line.came(name)} {verb} ({line.needed(name)} needed)" for name, verb in EXCHANGES.items())
        vanished, recovered = line.secure.roster - line.collected, line.came("share") - line.collected
        return (
            f"round {line.round}: of {funnel.selected} selected, {did}; {vanished} of the roster vanished before they "
            f"masked, the masks of {recovered} were recovered; {end}"
        )
    withdrawn = f", {line.withdrawn} withdrew" if line.withdrawn else ""
    return (
        f"round {line.round}: {line.collected} of {funnel.selected} reported, {funnel.late} late, "
        f"{funnel.dropped} dropped{withdrawn}; {end}"
    )


def _is_next(line: Line, journal: Journal, shown_to: Counter[str], final: bool) -> bool:
    """Whether this round of the run is to be printed now: the first that was not, once it is settled. It is counted as
    printed then."""
    run = journal.run.run
    if line.round != shown_to[run] + 1 or line.status == "open" or not _settled(line, journal, final):
        return False
    shown_to[run] = line.round
    return True


def _settled(line: Line, journal: Journal, final: bool) -> bool:
    """Whether its score is known, and late reports had the time of another round to arrive."""
    following = any(other.round > line.round and other.status != "open" for other in journal.lines)
    return final or line.status == "abandoned" or (line.accuracy is not None and following)


def picture(journal: Journal, width: int) -> Group:
    """The table of rounds, for a terminal of ``width`` columns."""
    run = journal.run
    head = Text(run.run)
    if not journal.over:
        ended = [(line.status, line.seconds) for line in journal.lines if line.seconds is not None]
        left = rest_s(run, ended)
        head.append(f": round {run.round} of {run.rounds_wanted}, {run.phase}")
        head.append("" if left is None else f", some {span(left)} left")
    if any(line.secure is not None for line in journal.lines):
        return Group(Text(), head, _secure_table(journal), Text(SECURE_LEGEND, style="dim"))
    return Group(Text(), head, _plain_table(journal, width), Text(LEGEND, style="dim"))


def _secure_table(journal: Journal) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for name in ("round", "selected", *EXCHANGES.values(), "seconds", "MB in", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in journal.lines[-SHOWN:]:
        is_open = line.status == "open"
        table.add_row(
            str(line.round),
            str(line.funnel.selected or ""),
            *(str(line.came(name) or "") for name in EXCHANGES),
            line.status if line.status == "abandoned" else "" if line.seconds is None else f"{line.seconds:.1f}",
            f"{line.bytes_in / 1e6:.1f}" if line.bytes_in else "",
            "" if line.accuracy is None else f"{100 * line.accuracy:.2f} %",
            style="bold" if is_open else None,
        )
    last = next(line for line in reversed(journal.lines) if line.secure is not None)
    table.add_row("", "needed", *(str(last.needed(name) or "") for name in EXCHANGES), "", "", "", style="dim")
    return table


def _plain_table(journal: Journal, width: int) -> Table:
    bar = max(0, min(BAR, width - BESIDE_BAR))
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for name in ("round", "selected", "training", "reported", "", "late", "dropped", "seconds", "MB in", "accuracy"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for line in journal.lines[-SHOWN:]:
        is_open = line.status == "open"
        table.add_row(
            str(line.round),
            str(line.funnel.selected or ""),
            str(line.funnel.training or ""),
            str(line.collected or ""),
            _bar(line, bar) if is_open else Text("" if line.status == "committed" else line.status),
            "" if is_open else str(line.funnel.late),
            "" if is_open else str(line.funnel.dropped),
            "" if line.seconds is None else f"{line.seconds:.1f}",
            f"{line.bytes_in / 1e6:.1f}" if line.bytes_in else "",
            "" if line.accuracy is None else f"{100 * line.accuracy:.2f} %",
            style="bold" if is_open else None,
        )
    return table


def _bar(line: Line, width: int) -> ProgressBar | Text:
    if not line.funnel.selected or not width:
        return Text("" if line.funnel.selected else "waiting"[:width])
    return ProgressBar(total=line.funnel.selected, completed=line.collected, width=width)
