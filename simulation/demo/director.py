"""The sequence of a demo: starts the commands, waits for the run, returns the result.

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
from simulation.demo.journal import METRIC, SOURCE, Journal, read
from simulation.demo.screen import Screen
from simulation.demo.setting import Setting

READY_S = 60.0
SCORE_S = 60.0
"""Seconds that the last score may take after the run has ended."""
STRAGGLERS_S = 2.0
"""Seconds to wait for late devices of the last round."""


@dataclass(frozen=True)
class Result:
    """The result of a demo."""

    url: str
    journal: Journal
    model: Path
    seconds: float
    """From the first command to the last score."""
    bare_accuracy: float | None

    @property
    def accuracy(self) -> float | None:
        committed = self.journal.committed
        return committed[-1].accuracy if committed else None

    def report(self) -> dict[str, Any]:
        """As ``DEMO_JSON`` has it."""
        return {
            "rounds": [line.report() for line in self.journal.committed],
            "bare_accuracy": None if self.bare_accuracy is None else round(self.bare_accuracy, 6),
            "seconds": round(self.seconds, 3),
        }


def direct(setting: Setting, folder: Path, screen: Screen, stop: Event) -> Result:
    """Run the demo in ``folder``. Raises StoppedByUser once ``stop`` is set, Failure where something fails. All its
    processes have ended in either case."""
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
        plan = folder / "plan.toml"
        plan.write_text(setting.plan(), "utf-8")
        at = ("--coordinator", url)
        children.start(
            "fleet", "fleet", "--token-file", str(token), *at, *_fleet(setting), "--folder", str(folder / "devices")
        )
        run = str(
            json.loads(
                children.run(
                    "run", "run", "create", str(plan), "--learner", setting.learner, *at, "--json"
                ).splitlines()[-1]
            )["run"]
        )
        scorer = children.start(
            "evaluate", "evaluate", run, "--data", setting.split.data, *at, "--source", SOURCE, keeps_running=False
        )
        with OperatorClient(url) as operator:
            journal = _follow(operator, run, children, scorer, screen, stop)
            seconds = time.monotonic() - began
            bare = _compare(operator, run, setting, children, screen) if setting.compare else None
        model = folder / "model.safetensors"
        screen.note("")
        children.run("checkpoint", "checkpoint", "get", run, "--output", str(model), *at)
    return Result(url, journal, model, seconds, bare)


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
    return [part for name, value in options.items() for part in (name, str(value))]


def _follow(
    operator: OperatorClient, run: str, children: CommandChildren, scorer: CommandChild, screen: Screen, stop: Event
) -> Journal:
    """Show the run until it has ended, every checkpoint is scored, and late devices had time to send."""
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


def _compare(operator: OperatorClient, run: str, setting: Setting, children: CommandChildren, screen: Screen) -> float:
    """The bare loop's accuracy over the same cohorts."""
    from simulation.demo.compare import bare_accuracy

    screen.note("")
    screen.note("The bare loop: the same cohorts and shards, in one process.")

    def report(number: int, found: float) -> None:
        children.look()
        screen.note(f"bare round {number}: accuracy {100 * found:.2f} %")

    return bare_accuracy(operator, run, setting.split, report)


@contextmanager
def _closing(screen: Screen) -> Iterator[None]:
    try:
        yield
    finally:
        screen.close()
