"""``quorate datacenter``: train a learner by synchronous SGD on this machine's GPUs or CPUs, or under torchrun.

This file reads options and prints lines; ``job`` starts the processes, ``rank`` is one of them. Importing it is fast
and needs no torch.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from client_sdk.commands.joining import FILES, Target, takes_options
from client_sdk.commands.long_running import Threads, use_threads
from client_sdk.terminal import Json, TimeLeft, fail, print_error, say, say_json
from coordinator.datacenter import agent, plan_command

if TYPE_CHECKING:
    from coordinator.datacenter.progress import OnMessage
    from coordinator.datacenter.spec import JobSpec

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
datacenter = typer.Typer(
    no_args_is_help=True,
    help="Train on a datacenter's machines by synchronous SGD.",
    epilog="Example: quorate datacenter train quorate:mnist-mlp --data mnist --nproc 2 --steps 500 --out m.safetensors",
)
app.add_typer(datacenter, name="datacenter")
datacenter.command(epilog=agent.JOIN_EPILOG)(agent.join)
datacenter.command(epilog=agent.FOLLOW_EPILOG)(agent.follow)
datacenter.command(epilog=plan_command.EPILOG)(plan_command.plan)


@app.callback()
def _commands() -> None:
    """Train on a datacenter's machines."""


@datacenter.callback()
def _datacenter() -> None:
    """Train on a datacenter's machines by synchronous SGD."""


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The options that have the names of a recipe's fields, beside steps and batch size."""

    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", help="Step size.")] = 0.1
    optimizer: Annotated[str, typer.Option(help="learner (its own), sgd, lars or lamb.")] = "learner"
    momentum: Annotated[float, typer.Option(help="Of sgd and lars; beta1 of lamb.")] = 0.9
    weight_decay: Annotated[float, typer.Option(help="Of sgd, lars and lamb.")] = 0.0
    trust_coefficient: Annotated[float, typer.Option(help="Of lars: a layer's step, as a fraction of its norm.")] = (
        0.001
    )
    linear_scaling: Annotated[
        bool, typer.Option("--linear-scaling", help="--learning-rate is for a batch of 256, and grows with the batch.")
    ] = False
    warmup_steps: Annotated[int, typer.Option(help="Steps in which the step size rises.")] = 0
    decay: Annotated[str, typer.Option(help="How the step size falls then: constant, linear or cosine.")] = "constant"
    max_grad_norm: Annotated[float | None, typer.Option(help="Scale gradients down to this norm.")] = None
    accumulate: Annotated[int, typer.Option(help="Cut each process's share of a batch into so many.")] = 1
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float16 (GPUs only).")] = "float32"
    bucket_mb: Annotated[float, typer.Option(help="Size of the pieces in which gradients are exchanged.")] = 25.0
    shard: Annotated[
        str, typer.Option(help="What is divided over processes: none, optimizer, gradients (and it), full (all).")
    ] = "none"
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute the learner's blocks again in backward, to save memory.")
    ] = False
    compress: Annotated[
        str, typer.Option(help="Smaller gradients: none, fp16, bf16, powersgd, topk, 1bit or 2bit.")
    ] = "none"
    compress_rank: Annotated[int, typer.Option(help="Of powersgd: columns of its matrices.")] = 4
    compress_density: Annotated[float, typer.Option(help="Of topk: the part of the values that is sent.")] = 0.01
    sync_every: Annotated[int, typer.Option(help="Average models after so many steps; 0: gradients, at each.")] = 0
    outer_learning_rate: Annotated[float, typer.Option(help="Of --sync-every: from one mean to the next.")] = 1.0
    outer_momentum: Annotated[float, typer.Option(help="Of --sync-every: of those steps (Nesterov).")] = 0.0
    sync_within: Annotated[int, typer.Option(help="Of --sync-every: neighbours that average gradients each step.")] = 1
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXIS=N,...", help="Axes data, replicas, tensor, pipeline; their product is --nproc."),
    ] = None
    schedule: Annotated[str, typer.Option(help="Of a pipeline: gpipe, 1f1b, interleaved, zb or dualpipev.")] = "1f1b"
    server: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="Parameter servers: count=1, staleness=4, backup=1, groups=2, sparse=async, as many as are needed.",
        ),
    ] = None
    hogwild: Annotated[
        bool, typer.Option("--hogwild", help="All processes move the same weights in shared memory, without locks.")
    ] = False
    unused_parameters: Annotated[
        bool, typer.Option("--unused-parameters", help="A step may leave parameters untouched.")
    ] = False
    averaged: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Train only these tensors: a name, a shell pattern, or ! and what to leave out. Several times.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Orders the data, and draws the first weights.")] = 0


