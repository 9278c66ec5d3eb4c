"""How large the worlds are that are played before the camera, and their plans."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.demo.setting import Setting
from simulation.fleet.split import Split
from simulation.fleet.trainer import FleetHabits

DATA = "fashion-mnist"
"""Debian's package dataset-fashion-mnist, which `make install` puts here."""


@dataclass(frozen=True, kw_only=True)
class World:
    """The sizes of the three scenes."""

    devices: int
    """Of the demo."""
    select: int
    goal: int
    demo_rounds: int
    after: int
    """The demo's committed rounds before its picture is taken, in the middle of the next one."""
    secure_rounds: int = 1
    epochs: int = 2
    rounds: int
    """Of the simulated run."""
    cohort: int
    """Clients that are selected for a simulated round."""
    steps: int = 2000
    """Of a round in the datacenter: enough for seconds on any machine, so that the picture shows a round under way."""
    datacenter_rounds: int
    """Committed ones before the picture of the fallback is taken."""
    select_s: int
    """Seconds for which the run that stands still looks for devices."""

    def demo(self, port: int) -> Setting:
        """Of the demo."""
        return Setting(
            split=Split(data=DATA, devices=self.devices, alpha=0.5, size_sigma=0.5),
            habits=FleetHabits(),
            select=self.select,
            goal=self.goal,
            rounds=self.demo_rounds,
            secure_rounds=self.secure_rounds,
            epochs=self.epochs,
            port=port,
        )

    def simulated(self) -> str:
        """The plan of the simulated run."""
        return f"""
name = "thousand-clients"
task = {{learner = "quorate:mnist-mlp", epochs = 5, batch_size = 20, learning_rate = 0.1}}
cohort = {{pool = 900, select = {self.cohort}, goal = {self.cohort * 5 // 6}, quorum = 0.6, collect_s = 60}}
finish = {{rounds = {self.rounds}}}
"""

    def fallback(self) -> str:
        """The plan of the run that falls back to the datacenter. A worker's step is stored in a quarter of a lease."""
        return f"""
name = "fallback"
task = {{learner = "quorate:mnist-mlp", batch_size = 32, learning_rate = 0.1}}
cohort = {{select = 4, goal = 3, quorum = 1.0, select_s = 5, collect_s = 60}}
finish = {{rounds = 40}}
[datacenter]
patience = 2
data = "{DATA}"
steps = {self.steps}
batch_size = 128
learning_rate = 0.05
nproc = 1
lease_s = 4
"""

    def standing(self) -> str:
        """The plan of the run that stands still, for want of devices."""
        return f"""
name = "hospitals"
task = {{learner = "quorate:mnist-mlp", batch_size = 32, learning_rate = 0.1}}
cohort = {{select = 10, goal = 8, quorum = 1.0, select_s = {self.select_s}, collect_s = 60}}
finish = {{rounds = 20}}
"""


SHOWN = World(
    devices=110,
    select=80,
    goal=64,
    demo_rounds=6,
    after=4,
    rounds=12,
    cohort=60,
    datacenter_rounds=2,
    select_s=20,
)
"""What is shown to people."""
CHECKED = World(
    devices=40,
    select=30,
    goal=24,
    demo_rounds=10,
    after=1,
    epochs=1,
    rounds=3,
    cohort=24,
    datacenter_rounds=1,
    select_s=8,
)
"""The smallest that has all that is to be seen, for tests."""
DEMO = World(
    devices=400,
    select=300,
    goal=256,
    demo_rounds=15,
    after=9,
    secure_rounds=0,
    epochs=3,
    rounds=12,
    cohort=60,
    datacenter_rounds=2,
    select_s=20,
)
"""The plain rounds of the demo as `make demo` plays them, for the README."""
