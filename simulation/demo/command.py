"""``quorate demo`` from its options to its exit: the folder, the screen, the closing lines.

``director`` runs the demo itself.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from types import FrameType

import typer
from rich.console import Console

from client_sdk.commands.stopping import handling
from client_sdk.terminal import Failure, note, say, say_json
from simulation.demo.children import StoppedByUser
from simulation.demo.director import Played, Result, directed
from simulation.demo.screen import Json, Plain, Screen, Terminal
from simulation.demo.setting import Setting

CLOSE_ENOUGH = 0.005
"""Accuracies of the federated run and of the bare loop differ by at most half a point."""
LOOK_S = 0.5
"""Seconds between two looks at what runs after the last round."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(setting: Setting, folder: Path | None, report: Path | None, as_json: bool) -> None:
    """Run the demo and print the result. Failure where something failed, exit code 130 where the user stopped it."""
    if report is not None and not report.resolve().parent.is_dir():
        raise Failure(f"The folder of {report} does not exist; make it, or name another file.")
    place = _folder(folder)
    screen = _screen(as_json)
    finished = False
    with _stopped_by_signals() as stop:
        try:
            with directed(setting, place, screen, stop) as played:
                finished = True
                _conclude(setting, place, played.result, report, as_json)
                if screen.is_terminal and played.result.has_page:
                    _keep_up(played, stop)
        except Exception as error:
            if finished or (not isinstance(error, StoppedByUser) and not stop.is_set()):
                raise
            note(f"Stopped. The work so far is in {place}.")
            raise typer.Exit(130) from None


def _conclude(setting: Setting, place: Path, result: Result, report: Path | None, as_json: bool) -> None:
    """Print and write the result. Failure where it is too far from the bare loop's."""
    if report is not None:
        report.write_text(json.dumps(result.report(), indent=1) + "\n", "utf-8")
    if as_json:
        say_json(result.report())
    else:
        for line in closing_lines(setting, place, result, ascii_only=not _unicode()):
            say(line)
    if result.bare_accuracy is not None and abs(result.bare_accuracy - result.compared_accuracy) > CLOSE_ENOUGH:
        raise Failure(f"The accuracies differ by more than {100 * CLOSE_ENOUGH:g} points.")


def _keep_up(played: Played, stop: Event) -> None:
    """Keep the coordinator, its page and its devices until the user stops them. Failure where one of them ends.

    The demo is complete, so this is no error then."""
    say("")
    say("The dashboard stays up. This link logs one browser in, within five minutes:")
    say(f"    {played.operator.login_link()}")
    say(f"Another link: quorate dashboard --login --coordinator {played.result.url}")
    say("Ctrl-C ends it.")
    while not stop.wait(LOOK_S):
        with suppress(StoppedByUser):
            played.children.look()


def closing_lines(setting: Setting, folder: Path, result: Result, *, ascii_only: bool) -> list[str]:
    """The curve, the checkpoint, and how to continue."""
    final = 100 * (result.accuracy or 0.0)
    lines = ["", f"Accuracy on the test part of {setting.split.data}, by round"]
    committed = [line for journal in result.journals for line in journal.committed]
    lines += plot([line.accuracy for line in committed], ascii_only=ascii_only)
    lines += ["", f"{final:.2f} % after {_rounds(result)}, in {result.seconds:.0f} s."]
    if result.bare_accuracy is not None:
        bare, ours = 100 * result.bare_accuracy, 100 * result.compared_accuracy
        lines.append(
            f"The bare loop has {bare:.2f} % with the same cohorts, plain rounds {ours:.2f} %: "
            f"{abs(ours - bare):.2f} points apart."
        )
    lines += ["", f"The checkpoint is in {result.model}. Load it in Python:"]
    lines += [f"    {line}" for line in loading(setting, result.model)]
    serve = shlex.join(["quorate", "serve", "--data", str(folder / "coordinator"), "--dev-authority"])
    lines += ["", f"All of it is in {folder}. Look at it again: {serve}"]
    return lines


