"""Plays the runs that a question compares, and writes one picture and one page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from client_sdk.data import Examples
from simulation.clients import Clients
from simulation.errors import SimulationWarning, Stalled
from simulation.history import History, HistoryError
from simulation.questions.measures import Measured, measured
from simulation.questions.questions import QUESTIONS, Arm, Question
from simulation.questions.setting import Setting, Softmax, behaviour, class_of, data_of, fleet, plan
from simulation.simulator.simulate import simulate
from simulation.virtual.behaviour import Habits

if TYPE_CHECKING:
    from simulation.history.figure import HistoryFigure


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The runs of a question, by arm and seed."""

    name: str
    question: Question
    setting: Setting
    """The question's own."""
    arms: Mapping[str, tuple[Measured, ...]]

    @property
    def sentence(self) -> str:
        """The arms with the least and the most of what the bars show."""
        bar = self.question.bar
        known = {arm: value for arm, runs in self.arms.items() if (value := bar.value(runs)) is not None}
        if not known:
            return f"No run reached an accuracy of {self.setting.target or 0.0:g}."
        least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        said = f"Least {bar.heading}: {known[least]:,.{bar.digits}f} with *{least}*; most: "
        said += f"{known[most]:,.{bar.digits}f} with *{most}*."
        missing = [f"*{arm}*" for arm in self.arms if arm not in known]
        return said + (f" Not reached: {', '.join(missing)}." if missing else "")

    def page(self, picture: str) -> str:
        """The page in Markdown, which shows the picture of this address."""
        columns = self.question.columns
        rows = [["", *(column.heading for column in columns)], ["---"] * (len(columns) + 1)]
        rows += [[arm, *(column.text(runs) for column in columns)] for arm, runs in self.arms.items()]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        seeds = "one seed" if self.setting.seeds == 1 else f"the mean of {self.setting.seeds} seeds, with the range"
        return (
            f"## {self.question.title}\n\n{self.question.asks.format(goal=self.setting.goal)}\n\n"
            f"![{self.question.title}]({picture})\n\n{self.sentence}\n\n{table}\n\n"
            f"`quorate ask {self.name}` gives these numbers: {seeds}.\n"
        )

    def draw(self, path: Path) -> HistoryFigure:
        """The picture, in 10 by 4 inches: accuracy over virtual hours, for the first seed, and the bars. The same runs
        give the same file. HistoryError where matplotlib is not installed, or the file cannot be written."""
        try:
            from matplotlib import rc_context
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            from coordinator.pictures.panels import BLUE, GREEN, ORANGE, PINK, RED, SKY
            from simulation.history.figure import HistoryFigure
        except ModuleNotFoundError:
            raise HistoryError("Pictures need matplotlib: pip install 'quorate[simulation]'.") from None
        colours, styles = (BLUE, RED, GREEN, ORANGE, PINK, SKY), ("-", "--", ":")
        with rc_context({"svg.hashsalt": "quorate"}):
            figure = HistoryFigure(figsize=(10.0, 4.0), layout="constrained")
            FigureCanvasAgg(figure)
            curves, bars = figure.subplots(1, 2, width_ratios=(6, 4))
            for place, (arm, runs) in enumerate(self.arms.items()):
                colour, style = colours[place % 6], styles[place // 6 % 3]
                curves.plot(runs[0].hours, runs[0].accuracy, style, color=colour, linewidth=1.5, label=arm)
                value, bar = self.question.bar.value(runs), self.question.bar
                bars.barh(place, value or 0.0, color=colour, height=0.7)
                bars.text(value or 0.0, place, "  " + bar.text(runs), va="center", fontsize=7)
            if self.setting.target is not None:
                curves.axhline(self.setting.target, color="#888888", linewidth=0.8, linestyle=":")
            curves.set_xlabel("virtual hours")
            curves.set_ylabel("accuracy on the test set")
            curves.legend(fontsize=7, frameon=False, loc="lower right")
            bars.set_yticks(np.arange(len(self.arms)), list(self.arms), fontsize=7)
            bars.invert_yaxis()
            bars.set_xlabel(self.question.bar.heading)
            bars.set_xlim(0.0, 1.5 * max(1e-9, *(self.question.bar.value(runs) or 0.0 for runs in self.arms.values())))
            for axes in (curves, bars):
                axes.tick_params(labelsize=8)
                for side in ("top", "right"):
                    axes.spines[side].set_visible(False)
            figure.suptitle(self.question.title, fontsize=11)
            try:
                figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
            except (OSError, ValueError) as error:
                raise HistoryError(f"The picture cannot be written to {path}: {error}") from None
        return figure


def ask(name: str, setting: Setting | None = None, say: Callable[[str], None] = lambda line: None) -> Answer:
    """Plays the runs of a question, each arm on the same fleets. ``say``: is told of each run. KeyError for an unknown
    question, ValueError for a target that needs no training. The same setting gives the same answer."""
    question = QUESTIONS[name]
    own = question.setting(setting or Setting())
    found: dict[str, list[Measured]] = {arm: [] for arm in question.arms(own)}
    for seed in range(own.seeds):
        data = data_of(seed)
        clients = fleet(own, data.train, seed)
        for arm, changes in question.arms(own).items():
            habits = Habits(behaviour(**changes.behaviour), class_of, seed)
            history = _played(own, changes, seed, clients, data.test, min(question.scored, own.devices))
            if not history.rounds:
                raise ValueError(f"the model has an accuracy of {own.target} before round 1: give a higher target")
            size = history.rounds[0].downloaded or 0
            habits.carry(size // max(1, history.rounds[0].started), size // max(1, history.rounds[0].started))
            found[arm].append(measured(history, clients, habits, own.target))
            say(f"{arm}, seed {seed}: {found[arm][-1].rounds} rounds, {found[arm][-1].hours[-1]:.2f} virtual hours")
    return Answer(name=name, question=question, setting=own, arms={arm: tuple(runs) for arm, runs in found.items()})


def _played(setting: Setting, arm: Arm, seed: int, clients: Clients, test: Examples | None, scored: int) -> History:
    """One run; one that cannot go on has its rounds so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationWarning)
        try:
            return simulate(
                plan(setting, arm.plan),
                Softmax(),
                clients,
                test=test,
                score_clients=scored,
                behaviour=behaviour(**arm.behaviour),
                classes=class_of,
                seed=seed,
                progress=False,
                keep_checkpoints=2,
            )
        except Stalled as stalled:
            if not isinstance(stalled.history, History):
                raise
            return stalled.history
