"""The settings of a demo, and the plan made from them."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.fleet.habits import FleetHabits
from simulation.fleet.split import Split

_COMMENTS_AT = 32
SELECT_S = 15
COLLECT_S = 60


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of one demo. ValueError for numbers that contradict each other."""

    split: Split
    habits: FleetHabits
    learner: str = "quorate:mnist-mlp"
    processes: int = 2
    select: int = 300
    goal: int = 256
    rounds: int = 15
    epochs: int = 3
    batch_size: int = 20
    learning_rate: float = 0.3
    server_learning_rate: float = 1.8
    port: int = 0
    compare: bool = False

    def __post_init__(self) -> None:
        if self.select > self.split.devices:
            raise ValueError(f"--select {self.select}: there are only {self.split.devices} devices (--devices).")
        if self.goal > self.select:
            raise ValueError(f"--goal {self.goal} is above --select {self.select}: a round could never reach it.")

    @property
    def name(self) -> str:
        """The run's name, after its data."""
        stem = self.split.label(0).rsplit("-", 1)[0].lower()
        return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-") or "demo"

    @property
    def pool(self) -> int:
        """How many devices must wait before a cohort is drawn: more than ``select``, so that cohorts differ."""
        return self.select + (self.split.devices - self.select) // 5

    def plan(self, file: str = "plan.toml") -> str:
        """The plan as TOML. ``file``: what it will be called, for the comment at its top."""
        rows = [
            ("", f"The plan of `quorate demo`. Create a run of this plan: quorate run create {file}"),
            (f'name = "{self.name}"', ""),
            ("", ""),
            ("[task]", "the device's part"),
            (f'learner = "{self.learner}"', "package:name of a learner that is installed on the devices"),
            (f"epochs = {self.epochs}", "passes of a device over its data"),
            (f"batch_size = {self.batch_size}", ""),
            (f"learning_rate = {self.learning_rate}", ""),
            (f"seed = {self.split.seed}", "of the first weights and of the shuffles"),
            ("", ""),
            ("[cohort]", ""),
            (f"pool = {self.pool}", "devices that wait when the cohort is drawn"),
            (f"select = {self.select}", "more than are needed, because some drop out"),
            (f"goal = {self.goal}", "reports that close the round"),
            (f"select_s = {SELECT_S}", "seconds after which the cohort is drawn from the devices that wait"),
            (f"collect_s = {COLLECT_S}", "seconds from selection to the deadline"),
            ("", ""),
            ("[aggregation]", ""),
            (f"server_learning_rate = {self.server_learning_rate}", "the factor of the mean update"),
            ("", ""),
            ("[finish]", ""),
            (f"rounds = {self.rounds}", "committed ones"),
        ]
        return "".join(_row(text, comment) + "\n" for text, comment in rows)


def _row(text: str, comment: str) -> str:
    if not comment:
        return text
    return f"{text:<{_COMMENTS_AT}}# {comment}" if text else f"# {comment}"
