"""``quorate privacy ledger`` creates and shows privacy ledgers: what devices have lost, and how much they may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.http.paging import every_page
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, say, say_json, show_answer
from coordinator.commands.common import asking
from coordinator.commands.tables import TextTable, moment, show_table

if TYPE_CHECKING:
    from client_sdk.protocol.privacy import LedgerView

app = typer.Typer(
    no_args_is_help=True,
    help="Create and show privacy ledgers, which add up what devices lose over runs.",
    epilog="Example: quorate privacy ledger create phones --epsilon 8 --delta 1e-6",
)
Ledger = Annotated[str, typer.Argument(metavar="LEDGER", help="Its name; 'run:' and a run's id for a run's own.")]


@app.command(epilog="Example: quorate privacy ledger create phones --epsilon 8 --delta 1e-6")
def create(
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The name that plans give (privacy.ledger).")],
    epsilon: Annotated[float, typer.Option(help="The most that a device may lose over all runs of the ledger.")],
    delta: Annotated[float, typer.Option(help="The chance that the bound does not hold (privacy.delta).")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Create a ledger that plans may name. Its budget stays. Only for owners; audited."""
    from client_sdk.protocol.privacy import CreateLedger

    request = CreateLedger(ledger=ledger, epsilon=epsilon, delta=delta)
    with asking(coordinator, key_file) as client:
        made = client.create_ledger(request)
    show_answer(made, f'Created. Plans count by it with [privacy] ledger = "{ledger}".', as_json=as_json)


@app.command(epilog="Example: quorate privacy ledger allow phones --spent-in run:trial --because 'the trial was small'")
def allow(
    ledger: Ledger,
    spent_in: Annotated[str, typer.Option(metavar="LEDGER", help="Where devices have lost something before.")],
    because: Annotated[str, typer.Option(help="Why, for the audit and for who reads the ledger.")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Let devices that have lost something by one ledger lose more by another. Only for owners; it stands in the ledger
    and in the audit."""
    from client_sdk.protocol.privacy import AllowSpending

    with asking(coordinator, key_file) as client:
        view = client.allow_spending(ledger, AllowSpending(spent_in=spent_in, because=because))
    done = f"Devices that have lost something by {spent_in} may take part in runs of {ledger}. The audit records this."
    show_answer(view, done, as_json=as_json)


@app.command(epilog="Example: quorate privacy ledger show phones")
def show(
    ledger: Annotated[
        str | None, typer.Argument(metavar="LEDGER", help="One ledger with its runs (default: a list of all).")
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Show what devices have lost: by each ledger, or in each run of one."""
    with asking(coordinator, key_file) as client:
        if ledger is None:
            found = every_page(client.ledgers)
            rows = [(one.ledger, _spent(one), f"{one.delta:g}", one.devices, one.near, len(one.runs)) for one in found]
            columns = ("ledger", "epsilon", "delta", "devices", "near", "runs")
            show_table(TextTable(columns, rows, "No run has lost anything yet."), found, as_json=as_json)
            return
        one = client.ledger(ledger)
    if as_json:
        say_json(one)
        return
    say(f"{one.ledger}: epsilon {_spent(one)} at delta {one.delta:g}, of the device that has lost most")
    say(f"  {one.devices} devices have lost something; {one.near} of them are within a tenth of their limit")
    for run in one.runs:
        say(f"  run {run.run}: epsilon {run.epsilon:.3g}, {run.devices} devices, each in {run.rounds} rounds at most")
    for word in one.allowed:
        say(f"  {word.by} allowed devices of {word.other} on {moment(word.at)}: {word.because}")


def _spent(view: LedgerView) -> str:
    return f"{view.spent:.3g} of {view.epsilon:.3g}"
