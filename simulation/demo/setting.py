"""The settings of a demo, and the plans made from them: of its plain rounds, and of its secure ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from client_sdk.device.policy import largest_batch
from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg.parameters import STRICT_LIMIT
from simulation.fleet.split import Split
from simulation.fleet.trainer import FleetHabits

_COMMENTS_AT = 32
SELECT_S = 15
COLLECT_S = 60
SECURE_COLLECT_S = 120
EXCHANGE_S = 60
QUIET_S = 4
"""A vanished device costs an exchange so long, a busy machine may take ``EXCHANGE_S``."""
MAX_NORM = 6.0
MAX_ABS = 1.0
"""Of ``quorate:mnist-mlp`` with these settings: in 18 rounds of 120 devices each, 0.3 % of the updates had a larger
norm, and 0.3 % a larger coordinate."""
SMALLEST_COHORT = 64
"""The SDK's bound: devices hide among so many."""


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
    secure_rounds: int = 2
    """Secure rounds that follow on the plain ones, from their last checkpoint; 0: none."""
    secure: bool = False
    """All rounds are secure, in one run."""

    def __post_init__(self) -> None:
        if self.select > self.split.devices:
            raise ValueError(f"--select {self.select}: there are only {self.split.devices} devices (--devices).")
        if self.goal > self.select:
            raise ValueError(f"--goal {self.goal} is above --select {self.select}: a round could never reach it.")
        if self.compare and self.secure:
            raise ValueError("--compare needs to know each cohort's updates: it compares plain rounds, not --secure.")

    @property
    def name(self) -> str:
        """The run's name, after its data."""
        stem = self.split.label(0).rsplit("/", 1)[0].lower()
        return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-") or "demo"

    @property
    def pool(self) -> int:
        """How many devices must wait before a cohort is drawn: more than ``select``, so that cohorts differ."""
        return self.select + (self.split.devices - self.select) // 5

    def for_data(self, sizes: Sequence[int]) -> Setting:
        """These settings for devices with so many examples each: with a batch that the owners of enough of them let
        into secure rounds. ValueError where too few devices have data enough for these."""
        bounds = SecureBounds()
        if not (self.secure or self.secure_rounds):
            return self
        size = sorted(sizes, reverse=True)[self.pool - 1]
        if size < bounds.fewest_examples:
            enough = sum(one >= bounds.fewest_examples for one in sizes)
            raise ValueError(
                f"Secure rounds take {bounds.fewest_examples} examples of a device or more, and {enough} of "
                f"{len(sizes)} devices have as many, of {self.pool} that a cohort is drawn from: use fewer --devices, "
                "or --secure-rounds 0."
            )
        return replace(self, batch_size=min(self.batch_size, largest_batch(bounds, size)))

    @property
    def smallest_cohort(self) -> int:
        """The fewest devices of a secure round: the SDK's bound, or fewer in a small demo."""
        return min(SMALLEST_COHORT, self.goal)

    def plan(self, file: str = "plan.toml") -> str:
        """The plan of the plain rounds as TOML. ``file``: what it will be called, for the comment at its top."""
        about = f"The plan of `quorate demo`. Create a run of this plan: quorate run create {file}"
        return self._plan(about, self.name, self.rounds, secure=False)

    def secure_plan(self, file: str = "secure.toml") -> str:
        """The plan of the secure rounds as TOML: all of the demo's, or those that follow on the plain ones."""
        create = f"quorate run create {file}" + ("" if self.secure else " --init model.safetensors")
        about = f"The secure rounds of `quorate demo`. Create a run of this plan: {create}"
        rounds = self.rounds if self.secure else self.secure_rounds
        return self._plan(about, f"{self.name}-secure", rounds, secure=True)

    def _plan(self, about: str, name: str, rounds: int, *, secure: bool) -> str:
        rows = [
            ("", about),
            (f'name = "{name}"', ""),
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
            (f"goal = {self.goal}", "devices in the sum" if secure else "reports that close the round"),
            *([("quorum = 1.0", "no fewer than the goal")] if secure else []),
            (f"select_s = {SELECT_S}", "seconds after which the cohort is drawn from the devices that wait"),
            (f"collect_s = {SECURE_COLLECT_S if secure else COLLECT_S}", "seconds from selection to the deadline"),
            ("", ""),
            ("[aggregation]", ""),
            *([('partial = "refuse"', "secure rounds take no work that a deadline has cut short")] if secure else []),
            (f"server_learning_rate = {self.server_learning_rate}", "the factor of the mean update"),
            *(self._section() if secure else []),
            ("", ""),
            ("[finish]", ""),
            (f"rounds = {rounds}", "committed ones"),
        ]
        return "".join(_row(text, comment) + "\n" for text, comment in rows)

    def _section(self) -> list[tuple[str, str]]:
        """The plan's section ``[secure]``."""
        roster = self.goal + self.goal // 20
        fast = [
            ('profile = "fast"', "for more than 300 devices: each masks with some others only"),
            (f"drop = {roster // 10}", "devices that may vanish"),
        ]
        return [
            ("", ""),
            ("[secure]", "the coordinator sees sums only"),
            *(fast if roster > STRICT_LIMIT else []),
            (f"max_norm = {MAX_NORM}", "L2 norm to which an update is scaled down"),
            (f"max_abs = {MAX_ABS}", "range of a coordinate, in 16 bits"),
            (f"minimum_cohort = {self.smallest_cohort}", "devices among which each one hides, at least"),
            (f"exchange_s = {EXCHANGE_S}", "seconds that an exchange lasts at most"),
            (f"quiet_s = {QUIET_S}", "seconds without a message after which it goes on, with enough devices"),
        ]


def _row(text: str, comment: str) -> str:
    if not comment:
        return text
    return f"{text:<{_COMMENTS_AT}}# {comment}" if text else f"# {comment}"
