"""The questions: which runs each compares, and in which numbers; plays them, and writes one picture and one page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from client_sdk.data import Examples
from simulation.clients import Clients
from simulation.errors import SimulationWarning, Stalled
from simulation.history import History, HistoryError
from simulation.questions.measures import Measured, measured
from simulation.questions.setting import CLASSES, Setting, Softmax, behaviour, class_of, data_of, fleet, plan
from simulation.simulator.simulate import simulate
from simulation.virtual.behaviour import Habits

if TYPE_CHECKING:
    from simulation.history.figure import HistoryFigure

Runs = Sequence[Measured]
"""Of one arm: a run for each seed."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is other than in the plan and the behaviour that all questions share."""

    plan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    behaviour: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number of an arm: the mean over its runs. None: a run did not reach the target."""

    heading: str
    of: Callable[[Measured], float]
    digits: int = 1
    needs_target: bool = False

    def value(self, runs: Runs) -> float | None:
        if self.needs_target and not all(run.reached for run in runs):
            return None
        return float(np.mean([self.of(run) for run in runs]))

    def text(self, runs: Runs) -> str:
        """The mean, and in brackets the least and the largest where they differ."""
        value = self.value(runs)
        if value is None:
            return "not reached"
        each = [f"{self.of(run):,.{self.digits}f}" for run in runs]
        low, high = min(map(self.of, runs)), max(map(self.of, runs))
        spread = f" ({low:,.{self.digits}f} to {high:,.{self.digits}f})" if len(set(each)) > 1 else ""
        return f"{value:,.{self.digits}f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question. ``bar``: the column that the picture's second panel shows."""

    title: str
    asks: str
    arms: Callable[[Setting], Mapping[str, Arm]]
    columns: Sequence[Column]
    bar: Column
    setting: Callable[[Setting], Setting] = lambda setting: setting
    scored: int = 0
    """How many clients score the model on what they hold out, for accuracies by class."""


HOURS = Column(heading="hours to the target", of=lambda run: run.hours[-1], digits=2, needs_target=True)
ROUNDS = Column(heading="rounds", of=lambda run: run.rounds)
ABANDONED = Column(heading="abandoned", of=lambda run: run.abandoned)
MINUTES = Column(heading="minutes of a round", of=lambda run: run.round_s / 60)
COUNTED = Column(heading="updates in a round", of=lambda run: run.counted, digits=0)
DEVICE_HOURS = Column(heading="device-hours", of=lambda run: run.device_hours, digits=0, needs_target=True)
WASTED = Column(heading="of these in no model, %", of=lambda run: 100 * run.wasted, digits=0)
HOURS_A_POINT = Column(
    heading="device-hours a point", of=lambda run: run.device_hours / run.points, digits=2, needs_target=True
)
DOWN_A_POINT = Column(heading="MB down a point", of=lambda run: run.down_mb / run.points, digits=3, needs_target=True)
UP_A_POINT = Column(heading="MB up a point", of=lambda run: run.up_mb / run.points, digits=3, needs_target=True)
BEST = Column(heading="accuracy", of=lambda run: run.accuracy[-1], digits=3)


def _never(name: str) -> Column:
    return Column(
        heading=f"{name} phones never heard, %",
        of=lambda run: 100 * run.classes[name].never / max(1, run.classes[name].devices),
    )


def _heard(name: str) -> Column:
    return Column(
        heading=f"{name}: counted, % of selections",
        of=lambda run: 100 * run.classes[name].counted / max(1, run.classes[name].selected),
        digits=0,
    )


def _accuracy_of(name: str) -> Column:
    return Column(heading=f"accuracy, {name}", of=lambda run: run.classes[name].accuracy or 0.0, digits=3)


def _over_selection(setting: Setting) -> dict[str, Arm]:
    selects = dict.fromkeys(setting.scaled(count) for count in (256, 270, 300, 350))
    return {f"{setting.goal} of {select}": Arm(plan={"cohort": {"select": select}}) for select in selects}


def _deadline(setting: Setting) -> dict[str, Arm]:
    return {
        f"{minutes} min, quorum {quorum:.0%}": Arm(
            plan={
                "cohort": {"collect_s": 60.0 * minutes, "quorum": quorum},
                "aggregation": {"partial": "refuse"},
            }
        )
        for minutes in (2, 5, 10)
        for quorum in (0.5, 0.9)
    }


