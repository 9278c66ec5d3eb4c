"""``quorate plot`` draws a run into a file, for papers and pages: funnel, curves, and lanes or exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, say, say_json
from coordinator.commands.asking import asking
from coordinator.commands.runs import RunName
from coordinator.commands.watch import every_round

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.insight import LanesView
    from client_sdk.protocol.operators import RoundView


def plot(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A .svg, .pdf or .png. (default: RUN.svg)")
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option("--round", min=1, metavar="N", help="Whose lanes are drawn. (default: the newest committed one)"),
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Draw a run: the funnel of its rounds, its metrics, and what each device did in one round.

    Of a secure run it draws how many devices came to each exchange, since nobody knows what one device did. The same
    data give the same file; text stays text in .svg and .pdf.
    """
    from coordinator.pictures.run_figure import FORMATS, PicturedRun, has_secure_rounds, write

    file = out if out is not None else Path(f"{run}.svg")
    if file.suffix.lower() not in FORMATS:
        fail(f"The picture {file} must end in {', '.join([*FORMATS][:-1])} or {[*FORMATS][-1]}.")
    if not file.absolute().parent.is_dir():
        fail(f"There is no folder {file.parent} for the picture.")
    with asking(coordinator, key_file) as client:
        view = client.run(run)
        rounds = every_round(client, run)
        chosen = _chosen(rounds) if round_ is None else client.round(run, round_)
        lanes = None if chosen is None else _lanes(client, run, chosen)
        if round_ is not None and (lanes is None or lanes.secure):
            fail(f"Round {round_} has no lanes: {lanes.secure if lanes is not None else 'it selected no devices'}")
        found = PicturedRun(view=view, rounds=rounds, metrics=client.metrics(run), round=chosen, lanes=lanes)
    write(found, file)
    if as_json:
        say_json({"run": run, "file": str(file), "rounds": len(rounds), "lanes_of": chosen.round if chosen else None})
    else:
        shown = "with the exchanges of its secure rounds"
        if chosen is not None:
            shown = f"with the lanes of round {chosen.round}"
        elif not has_secure_rounds(view):
            shown = "without lanes, as no round has selected devices"
        count = f"{len(rounds)} round" + ("" if len(rounds) == 1 else "s")
        say(f"Wrote {count} of {run}, {shown}, to {file}.")


def _chosen(rounds: list[RoundView]) -> RoundView | None:
    """The round whose lanes are drawn: the newest that was committed, else the newest that selected devices; None where
    the newest is secure, or there is none."""
    drawn = [one for one in rounds if one.kind != "datacenter" and one.funnel.selected]
    newest = next((one for one in reversed(drawn) if one.status == "committed"), drawn[-1] if drawn else None)
    return None if newest is None or newest.kind == "secure" else newest


def _lanes(client: OperatorClient, run: str, chosen: RoundView) -> LanesView | None:
    if chosen.kind == "datacenter":
        return None
    return client.insight.lanes(run, chosen.round)
