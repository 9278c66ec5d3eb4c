"""``quorate run`` creates, lists, shows, pauses, resumes, stops and advances runs of a coordinator over HTTP, and lifts
bars of devices.

The initial checkpoint of a run is a file, or made by a learner that is installed on this machine; the coordinator needs
no learner. ``quorate checkpoint`` lists a run's checkpoints and downloads one, which is checked against its digest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.http.paging import every_checkpoint, every_page
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, say, say_json, show_answer
from coordinator.commands.common import asking, counted_bytes
from coordinator.commands.initial_checkpoint import Statistics, given, initial, learner_unknown, roles_for, said_roles
from coordinator.commands.plans import Changes, PlanPath
from coordinator.commands.tables import TextTable, moment, print_run, print_runs, show_table, who_is_spent

if TYPE_CHECKING:
    from client_sdk.protocol.operators import RunView

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, show, pause, resume, stop, rename and advance runs; unbar devices.",
    epilog="Example: quorate run create plan.toml",
)

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as 'quorate run list' shows it.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Your name for the audit (default: your login name).")]


@app.command(
    epilog="Example: quorate run create plan.toml --init model.safetensors, or on a machine that has the learner: "
    "quorate run create plan.toml"
)
def create(
    plan: PlanPath,
    init: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The initial checkpoint, a safetensors file.")
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE:NAME", help="The learner that makes it, without --init (default: the plan's task.learner)."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the learner's initial weights (default: the plan's task.seed).")
    ] = None,
    statistics: Statistics = None,
    changes: Changes = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Start a run of a plan from an initial checkpoint."""
    from client_sdk.tensors import read_header
    from coordinator.engine.plan import Plan

    if init is not None and (learner is not None or seed is not None):
        fail("Give --init, or --learner and --seed, not both: each defines the initial checkpoint.")
    read = Plan.from_toml(plan, changes or ())
    doubt = learner_unknown(read, modules=False)
    content: Path | bytes
    said = said_roles(statistics)
    if init is not None:
        (content, made_by), origin = given(read, init), init.name
    else:
        read, content, origin, made_by = initial(read, learner, seed)
    roles, word = roles_for(read_header(content).manifest, said, made_by)
    with asking(coordinator, key_file) as client:
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        with counted_bytes(f"uploading {origin}", size) as on_bytes:
            digest = client.upload_checkpoint(content, on_bytes)
        repaired = digest in client.repaired
        made = client.create_run(read.written_out, digest, origin, roles)
    if as_json:
        say_json(made)
    else:
        first = (made.checkpoint or "")[:12]
        say(f"Created run {made.run} from {origin} ({first}). Follow it: quorate status {made.run}")
        if repaired:
            say("The coordinator had a damaged copy of this checkpoint; it is repaired.")
        if doubt:
            say(f"{doubt} Devices without it take no part.")
        if word:
            say(word)
        if read.secure is not None:
            from client_sdk.protocol.operators import STILL_READ

            if read.privacy is None:
                say(STILL_READ)
            if doubted := read.secure.said_of_first():
                say(f"{doubted[0].upper()}{doubted[1:]}")
        if made.devices_spent:
            say(
                f"{who_is_spent(made)}. The ways out: start from another checkpoint, use other devices, or, where "
                "devices' owners allow near models, advance the run once it is exhausted: "
                f"quorate run advance {made.run}"
            )