def _partial(setting: Setting) -> dict[str, Arm]:
    words = {"refuse": "dropped", "examples_seen": "by examples seen", "full": "in full"}
    found: dict[str, Arm] = {}
    cohort = {"collect_s": 60.0, "quorum": 0.1, "goal": setting.scaled(300)}
    for policy, word in words.items():
        found[word] = Arm(plan={"cohort": cohort, "aggregation": {"partial": policy}})
    return found


def _never_heard(setting: Setting) -> dict[str, Arm]:
    whole = setting.scaled(300)
    return {
        f"first {setting.goal} of {whole}": Arm(),
        "all within 10 min": Arm(plan={"cohort": {"goal": whole, "quorum": 0.2}}),
        "all within 2 min, partial": Arm(
            plan={
                "cohort": {"goal": whole, "quorum": 0.2, "collect_s": 120.0},
                "aggregation": {"partial": "examples_seen"},
            }
        ),
        "all within 2 min, whole": Arm(
            plan={
                "cohort": {"goal": whole, "quorum": 0.2, "collect_s": 120.0},
                "aggregation": {"partial": "refuse"},
            }
        ),
    }


def _few_known(setting: Setting) -> Setting:
    """A thousand phones for 300 places, so that each is selected several times; and rounds without a target."""
    return Setting(
        devices=setting.scaled(1000),
        goal=setting.goal,
        rounds=min(20, setting.rounds),
        target=None,
        seeds=setting.seeds,
    )


def _cost(setting: Setting) -> dict[str, Arm]:
    return {f"{epochs} epoch{'s' * (epochs > 1)}": Arm(plan={"task": {"epochs": epochs}}) for epochs in (1, 2, 5, 10)}


QUESTIONS: dict[str, Question] = {
    "over-selection": Question(
        title="How many more devices to select than are needed?",
        asks="A round closes when {goal} devices have reported, or after ten minutes with 80 % of them. How many "
        "should be selected?",
        arms=_over_selection,
        columns=(HOURS, ROUNDS, MINUTES, COUNTED, DEVICE_HOURS, WASTED),
        bar=HOURS,
    ),
    "deadline": Question(
        title="Which deadline, and which quorum?",
        asks="Of 300 selected devices the first {goal} close a round. Who has not trained its whole task at the "
        "deadline withdraws; a round with fewer reports than the quorum is abandoned, and its work is lost.",
        arms=_deadline,
        columns=(HOURS, ROUNDS, ABANDONED, MINUTES, COUNTED, DEVICE_HOURS, WASTED),
        bar=HOURS,
    ),
    "partial": Question(
        title="Partial work, or none?",
        asks="All of 300 selected devices are awaited until a deadline of one minute. A device that has trained only "
        "part of its task then is dropped, or its part counts by the examples that it has seen, or in full.",
        arms=_partial,
        columns=(HOURS, ROUNDS, MINUTES, COUNTED, DEVICE_HOURS, WASTED),
        bar=HOURS,
    ),
    "never-heard": Question(
        title="Who is never heard?",
        asks="A thousand phones, a third each new, middle and old: an old one needs four times as long as a new "
        "one, and their labels differ. After 20 rounds: whose updates are in no model, though they were selected, and "
        "how good is the model on their own data?",
        arms=_never_heard,
        columns=(
            *map(_never, CLASSES),
            *map(_heard, CLASSES),
            *map(_accuracy_of, CLASSES),
        ),
        bar=_never("old"),
        setting=_few_known,
        scored=300,
    ),
    "cost": Question(
        title="What does a point of accuracy cost?",
        asks="Bytes and device-hours for each percentage point of accuracy that is won on the way to the target, by "
        "how long a device trains in a round.",
        arms=_cost,
        columns=(HOURS, ROUNDS, HOURS_A_POINT, DOWN_A_POINT, UP_A_POINT, BEST),
        bar=HOURS_A_POINT,
        setting=lambda setting: replace(setting, rounds=2 * setting.rounds),  # one epoch takes many rounds
    ),
}
"""Name -> question, as ``quorate ask`` takes it."""


# ------------------------------------------------------------ answer


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