def _rounds(result: Result) -> str:
    """How many rounds of each kind were committed."""
    runs = {"plain": result.plain, "secure": result.secure}
    counts = {kind: len(journal.committed) for kind, journal in runs.items() if journal is not None}
    return " and ".join(f"{count} {kind} round" + ("" if count == 1 else "s") for kind, count in counts.items())


def loading(setting: Setting, model: Path) -> list[str]:
    """Lines of Python that load the checkpoint."""
    return [
        "from pathlib import Path",
        "from client_sdk import Catalogue",
        "from client_sdk.tensors import from_bytes",
        f"learner = Catalogue().load({setting.learner!r})",
        f"model = learner.load(from_bytes(Path({str(model)!r}).read_bytes()))  # a torch module",
    ]


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="quorate-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise Failure(f"The folder {folder} is not empty: a demo starts afresh; name a new one by --folder.")
    return folder


def _screen(as_json: bool) -> Screen:
    if as_json:
        return Json()
    if sys.stdout.isatty():
        return Terminal(Console(highlight=False))
    return Plain()


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


@contextmanager
def _stopped_by_signals() -> Iterator[Event]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set. Everything then ends in order; repeated signals change
    nothing."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    with handling(ask, *SIGNALS):
        yield stop


# ------------------------------------------------------------ the curve

WIDTH = 66
"""Columns for the rounds."""
_LINES = 12
"""The most lines of bars."""
_STEPS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""What a line may stand for, in percent."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
"""A line of a bar, by how many eighths of it are filled."""
_ASCII = str.maketrans("▁▂▃▄▅▆▇█┤└", "...::::#|+")


def plot(accuracies: Sequence[float | None], *, width: int = WIDTH, ascii_only: bool = False) -> list[str]:
    """Lines of a plot of accuracies as bars of text, fine enough that the small progress of the last rounds is seen (0
    to 1; None: not known) against rounds 1, 2, ...

    A label stands at the height of the lower edge of its line. The axis is the last multiple of 5 % below the smallest
    value, the highest label the first one from the largest value on. A line stands for 0.25 to 10 %, so that there are
    at most 12, and is divided into eighths. Where there are more rounds than fit, every second, third, ... is shown,
    the last one always. ``ascii_only``: for terminals without Unicode, where an eighth is not seen.
    """
    known = [100 * min(value, 1.0) for value in accuracies if value is not None]
    if not known:
        return []
    low = min(95, 5 * math.floor(min(known) / 5))
    top = max(low + 5, 5 * math.ceil(max(known) / 5 - 1e-9))
    step = next(step for step in _STEPS if top - low <= _LINES * step)
    height = round((top - low) / step)
    column = max(3, len(str(len(accuracies))) + 1)
    stride = -(-len(accuracies) * column // width)
    shown = [n for n in range(len(accuracies)) if (len(accuracies) - 1 - n) % stride == 0]
    bars = [_bar(accuracies[n], low, step, height) for n in shown]
    labels = [_label(top - step * row) for row in range(height + 1)]
    lines = [f"{labels[0]} ┤"]
    for row in range(height):
        cells = "".join(" " + bar[height - 1 - row] * (column - 1) for bar in bars)
        end = "┤" if row + 1 < height else "└"
        lines.append(f"{labels[row + 1]} {end}{cells}".rstrip())
    lines.append(" " * 9 + "".join(f"{n + 1:>{column}}" for n in shown))
    return [line.translate(_ASCII) for line in lines] if ascii_only else lines


def _bar(value: float | None, low: float, step: float, height: int) -> str:
    """The letters of a bar from the axis up; a bar has at least an eighth, so that it is seen."""
    if value is None:
        return " " * height
    eighths = max(1, round(8 * (100 * min(value, 1.0) - low) / step))
    return "".join(_EIGHTHS[max(0, min(8, eighths - 8 * row))] for row in range(height))


def _label(level: float) -> str:
    return f"{level:5.0f} %" if level % 5 == 0 else " " * 7
