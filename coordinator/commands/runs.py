"""``quorate run``: create, list, show, pause, resume, stop and advance runs of a coordinator, over HTTP.

Creating needs the initial checkpoint: a file, or a learner that is installed on this machine (the coordinator itself
needs none). This file reads options and prints; ``OperatorClient`` asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import DEFAULT_URL, Json, Url, fail, say, say_json, spoken
from coordinator.commands.tables import say_run, say_runs

if TYPE_CHECKING:
    from client_sdk.protocol.operators import RunView
    from coordinator.engine.plan import Plan

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, show, pause, resume, stop and advance runs.",
    epilog="Example: quorate run create plan.toml",
)

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as 'quorate run list' shows it.")]


@app.command(
    epilog="Example: quorate run create plan.toml --init model.safetensors, or on a machine that has the learner: "
    "quorate run create plan.toml"
)
@spoken
def create(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="What the run is to do.")],
    init: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The initial checkpoint, a safetensors file.")
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE:NAME", help="Or the learner that makes it (default: the plan's task.learner)."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Draws the learner's initial weights (default: the plan's task.seed).")
    ] = None,
    coordinator: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Start a run of a plan from an initial checkpoint."""
    from client_sdk.http.operator import OperatorClient
    from coordinator.engine.plan import Plan

    if init is not None and (learner is not None or seed is not None):
        fail("Give --init, or --learner and --seed, not both: each says where the initial checkpoint comes from.")
    read = Plan.from_toml(plan)
    if init is not None:
        content, origin = checkpoint_file(init), init.name
    else:
        read, content, origin = initial(read, learner, seed)
    with OperatorClient(coordinator) as client:
        made = client.create_run(read.model_dump(mode="json"), client.upload_checkpoint(content), origin)
    if as_json:
        say_json(made)
    else:
        say(f"Created run {made.run} from {origin} ({made.checkpoint[:12]}). Follow it: quorate status {made.run}")


def checkpoint_file(path: Path) -> bytes:
    """The bytes of a safetensors file; one sentence with its name when it is none."""
    from client_sdk.tensors import TensorError, from_bytes

    content = path.read_bytes()
    try:
        from_bytes(content)
    except TensorError as error:
        fail(f"{path} is not a safetensors file that can start a run: {error}.")
    return content


def initial(plan: Plan, learner: str | None, seed: int | None) -> tuple[Plan, bytes, str]:
    """The initial checkpoint that a learner makes: (plan, safetensors bytes, origin for people).

    A plan that averages everything averages what the learner does, where the learner names a subset.
    """
    from client_sdk.learners import catalogue_for
    from client_sdk.tensors import to_bytes

    name = learner or plan.task.learner
    draw = plan.task.seed if seed is None else seed
    catalogue = catalogue_for([name])
    made = catalogue.load(name)
    have, wanted = catalogue.versions.get(name, ""), plan.task.learner_version
    if name == plan.task.learner and wanted is not None and have != wanted:
        fail(f"The plan wants {name} {wanted}; this machine has {have}. Install that version, or give --init.")
    if not hasattr(made, "initial"):
        fail(f"The learner {name} has no initial(seed): give the first checkpoint as a file by --init.")
    averaged = getattr(made, "averaged", ("*",))
    if plan.task.averaged == ("*",) and averaged != ("*",):
        plan = plan.model_copy(update={"task": plan.task.model_copy(update={"averaged": averaged})})
    return plan, to_bytes(made.initial(draw)), f"{name} {have}, seed {draw}"


@app.command("list", epilog="Example: quorate run list")
@spoken
def list_(coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all runs, oldest first."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        runs = client.runs()
    if as_json:
        say_json(runs)
    else:
        say_runs(runs)


@app.command(epilog="Example: quorate run show mnist")
@spoken
def show(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one run: its status, the round under way, its plan."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        view = client.run(run)
    if as_json:
        say_json(view)
    else:
        say_run(view, plan=True)


@app.command(epilog="Example: quorate run pause mnist")
@spoken
def pause(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Pause a run: the round under way is finished, no other begins."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        _say_done(client.pause(run), as_json)


@app.command(epilog="Example: quorate run resume mnist")
@spoken
def resume(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Go on with a paused run."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        _say_done(client.resume(run), as_json)


@app.command(epilog="Example: quorate run stop mnist")
@spoken
def stop(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop a run for good. Its checkpoints stay."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        _say_done(client.stop(run), as_json)


@app.command(epilog="Example: quorate run advance mnist --by olga")
@spoken
def advance(
    run: RunName,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who asks, for the audit (default: the name you logged in by).")
    ] = None,
    coordinator: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Help an exhausted run on: commit its model moved by one unit, on which no device is spent. Audited."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        view = client.advance(run, by or _login())
    if as_json:
        say_json(view)
    else:
        say(f"Run {view.run} commits its model moved by one unit, without contributions. This is in its audit.")


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        fail("This machine does not say who you are: give --by NAME.")


def _say_done(view: RunView, as_json: bool) -> None:
    if as_json:
        say_json(view)
    else:
        say(f"Run {view.run} is {view.status}" + (f": {view.reason}." if view.reason else "."))
