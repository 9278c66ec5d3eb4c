"""``quorate simulate``: a federated run on this machine, from a plan's file and the name of a data set.

It reads the options, calls ``simulation.simulator.simulate``, and prints the result as lines or one JSON document.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from client_sdk.commands.joining import FILES, Target, takes_options
from client_sdk.terminal import Json, fail, note, say, say_json
from coordinator.commands.plans import Changes

if TYPE_CHECKING:
    from simulation.clients import Clients
    from simulation.history import History
    from simulation.virtual.behaviour import Behaviour
    from simulation.virtual.recorded import Recording

_SPREAD = "Partition"
_FLEET = "Behaviour of the fleet"
_SCORES = "Scores"
_ONE = "One client again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """The options of a partition; None: not given."""

    clients: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_SPREAD, help="How many. (default: one for each user, or 100)"),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SPREAD,
            help="natural, dirichlet, iid, shards, labels, quantity, noise, or NIID-Bench's niid-labels, "
            "niid-dirichlet, niid-quantity; or sampled: each draws its own, for up to millions of clients. (default: "
            "natural where the data has users, else dirichlet)",
        ),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(rich_help_panel=_SPREAD, help="Of dirichlet, quantity and sampled: the smaller, the more uneven."),
    ] = None
    size_sigma: Annotated[
        float | None, typer.Option(rich_help_panel=_SPREAD, help="How unequal sizes are; 0: equal.")
    ] = None
    shards_per_client: Annotated[int | None, typer.Option(rich_help_panel=_SPREAD, help="Of shards: 2.")] = None
    labels_per_client: Annotated[int | None, typer.Option(rich_help_panel=_SPREAD, help="Of labels: 2.")] = None
    noise_sigma: Annotated[float | None, typer.Option(rich_help_panel=_SPREAD, help="Of noise: 0.1.")] = None
    min_examples: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_SPREAD, help="How few a client may have.")
    ] = None
    examples: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_SPREAD, help="Of sampled: how many a client has: 50.")
    ] = None
    held_out: Annotated[
        float | None,
        typer.Option(rich_help_panel=_SPREAD, help="Share of its examples that a client holds out for scoring."),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BehaviourOptions:
    """What is changed of the named behaviour; None: nothing."""

    dropout: Annotated[
        float | None, typer.Option(rich_help_panel=_FLEET, help="Probability that a selected device vanishes.")
    ] = None
    stragglers: Annotated[
        float | None,
        typer.Option(rich_help_panel=_FLEET, help="Probability that a device does only part of its work."),
    ] = None
    straggler_share: Annotated[
        float | None,
        typer.Option(rich_help_panel=_FLEET, help="Exact share of a round's devices that do only part of their work."),
    ] = None
    step_s: Annotated[
        float | None,
        typer.Option(rich_help_panel=_FLEET, help="Median virtual seconds of an optimizer step. (default: 0.05)"),
    ] = None
    speed_sigma: Annotated[
        float | None, typer.Option(rich_help_panel=_FLEET, help="Spread of speed between devices; 0: all alike.")
    ] = None
    jitter_sigma: Annotated[
        float | None, typer.Option(rich_help_panel=_FLEET, help="Spread of a device's speed from round to round.")
    ] = None
    network_s: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_FLEET, help="Virtual seconds of a device on the network in a round. (default: 2)"
        ),
    ] = None


@takes_options
def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan; its task.learner names the learner.")],
    data: Annotated[
        str,
        typer.Option("--data", metavar=FILES, help="The data to partition: a data set, or a file."),
    ],
    target: Target = None,
    changes: Changes = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Play so many rounds at most now. (default: until the plan's finish)")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the partition, the first weights, the selection and the behaviour.")
    ] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="A data folder that stores the run; started again, it continues.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="First checkpoint. (default: the learner's)")
    ] = None,
    engine: Annotated[str, typer.Option(help="What trains the clients: serial, processes or ray.")] = "serial",
    steps: Annotated[
        str,
        typer.Option(
            help="How clients make local steps: exact, in the bits of deployment; fast, as takes the least time here; "
            "or traced, channels_last, stacked, stacked-<clients at once>."
        ),
    ] = "exact",
    secure: Annotated[
        str,
        typer.Option(help="Of a plan with [secure]: masked, really; or quantized only, with the same bits, and cheap."),
    ] = "masked",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of --engine processes or ray. (default: one for each core)")
    ] = None,
    datacenter: Annotated[
        str | None,
        typer.Option(
            metavar=FILES,
            help="What the datacenter holds, for a plan with [datacenter]; a table as FILE.csv:COLUMN. "
            "(default: the data that the plan names)",
        ),
    ] = None,
    shares: ShareOptions = ShareOptions(),
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", rich_help_panel=_SPREAD, help="Draw who holds what."),
    ] = None,
    test: Annotated[
        str,
        typer.Option(
            metavar="N|all", rich_help_panel=_SCORES, help="Score on so many examples of the data's test part; 0: none."
        ),
    ] = "10000",
    score_clients: Annotated[
        str,
        typer.Option(metavar="N|all", rich_help_panel=_SCORES, help="Score on so many clients' held-out examples."),
    ] = "0",
    score_every: Annotated[
        int, typer.Option(min=1, rich_help_panel=_SCORES, help="Score each so-many-th checkpoint.")
    ] = 1,
    behaviour: Annotated[
        str,
        typer.Option(
            metavar="ideal|phones|FILE",
            rich_help_panel=_FLEET,
            help="ideal: equally fast, always there; phones: as in the literature; the options below change these. "
            "Or a file that `quorate record` wrote.",
        ),
    ] = "ideal",
    changed: BehaviourOptions = BehaviourOptions(),
    only: Annotated[
        str | None, typer.Option(metavar="CLIENT", rich_help_panel=_ONE, help="Train just this client, with --round.")
    ] = None,
    round_: Annotated[
        int | None, typer.Option("--round", min=1, rich_help_panel=_ONE, help="As in this round.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw funnel, metrics and participation (.png, .svg, .pdf).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each round.")] = False,
    as_json: Json = False,
) -> None:
    """Run a plan on simulated clients, by the coordinator, the sessions and the learning code of deployment.

    A line for each round goes to standard error. Ctrl-C ends it between two steps; with --folder, the same command
    continues from there.
    """
    from client_sdk.data import load_data, with_target
    from client_sdk.learners import catalogue_for
    from coordinator.engine.plan import Plan
    from simulation.commands.data import shared_out, some_of
    from simulation.commands.rerun import again, hint
    from simulation.engines import EngineName
    from simulation.engines.steps import asked
    from simulation.errors import ClientFailed, SimulationError
    from simulation.partitioning import By
    from simulation.simulator import simulate as simulator
    from simulation.simulator.checks import SecureWay

    if shares.by not in (None, "sampled", *get_args(By)):
        fail(f"There is no partition method {shares.by}; there are {', '.join(get_args(By))} and sampled.")
    if engine not in get_args(EngineName):
        fail(f"There is no engine {engine}; there are {', '.join(get_args(EngineName))}.")
    try:
        asked(steps)
    except ValueError as error:
        fail(f"{str(error)[:1].upper()}{str(error)[1:]}.")
    if secure not in get_args(SecureWay):
        fail(f"There is no way {secure} to simulate secure rounds; there are {', '.join(get_args(SecureWay))}.")
    if (only is None) != (round_ is None):
        fail("--only and --round go together: which client, and as in which round.")
    for path, endings in ((plot, (".png", ".svg", ".pdf")), (picture, (".svg",))):
        if path is not None and path.suffix.lower() not in endings:
            fail(f"The picture {path} must end in {' or '.join(endings)}.")
        if path is not None and not path.absolute().parent.is_dir():
            fail(f"There is no folder {path.parent} for the picture.")
    scored, tested = _number("--score-clients", score_clients), _number("--test", test)
    habits = _behaviour(behaviour, **vars(changed))
    whole = Plan.from_toml(plan, changes or ())
    fleet, test_part = shared_out(with_target(data, target), shares, seed)
    learner = catalogue_for([whole.task.learner]).load(whole.task.learner)  # after the data: torch takes seconds
    if only is not None and round_ is not None:
        again(
            whole, learner, fleet, only, round_,
            behaviour=habits, init=init, seed=seed, folder=folder, as_json=as_json,
        )  # fmt: skip
        return
    if picture is not None:
        fleet.draw(picture)
    if not quiet:
        note(f"{data}: {fleet.summary()}")
    warnings.showwarning = lambda message, *_, **__: note(str(message))
    held = whole.datacenter.data if whole.datacenter is not None else None
    if datacenter is not None and held is None:
        fail("--datacenter is given, and the plan has no section [datacenter].")
    try:
        history = simulator.simulate(
            whole,
            learner,
            fleet,
            test=some_of(test_part, tested, seed),
            score_clients=scored,
            score_every=score_every,
            behaviour=habits,
            datacenter=None if held is None else {held: load_data(datacenter or held)},
            engine=cast("EngineName", engine),
            secure=cast("SecureWay", secure),
            workers=workers,
            steps=steps,
            init=init,
            seed=seed,
            folder=folder,
            rounds=rounds,
            progress=not quiet,
        )
    except ClientFailed as error:
        note(str(error).rsplit("\n\n", 1)[0])
        fail(
            f"client {error.client!r} failed in round {error.round}. To train just this client again: "
            f"{hint(error.client, error.round, folder, error.init)}"
        )
    except SimulationError as error:
        text, _, trace = str(error).partition("\n\n")
        if trace:
            note(trace)
        fail(text)
    if as_json:
        say_json(document(history, fleet, folder))
    else:
        say(history.summary())
    if plot is not None:
        history.plot(plot)
    for line in way_on(history, folder, shlex.join(["quorate", *sys.argv[1:]])):
        (note if as_json else say)(line)
    if history.interrupted:
        raise typer.Exit(130)


def _behaviour(name: str, **changes: float | None) -> Behaviour | Recording:
    """The behaviour of this name, with those of the changes that are given, or the recording in this file."""
    from simulation.virtual.behaviour import PHONES, Behaviour
    from simulation.virtual.recorded import Recording

    known = {"ideal": Behaviour(), "phones": PHONES}
    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    if name not in known and not Path(name).is_file():
        fail(f"There is no behaviour {name}; there are {', '.join(known)}, and files of quorate record.")
    if name not in known and given:
        fail(f"--{next(iter(given)).replace('_', '-')} has no effect on a recording: {name} says what devices did.")
    if name not in known:
        return Recording.read(name)
    return dataclasses.replace(known[name], **given)


def _number(option: str, text: str) -> int | Literal["all"]:
    """A count, or all."""
    if text == "all":
        return "all"
    if not text.isdecimal():
        fail(f"{option} {text}: give a whole number from 0, or all.")
    return int(text)


def document(history: History, clients: Clients, folder: Path | None) -> dict[str, Any]:
    """The whole result as JSON values: the run, its plan, every round and every score. Times are in seconds."""
    began = history.created_at
    rounds = []
    for row in history.rounds:
        plain = dataclasses.asdict(row)
        opened, closed = plain.pop("opened_at"), plain.pop("closed_at")
        rounds.append(plain | {"opened_s": opened - began, "closed_s": None if closed is None else closed - began})
    newest = history.checkpoints[len(history)]
    sizes = clients.sizes
    return {
        "run": history.run,
        "status": history.status,
        "reason": history.reason,
        "interrupted": history.interrupted,
        "committed": len(history),
        "checkpoint": newest.digest,
        "clients": {"count": len(clients), "examples": int(sizes.sum()), "how": clients.how},
        "folder": None if folder is None else str(folder),
        "wall_s": sum(history.wall),
        "rounds": rounds,
        "withdrawals": [dataclasses.asdict(one) for one in history.withdrawals],
        "metrics": [
            {"version": one.version, "source": one.source, "name": one.name, "value": one.value}
            for one in history.metrics
        ],
        "plan": history.plan.written_out,
    }


def way_on(history: History, folder: Path | None, command: str) -> list[str]:
    """Lines about what can be done next with the run. ``command``: the command line that started it."""
    lines = []
    if history.interrupted:
        done = "1 round is" if len(history) == 1 else f"{len(history)} rounds are"
        lines.append(f"Stopped in round {len(history.rounds) or 1}: {done} committed.")
    if history.status != "finished" and folder is None and history.interrupted:
        lines.append("Nothing is stored: with --folder FOLDER a run continues where it was stopped.")
    if folder is not None:
        if history.status != "finished":
            lines.append(f"The same command continues from here: {command}")
        lines.append(
            f"Stored in {folder}; to look at it: quorate serve --data {folder}, and then quorate rounds {history.run}"
        )
    return lines
