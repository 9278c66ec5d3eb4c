"""``quorate demo``: the sequence of its steps, and what is around it: the folder, the screen, the closing lines.

It uses the commands and the operators' API. ``screen`` prints, ``children`` starts and ends processes.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import typer
from rich.console import Console

from client_sdk.commands.stopping import handling
from client_sdk.data import load_data
from client_sdk.http.operator import OperatorClient
from client_sdk.terminal import Failure, note, say, show_answer
from simulation.demo.children import CommandChild, CommandChildren, StoppedByUser
from simulation.demo.screen import METRIC, SOURCE, Journal, Json, Plain, Screen, Terminal, read
from simulation.demo.setting import SMALLEST_COHORT, Setting

# ------------------------------------------------------------ the sequence of steps
# Starts the commands, waits for the runs, hands out the result while all of it still runs.


READY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a demo."""

    url: str
    plain: Journal | None
    """The run of plain rounds; None where all rounds are secure."""
    secure: Journal | None
    """The run of secure rounds; None where there are none."""
    model: Path
    """The last checkpoint."""
    seconds: float
    """From the first command to the last score."""
    bare_accuracy: float | None
    has_page: bool = False
    """Whether the coordinator serves a dashboard."""

    @property
    def journals(self) -> list[Journal]:
        """The runs, in their order."""
        return [journal for journal in (self.plain, self.secure) if journal is not None]

    @property
    def accuracy(self) -> float | None:
        """Of the last checkpoint."""
        return self.journals[-1].committed[-1].accuracy

    @property
    def compared_accuracy(self) -> float:
        """Of the last checkpoint of plain rounds."""
        return (self.plain.committed[-1].accuracy or 0.0) if self.plain is not None else 0.0

    def report(self) -> dict[str, Any]:
        """What the file that ``DEMO_JSON`` names gets: the whole demo."""
        plain, secure = ([] if run is None else run.committed for run in (self.plain, self.secure))
        return {
            "rounds": [line.report() for line in plain],
            "secure_rounds": [line.report() for line in secure],
            "bare_accuracy": None if self.bare_accuracy is None else round(self.bare_accuracy, 6),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Played:
    """A demo after its last round, while its coordinator and devices still run."""

    result: Result
    operator: OperatorClient
    children: CommandChildren


@contextmanager
def directed(setting: Setting, folder: Path, screen: Screen, stop: Event) -> Iterator[Played]:
    """Run the demo in ``folder`` to its last score. All its processes have ended when the context does.

    Raises StoppedByUser once ``stop`` is set, Failure where something fails; its processes have ended then too."""
    began = time.monotonic()
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with CommandChildren(logs, stop, screen.command) as children:
        server = children.start(
            "serve",
            *("serve", "--data", str(folder / "coordinator"), "--port", str(setting.port)),
            *("--dev-authority", "--json"),
        )
        setting = _look_at_data(setting, screen)
        ready = json.loads(children.first_line(server, READY_S))
        url = str(ready["url"])
        token = folder / Path(ready["device_token_file"]).relative_to(folder.resolve())
        screen.note(f"The coordinator is at {url}; its API: {ready['docs']}")
        at = ("--coordinator", url)
        children.start(
            "fleet", "fleet", "--token-file", str(token), *at, *_fleet(setting), "--folder", str(folder / "devices")
        )
        with OperatorClient(url) as operator:
            if ready["dashboard"] is not None and screen.is_terminal:
                screen.note(
                    f"The dashboard; the link logs one browser in, within five minutes: {operator.login_link()}"
                )
            elif ready["dashboard"] is not None:  # a link is a secret, and what is no terminal may be a log
                screen.note(f"The dashboard: {ready['dashboard']}. To log in: quorate dashboard --login {' '.join(at)}")
            runs = _Runs(setting, folder, operator, children, screen, stop, at)
            plain, secure, model = runs.play()
            seconds = time.monotonic() - began
            bare = None
            if setting.compare and plain is not None:
                bare = _compare(operator, plain.run.run, setting, children, screen)
            result = Result(
                url=url,
                plain=plain,
                secure=secure,
                model=model,
                seconds=seconds,
                bare_accuracy=bare,
                has_page=ready["dashboard"] is not None,
            )
            yield Played(result, operator, children)


class _Runs:
    """The runs of a demo: one of plain rounds, then one of secure rounds from its last checkpoint."""

    def __init__(
        self,
        setting: Setting,
        folder: Path,
        operator: OperatorClient,
        children: CommandChildren,
        screen: Screen,
        stop: Event,
        at: tuple[str, str],
    ) -> None:
        """``at``: the option that names the coordinator."""
        self._setting, self._folder, self._operator = setting, folder, operator
        self._children, self._screen, self._stop, self._at = children, screen, stop, at

    def play(self) -> tuple[Journal | None, Journal | None, Path]:
        """The runs, and the file of the last checkpoint."""
        setting, folder = self._setting, self._folder
        plain, secure, model = None, None, folder / "model.safetensors"
        made: tuple[str, ...] = ("--learner", setting.learner)
        if not setting.secure:
            plain = self._run("plan.toml", setting.plan(), made)
            self._get(plain, model)
            authority = str(folder / "coordinator" / "authority")
            signed = self._children.run("sign", "authority", "sign", str(model), "--data", authority).split()[-1]
            made = ("--init", str(model), "--set", f"secure.first_signature={signed}")
        if setting.secure or setting.secure_rounds:
            self._screen.note("")
            secure = self._run("secure.toml", setting.secure_plan(), made)
            shown = self._children.run("rounds", "rounds", secure.run.run, "--secure", *self._at)
            for line in shown.splitlines():
                self._screen.note(line)
            model = folder / "secure.safetensors"
            self._get(secure, model)
        return plain, secure, model

    def _run(self, file: str, text: str, made: tuple[str, ...]) -> Journal:
        """Create a run of this plan, and follow it to its end. ``made``: the options that say its first checkpoint."""
        plan = self._folder / file
        plan.write_text(text, "utf-8")
        created = self._children.run(f"run-{plan.stem}", "run", "create", str(plan), *made, *self._at, "--json")
        run = str(json.loads(created.splitlines()[-1])["run"])
        scorer = self._children.start(
            f"evaluate-{plan.stem}",
            *("evaluate", run, "--data", self._setting.split.data, *self._at, "--source", SOURCE),
            keeps_running=False,
        )
        return follow(self._operator, run, self._children, scorer, self._screen, self._stop)

    def _get(self, journal: Journal, file: Path) -> None:
        self._screen.note("")
        self._children.run(
            f"checkpoint-{file.stem}", "checkpoint", "get", journal.run.run, "--output", str(file), *self._at
        )


def _look_at_data(setting: Setting, screen: Screen) -> Setting:
    """Load the data once, before several processes need it, and report its errors before anything starts. Returns the
    settings for data of devices so large."""
    data = load_data(setting.split.data)
    if data.test is None:
        raise Failure(f"{setting.split.data} has no test part: nothing could be scored.")
    fitted = setting.for_data([len(part) for part in setting.split.shards(data.train)])
    split = setting.split
    how = f"{split.by}, alpha {split.alpha:g}" if split.by == "dirichlet" else split.by
    screen.note(f"{len(data.train)} examples of {split.data} go to {split.devices} devices ({how}).")
    if fitted.batch_size < setting.batch_size:
        screen.note(f"Batches have {fitted.batch_size} examples: devices' owners want several in their data.")
    return fitted


def _fleet(setting: Setting) -> list[str]:
    """The options of ``quorate fleet``."""
    split, habits = setting.split, setting.habits
    options = {
        "--data": split.data,
        "--devices": split.devices,
        "--processes": setting.processes,
        "--by": split.by,
        "--alpha": split.alpha,
        "--size-sigma": split.size_sigma,
        "--seed": split.seed,
        "--learner": setting.learner,
        "--slow": habits.slow,
        "--vanish": habits.vanish,
        "--late": habits.late,
    }
    if setting.smallest_cohort < SMALLEST_COHORT:
        options["--smallest-cohort"] = setting.smallest_cohort
    return [part for name, value in options.items() for part in (name, str(value))]


def _compare(operator: OperatorClient, run: str, setting: Setting, children: CommandChildren, screen: Screen) -> float:
    """The bare loop's accuracy over the same cohorts."""
    from simulation.demo.compare import bare_accuracy

    screen.note("")
    screen.note("The bare loop: the same cohorts and shards, in one process.")

    def report(number: int, found: float) -> None:
        children.look()
        screen.note(f"bare round {number}: accuracy {100 * found:.2f} %")

    return bare_accuracy(operator, run, setting.split, report)


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
    with closing(screen):
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


# ------------------------------------------------------------ from the options to the exit


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
    lines = closing_lines(setting, place, result, ascii_only=not _unicode())
    show_answer(result.report(), *lines, as_json=as_json)
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