@datacenter.command(
    epilog="Example: quorate datacenter train quorate:mnist-mlp --data mnist --nproc 2 --steps 500 --batch-size 512, "
    "or on several machines: torchrun --nnodes 2 ... -m client_sdk.cli datacenter train quorate:mnist-mlp --data mnist "
    "--steps 500"
)
@takes_options
def train(
    learner: Annotated[str, typer.Argument(metavar="LEARNER", help="package:name, or module:attribute of your own.")],
    data: Annotated[str, typer.Option(metavar=FILES, help="An installed data set, or a file: x and y, or a table.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps in all.")],
    target: Target = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch", help="Examples of a step, over all processes.")
    ] = 256,
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine; 1: a plain trainer.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda (one GPU a process), or auto.")] = "auto",
    backend: Annotated[str, typer.Option(help="Of collectives: gloo, nccl, mpi or ccl; auto: nccl or gloo.")] = "auto",
    threads: Threads = None,
    init: Annotated[
        Path | None, typer.Option(metavar="FILE", help="First checkpoint (default: the learner's).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the model, safetensors.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save steps here, to go on after a crash.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two saved ones.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest step in --checkpoints.")] = False,
    options: RecipeOptions = RecipeOptions(),
    hang_s: Annotated[float, typer.Option(help="Seconds after which a silent process counts as hung.")] = 300.0,
    max_restarts: Annotated[int, typer.Option(min=0, help="How often processes that died are started again.")] = 3,
    as_json: Json = False,
) -> None:
    """Train a learner by synchronous SGD: each batch split over the processes, one gradient, one model.

    Under torchrun (RANK and WORLD_SIZE in the environment) this process is one rank, and torchrun sets the number of
    processes instead of --nproc. The result is that of a single process at the same batch, up to rounding.
    """
    from client_sdk.data import require_source, with_target
    from coordinator.datacenter.job import launch
    from coordinator.datacenter.progress import ProgressThrottle, plain_line
    from coordinator.datacenter.spec import JobFailed, JobStopped

    if resume and checkpoints is None:
        fail("Name the folder to go on from with --checkpoints.")
    source = with_target(data, target)
    recipe: dict[str, Any] = asdict(options) | {"steps": steps, "batch_size": batch_size}
    if options.mesh is not None:
        recipe["mesh"] = _axes(options.mesh)
    if options.server is not None:
        recipe["server"] = dict(part.partition("=")[::2] for part in options.server.split(","))
    recipe["averaged"] = options.averaged or None
    spec = _checked(
        {
            "learner": learner,
            "data": source,
            "recipe": recipe,
            "init": init,
            "out": out,
            "checkpoints": checkpoints,
            "checkpoint_every": checkpoint_every,
            "resume": resume,
            "nproc": nproc,
            "threads": threads,
            "device": device,
            "backend": backend,
            "hang_s": hang_s,
            "max_restarts": max_restarts,
        }
    )

    throttle, left = ProgressThrottle(), TimeLeft()

    def show(message: dict[str, Any]) -> None:
        if as_json:
            say_json(message)
        elif sys.stdout.isatty() or throttle.allows(message):
            rest = left.of(message["step"], message["steps"]) if message["event"] == "progress" else ""
            say(plain_line(message) + rest)

    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        use_threads(threads)
        _as_a_rank(spec, show)
    from client_sdk.commands.stopping import stopped_by_signals

    require_source(source)
    if init is not None and not init.exists():
        fail(f"There is no file {init}.")
    with stopped_by_signals() as stop:
        try:
            launch(spec, show, stop)
        except JobFailed as failed:
            fail(str(failed))
        except JobStopped:
            resumable = " With --resume it goes on from the last saved step." if checkpoints is not None else ""
            print_error(f"Stopped.{resumable}")
            raise typer.Exit(130) from None


def _axes(mesh: str) -> dict[str, str]:
    """Of ``data=2,tensor=2`` the size of each axis."""
    pairs = [part.split("=") for part in mesh.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        fail("--mesh: write the axes as data=2,tensor=2.")
    return {axis.strip(): size for axis, size in pairs}


def _checked(fields: dict[str, Any]) -> JobSpec:
    """The job. An error names the option that is wrong."""
    from pydantic import ValidationError

    from coordinator.datacenter.spec import JobSpec

    try:
        return JobSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]
        option, *inside = place[1:] if place[0] == "recipe" and len(place) > 1 else place[-1:]
        text = first["msg"].removeprefix("Value error, ").rstrip(".")
        if option == "recipe":
            fail(f"{text[:1].upper()}{text[1:]}.")
        fail(": ".join([f"--{option.replace('_', '-')}", *inside, f"{text}."]))


def _as_a_rank(spec: JobSpec, show: OnMessage) -> NoReturn:
    """Run this process as a rank that torchrun started, until it exits."""
    from client_sdk.commands.long_running import exit_process
    from coordinator.datacenter.rank import outlive_a_kill, run

    outlive_a_kill(spec)
    exit_process(run(spec, show, fail=lambda message: print_error(str(message["reason"]))))