@app.command("list", epilog="Example: quorate run list")
def list_(coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List all runs, oldest first."""
    with asking(coordinator, key_file) as client:
        print_runs(every_page(client.runs), as_json=as_json)


@app.command(epilog="Example: quorate run show mnist")
def show(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Show one run: its status, its current round, its plan."""
    with asking(coordinator, key_file) as client:
        view = client.run(run)
    if as_json:
        say_json(view)
    else:
        print_run(view, plan=True)


@app.command(epilog="Example: quorate run pause mnist")
def pause(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Pause a run: the current round continues to its end, and no other one opens."""
    with asking(coordinator, key_file) as client:
        _print_status(client.pause(run), as_json)


@app.command(epilog="Example: quorate run resume mnist")
def resume(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Resume a paused run."""
    with asking(coordinator, key_file) as client:
        _print_status(client.resume(run), as_json)


@app.command(epilog="Example: quorate run stop mnist")
def stop(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Stop a run permanently. Its checkpoints stay."""
    with asking(coordinator, key_file) as client:
        _print_status(client.stop(run), as_json)


@app.command(epilog='Example: quorate run rename mnist "digits, larger cohort"')
def rename(
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is shown by, up to 64 characters.")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Show a run by another name. Its id and its plan stay."""
    with asking(coordinator, key_file) as client:
        view = client.rename(run, name)
    show_answer(view, f"Run {view.run} is shown as {view.name}.", as_json=as_json)


@app.command(epilog="Example: quorate run advance mnist --by olga")
def advance(
    run: RunName,
    by: By = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Let an exhausted run continue: commit its model moved by one unit, without contributions. Audited.

    Devices that have signed on the model before it answer this one only where their owners allow near models."""
    with asking(coordinator, key_file) as client:
        view = client.advance(run, by or _login())
    done = f"Run {view.run} commits its model moved by one unit, without contributions. The audit records this."
    show_answer(view, done, as_json=as_json)


@app.command(epilog="Example: quorate run unbar mnist phone-7 --by olga")
def unbar(
    run: RunName,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id, as 'quorate run show' names it.")],
    by: By = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Let a barred device take part in a run's secure rounds again. Audited."""
    with asking(coordinator, key_file) as client:
        view = client.unbar(run, device, by or _login())
    done = f"Device {device} may take part in run {view.run} again. The audit records this."
    show_answer(view, done, as_json=as_json)


@app.command(epilog="Example: quorate run sign mnist SIGNATURE --version 3")
def sign(
    run: RunName,
    signature: Annotated[
        str, typer.Argument(metavar="SIGNATURE", help="As 'quorate authority sign FILE --run --version' prints it.")
    ],
    version: Annotated[int, typer.Option(min=1, help="The version that it is under: the run's newest.")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Give devices a signature under the newest model, as after a round in a datacenter. Audited.

    Devices in secure rounds take a model that is further from the last one than rounds of theirs lead only where
    somebody whom their owners trust has signed it."""
    with asking(coordinator, key_file) as client:
        view = client.sign(run, version, signature)
    done = f"Devices of run {view.run} are told of the signature under version {version}. The audit records this."
    show_answer(view, done, as_json=as_json)


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        fail("The login name is not known: give --by NAME.")


def _print_status(view: RunView, as_json: bool) -> None:
    text = f"Run {view.run} is {view.status}" + (f": {view.reason}." if view.reason else ".")
    show_answer(view, text, as_json=as_json)


checkpoints = typer.Typer(
    no_args_is_help=True,
    help="List and download checkpoints.",
    epilog="Example: quorate checkpoint get mnist -o model.safetensors",
)


@checkpoints.command("list", epilog="Example: quorate checkpoint list mnist")
def list_checkpoints(
    run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False
) -> None:
    """List a run's checkpoints, each with its digest and origin."""
    with asking(coordinator, key_file) as client:
        line = every_checkpoint(client, run)
    rows = [(row.version, row.digest, row.round, row.bytes, moment(row.created_at), row.origin or None) for row in line]
    columns = ("version", "digest", "round", "bytes", "created", "origin")
    show_table(
        TextTable(columns, rows, "Nothing yet.", words="origin", least=("created", "bytes", "round")),
        line,
        as_json=as_json,
    )


@checkpoints.command("get", epilog="Example: quorate checkpoint get mnist --version 10 -o model.safetensors")
def get_checkpoint(
    run: RunName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")],
    version: Annotated[
        int | None, typer.Option("--version", min=0, metavar="N", help="Version to download (default: the newest).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file where it exists.")] = False,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Download a checkpoint as a safetensors file."""
    if output.is_dir():
        fail(f"{output} is a folder; name the file to write, as in {output / 'model.safetensors'}.")
    if not output.absolute().parent.is_dir():
        fail(f"There is no folder {output.parent}.")
    if output.exists() and not output.is_file():  # a device such as /dev/null would be gone
        fail(f"{output} is not a regular file, and would be replaced by one.")
    if output.exists() and not force:
        fail(f"{output} exists; --force overwrites it.")

    with asking(coordinator, key_file) as client:
        newest = client.run(run).version
        wanted = newest if version is None else version
        found = client.checkpoints(run, after=wanted - 1, limit=1)
        if not found:
            fail(f"Run {run} has no version {wanted}; its versions are 0 to {newest}.")
        digest = found[0].digest
        with counted_bytes(f"version {wanted} of {run}", found[0].bytes) as on_bytes:
            size = client.download(digest, output, on_bytes)
    show_answer(
        {"run": run, "version": wanted, "digest": digest, "bytes": size, "file": str(output)},
        f"Wrote version {wanted} of {run} ({size} bytes, {digest[:12]}) to {output}.",
        f"Load it: {how_to_load(output)}",
        as_json=as_json,
    )


def how_to_load(path: Path) -> str:
    """The Python call that loads a checkpoint as a dict of arrays, with what every install has."""
    return f"client_sdk.tensors.from_bytes(pathlib.Path({str(path)!r}).read_bytes())"
