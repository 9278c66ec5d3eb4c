"""``quorate checkpoint`` lists a run's checkpoints and downloads one, which is checked against its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, say, say_json
from coordinator.commands.asking import asking
from coordinator.commands.progress import counted_bytes
from coordinator.commands.runs import RunName
from coordinator.commands.tables import moment
from coordinator.commands.text_tables import TextTable, show_table

app = typer.Typer(
    no_args_is_help=True,
    help="List and download checkpoints.",
    epilog="Example: quorate checkpoint get mnist -o model.safetensors",
)


@app.command("list", epilog="Example: quorate checkpoint list mnist")
def list_(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List a run's checkpoints, each with its digest and origin."""
    with asking(coordinator, key_file) as client:
        line = client.checkpoints(run)
    rows = [(row.version, row.digest, row.round, row.bytes, moment(row.created_at), row.origin or None) for row in line]
    columns = ("version", "digest", "round", "bytes", "created", "origin")
    show_table(
        TextTable(columns, rows, "Nothing yet.", words="origin", least=("created", "bytes", "round")),
        line,
        as_json=as_json,
    )


@app.command(epilog="Example: quorate checkpoint get mnist --version 10 -o model.safetensors")
def get(
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
        line = {row.version: row for row in client.checkpoints(run)}
        wanted = max(line) if version is None else version
        if wanted not in line:
            fail(f"Run {run} has no version {wanted}; its versions are 0 to {max(line)}.")
        with counted_bytes(f"version {wanted} of {run}", line[wanted].bytes) as on_bytes:
            size = client.download(line[wanted].digest, output, on_bytes)
    if as_json:
        say_json({"run": run, "version": wanted, "digest": line[wanted].digest, "bytes": size, "file": str(output)})
        return
    say(f"Wrote version {wanted} of {run} ({size} bytes, {line[wanted].digest[:12]}) to {output}.")
    say(f"Load it: {how_to_load(output)}")


def how_to_load(path: Path) -> str:
    """The Python call that loads a checkpoint as a dict of arrays, with what every install has."""
    return f"client_sdk.tensors.from_bytes(pathlib.Path({str(path)!r}).read_bytes())"
