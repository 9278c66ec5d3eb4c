"""The simulation's commands of ``quorate``: ``simulate``, ``record``, ``ask``, ``fleet``, ``demo`` and others.

``client_sdk.cli`` finds ``app`` by entry point. Importing this file is fast: each command imports what it needs when it
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands.joining import FILES, Target, takes_options
from client_sdk.commands.long_running import Threads
from client_sdk.commands.token_file import VARIABLE, TokenFile, enrolment_token
from client_sdk.protocol.names import copied
from client_sdk.terminal import DEFAULT_URL, Json, Url, fail, say, say_json
from simulation.commands import privacy
from simulation.commands.ask import ask
from simulation.commands.new import new
from simulation.commands.record import record
from simulation.commands.simulate import simulate

if TYPE_CHECKING:
    from simulation.fleet.split import Split
    from simulation.fleet.trainer import FleetHabits

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Processes = Annotated[int, typer.Option(min=1, max=256, help="Worker processes; each trains one device at a time.")]
LearnerName = Annotated[
    str, typer.Option("--learner", metavar="PACKAGE:NAME", help="The installed learner of all devices.")
]


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of a fleet: its data, how it is split, and what its devices are like."""

    data: Annotated[
        str, typer.Option("--data", metavar=FILES, help="The data to partition: an installed data set, or a file.")
    ] = "mnist"
    target: Target = None
    devices: Annotated[int, typer.Option(min=1, max=100_000, help="How many devices.")] = 400
    by: Annotated[str, typer.Option("--by", help="How the data is split: dirichlet, iid or shards.")] = "dirichlet"
    alpha: Annotated[float, typer.Option(help="For dirichlet: the smaller, the fewer labels a device has.")] = 0.5
    size_sigma: Annotated[float, typer.Option(help="How unequal the devices' sizes are; 0: equal.")] = 0.5
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of the devices' habits.")] = 0
    slow: Annotated[float, typer.Option(min=0, max=1, help="Share of devices that take up to four times as long.")] = (
        0.1
    )
    vanish: Annotated[float, typer.Option(min=0, max=1, help="Share that stops in the middle of a round.")] = 0.05
    late: Annotated[float, typer.Option(min=0, max=1, help="Share that sends after the round has closed.")] = 0.03

    def made(self) -> tuple[Split, FleetHabits]:
        """ValueError for values that do not fit together."""
        from client_sdk.data import with_target
        from simulation.fleet.split import Split
        from simulation.fleet.trainer import FleetHabits

        data = with_target(self.data, self.target)
        more: dict[str, Any] = {"by": self.by, "alpha": self.alpha, "size_sigma": self.size_sigma, "seed": self.seed}
        habits = FleetHabits(slow=self.slow, vanish=self.vanish, late=self.late, seed=self.seed)
        return Split(data=data, devices=self.devices, **more), habits


@app.callback()
def _commands() -> None:
    """Many devices on one machine, and a whole federation to watch."""


@app.command(epilog="Example: quorate fleet --token-file device.token --data mnist --devices 400")
@takes_options
def fleet(
    token_file: TokenFile = None,
    coordinator: Url = DEFAULT_URL,
    options: FleetOptions = FleetOptions(),
    processes: Processes = 2,
    learner: LearnerName = "quorate:mnist-mlp",
    folder: Annotated[
        Path, typer.Option(help="Folder of the devices' keys and records: started again, they continue.")
    ] = Path("quorate-fleet"),
    smallest_cohort: Annotated[
        int | None, typer.Option(min=2, help="The owners' smallest cohort of secure rounds (default: 64, of the SDK).")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run many devices in a few processes, each with its own key, folder and shard of one data set.

    Some are slow, some vanish in the middle of a round, some send too late. Runs until Ctrl-C.
    """
    from client_sdk.commands.stopping import stopped_by_signals
    from simulation.fleet.processes import FleetProcesses, worker_orders

    token = enrolment_token(token_file)
    if token is None:
        fail(f"The devices of a fleet need an enrolment token: give --token-file FILE, or set {VARIABLE}.")
    orders = worker_orders(
        *options.made(),
        coordinator=coordinator,
        enrolment_token=token,
        folder=folder,
        learner=learner,
        processes=processes,
        smallest_cohort=smallest_cohort,
    )
    with stopped_by_signals() as stop, FleetProcesses(orders, threads) as running:
        complete = False
        while (tally := running.watch(stop)) is not None:
            if as_json:
                say_json({**tally.model_dump(exclude={"worker", "fatal"})})
            elif not complete and tally.enrolled == options.devices:
                complete = True
                where = f"{len(orders)} process" + ("" if len(orders) == 1 else "es")
                say(
                    f"{options.devices} devices with {tally.examples} examples of {options.data} are enrolled at "
                    f"{coordinator}, in {where}. Ctrl-C stops them."
                )
    if not as_json:
        say("Stopped. " + running.total().sentence)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of a demo, besides those of its fleet."""

    select: Annotated[int, typer.Option(min=1, help="Devices selected for a round.")] = 300
    goal: Annotated[int, typer.Option(min=1, help="Reports that close a round.")] = 256
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to commit, before the secure ones.")] = 15
    secure_rounds: Annotated[int, typer.Option(min=0, help="Secure rounds that follow, from the last checkpoint.")] = 2
    secure: Annotated[bool, typer.Option("--secure", envvar="SECURE", help="All rounds are secure.")] = False
    epochs: Annotated[int, typer.Option(min=1, help="Passes over its data that a device makes in a round.")] = 3
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a training step.")] = 20
    learning_rate: Annotated[float, typer.Option(help="Of the devices' SGD.")] = 0.3
    server_learning_rate: Annotated[float, typer.Option(help="How many times the mean update is taken.")] = 1.8
    processes: Processes = 2
    learner: LearnerName = "quorate:mnist-mlp"
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the demo: new or empty. (default: a temporary one)")
    ] = None
    port: Annotated[int, typer.Option(help="The coordinator's TCP port; 0 takes any free one.")] = 0
    compare: Annotated[
        bool, typer.Option("--compare", envvar="COMPARE", help="Also train a bare loop on the same cohorts.")
    ] = False
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="DEMO_JSON", help="Write rounds and accuracies as JSON.")
    ] = None


@app.command(epilog="Example: quorate demo --compare")
@takes_options
def demo(
    options: FleetOptions = FleetOptions(),
    chosen: DemoOptions = DemoOptions(),
    as_json: Json = False,
) -> None:
    """Watch a whole federation learn on this machine: coordinator, devices and evaluator are real processes.

    Every command that it runs is shown, to be copied. Ctrl-C ends all of them.
    """
    from simulation.demo.command import run_demo
    from simulation.demo.setting import Setting

    split, habits = options.made()
    setting = copied(Setting, chosen, split=split, habits=habits)
    run_demo(setting, chosen.folder, chosen.report, as_json)


app.add_typer(privacy.app, name="privacy")
app.command(epilog="Example: quorate new credit-risk")(new)
app.command(epilog="Example: quorate ask over-selection")(ask)
app.command(epilog="Example: quorate record mnist --out mnist.json")(record)
app.command(epilog="Example: quorate simulate examples/mnist.toml --data mnist --clients 1000 --folder run")(simulate)
