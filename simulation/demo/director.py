"""The sequence of a demo: starts the commands, waits for its runs, hands out the result while all of it still runs.

It uses the commands and the operators' API. ``screen`` prints, ``children`` starts and ends processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from client_sdk.data import load_data
from client_sdk.http.operator import OperatorClient
from client_sdk.terminal import Failure
from simulation.demo.children import CommandChild, CommandChildren
from simulation.demo.screen import METRIC, SOURCE, Journal, Screen, read
from simulation.demo.setting import SMALLEST_COHORT, Setting

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
        _look_at_data(setting, screen)
        ready = json.loads(children.first_line(server, READY_S))
        url = str(ready["url"])
        token = folder / Path(ready["device_token_file"]).relative_to(folder.resolve())
        screen.note(f"The coordinator is at {url}; its page: {ready['docs']}")
        at = ("--coordinator", url)
        children.start(
            "fleet", "fleet", "--token-file", str(token), *at, *_fleet(setting), "--folder", str(folder / "devices")
        )
        with OperatorClient(url) as operator:
            if ready["dashboard"] is not None and screen.is_terminal:
                screen.note(
                    f"The dashboard; the link logs one browser in, within five minutes: {operator.login_link()}"
                )
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
        made = ("--learner", setting.learner)
        if not setting.secure:
            plain = self._run("plan.toml", setting.plan(), made)
            self._get(plain, model)
            made = ("--init", str(model))
        if setting.secure or setting.secure_rounds:
            self._screen.note("")
            secure = self._run("secure.toml", setting.secure_plan(), made)
            shown = self._children.run("rounds", "rounds", secure.run.run, "--secure", *self._at)
            for line in shown.splitlines():
                self._screen.note(line)
            model = folder / "secure.safetensors"
            self._get(secure, model)
        return plain, secure, model

    def _run(self, file: str, text: str, made: tuple[str, str]) -> Journal:
        """Create a run of this plan, and follow it to its end. ``made``: the option that gives its first checkpoint."""
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


def _look_at_data(setting: Setting, screen: Screen) -> None:
    """Load the data once, before several processes need it, and report its errors before anything starts."""
    data = load_data(setting.split.data)
    if data.test is None:
        raise Failure(f"{setting.split.data} has no test part: nothing could be scored.")
    setting.split.shards(data.train)
    split = setting.split
    how = f"{split.by}, alpha {split.alpha:g}" if split.by == "dirichlet" else split.by
    screen.note(f"{len(data.train)} examples of {split.data} go to {split.devices} devices ({how}).")


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
