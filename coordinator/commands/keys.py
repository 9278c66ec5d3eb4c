"""``quorate keys`` creates, lists and revokes API keys of operators; ``quorate audit`` prints what they did.
``quorate worker`` lists and revokes a datacenter's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_sdk.http.paging import PAGE, every_page
from client_sdk.protocol.access import DAY_S, AuditHeadView, CreateKey, RoleName
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, say, say_json, show_answer
from coordinator.commands.common import asking, require_new, write_secret
from coordinator.commands.tables import TextTable, moment, show_table

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys.",
    epilog="Example: quorate keys create --role viewer --scope 'mnist*' --output viewer.key",
)


@app.command(epilog="Example: quorate keys create --role operator --scope 'mnist*' --output ci.key")
def create(
    role: Annotated[RoleName, typer.Option(help="viewer reads, operator also runs things, owner also gives keys.")],
    scope: Annotated[
        str, typer.Option(help="Runs for which it holds: '*', a run, or the beginning of names and '*'.")
    ] = "*",
    label: Annotated[str, typer.Option(help="What the key is for, for display.")] = "",
    days: Annotated[float, typer.Option(min=0.001, max=400, help="Days until it expires.")] = 90,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file for the key, readable by you only."),
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Create an API key. It is printed or written only once: the coordinator stores its hash. Only for owners."""
    request = CreateKey(role=role, scope=scope, label=label, expires_in_s=days * DAY_S)
    require_new(output)
    with asking(coordinator, key_file) as client:
        made = client.create_key(request)
    if output is not None:
        write_secret(output, made.text)
    if as_json:
        say_json({**made.model_dump(mode="json"), **({"text": None, "file": str(output)} if output else {})})
        return
    say(f"{made.key} is a key for {made.role} {made.scope}, until {moment(made.expires_at)}.")
    say(f"It is in {output}: give it by --key-file." if output else "The key, which is not shown again:")
    if output is None:
        say(made.text)


@app.command("list", epilog="Example: quorate keys list")
def listing(coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List the API keys within your scope, also revoked and expired ones. Only for owners."""
    with asking(coordinator, key_file) as client:
        found = every_page(client.keys)
    rows = [
        (
            row.key,
            row.role,
            row.scope,
            moment(row.created_at),
            row.created_by,
            moment(row.expires_at),
            None if row.revoked_at is None else moment(row.revoked_at),
            row.label or None,
        )
        for row in found
    ]
    columns = ("key", "role", "scope", "created", "by", "expires", "revoked", "label")
    show_table(
        TextTable(columns, rows, "No keys in your scope.", words="label", least=("created", "by", "revoked")),
        found,
        as_json=as_json,
    )


@app.command(epilog="Example: quorate keys revoke 3f8a61c0d7be4925")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as 'quorate keys list' shows it.")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Revoke an API key permanently. Streams that are open for it end. Only for owners."""
    with asking(coordinator, key_file) as client:
        view = client.revoke_key(key)
    show_answer(view, f"{view.key} is revoked.", as_json=as_json)


def audit(
    after: Annotated[int, typer.Option(min=0, help="Start after the row with this number.")] = 0,
    head: Annotated[
        bool,
        typer.Option("--head", help="Print where the audit ends, signed, as 'quorate verify --head' takes it."),
    ] = False,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Print what operators asked for, and who was refused: when, who, what. Only for owners.

    Append what --head prints to a file on another machine from time to time: 'quorate verify --head FILE' then shows
    rows that somebody removed from the end, or a chain that was computed anew.
    """
    with asking(coordinator, key_file) as client:
        if head:
            _say_head(client.audit_head(), as_json)
            return
        found = every_page(lambda found: client.audit(int(found), PAGE), after)
    rows = [(row.number, moment(row.at), row.by or None, row.action, row.run, row.detail or None) for row in found]
    columns = ("row", "when", "who", "what", "run", "detail")
    show_table(
        TextTable(columns, rows, "Nothing was recorded yet.", words="detail", least=("run",)), found, as_json=as_json
    )


def _say_head(view: AuditHeadView, as_json: bool) -> None:
    """Prints the head of the audit on one line. Failure where there is none that is signed."""
    if not view.count:
        fail("The audit has no row yet.")
    if not view.head:
        fail(f"The audit's last row, {view.count}, has no valid signature: 'quorate verify' says more.")
    show_answer(view, view.head, as_json=as_json)


workers = typer.Typer(
    no_args_is_help=True,
    help="List and revoke the workers that take datacenter rounds.",
    epilog="Example: quorate worker list",
)


@workers.command("list", epilog="Example: quorate worker list")
def list_workers(coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List the workers, with their state and the time when each last asked for a round."""
    with asking(coordinator, key_file) as client:
        found = every_page(client.workers)
    rows = [
        (row.worker, row.state, row.run, row.round, moment(row.created_at), moment(row.last_seen_at), row.label or None)
        for row in found
    ]
    columns = ("worker", "state", "run", "round", "registered", "last seen", "label")
    empty = "No workers yet. One joins: quorate datacenter join --token-file FILE --data NAME"
    show_table(TextTable(columns, rows, empty, words="label", least=("registered",)), found, as_json=as_json)


@workers.command("revoke", epilog="Example: quorate worker revoke w1f2e3d4c5b6a798")
def revoke_worker(
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
