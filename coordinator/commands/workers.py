"""``quorate worker`` lists and revokes a datacenter's workers over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url
from coordinator.commands.asking import asking, show_answer
from coordinator.commands.tables import moment
from coordinator.commands.text_tables import TextTable, show_table

app = typer.Typer(
    no_args_is_help=True,
    help="List and revoke the workers that take datacenter rounds.",
    epilog="Example: quorate worker list",
)


@app.command("list", epilog="Example: quorate worker list")
def listing(coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List the workers, with their state and the time when each last asked for a round."""
    with asking(coordinator, key_file) as client:
        found = client.workers()
    rows = [
        (row.worker, row.state, row.run, row.round, moment(row.created_at), moment(row.last_seen_at), row.label or None)
        for row in found
    ]
    columns = ("worker", "state", "run", "round", "registered", "last seen", "label")
    empty = "No workers yet. One joins: quorate datacenter join --token-file FILE --data NAME"
    show_table(TextTable(columns, rows, empty, words="label", least=("registered",)), found, as_json=as_json)


@app.command(epilog="Example: quorate worker revoke w1f2e3d4c5b6a798")
def revoke(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="The worker's id, as 'quorate worker list' shows it.")
    ],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Give a worker no more rounds, permanently. A round that it has goes to another worker when the lease ends."""
    with asking(coordinator, key_file) as client:
        view = client.revoke_worker(worker)
    show_answer(view, f"{view.worker} is revoked.", as_json=as_json)
