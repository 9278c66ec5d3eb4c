"""What a coordinator is doing: ``quorate status``, ``rounds``, ``metrics``, ``devices`` and ``events``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from client_sdk.protocol.operators import DeviceView, RoundView
from client_sdk.terminal import DEFAULT_URL, Json, Url, say, say_json, say_table, spoken
from coordinator.commands.runs import RunName
from coordinator.commands.tables import moment, say_rounds, say_run, say_runs

PAGE = 1000


@spoken
def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run; without it, all of them.")] = None,
    coordinator: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show what a coordinator is doing, or how far one run is."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        if run is not None:
            view = client.run(run)
            say_json(view) if as_json else say_run(view)
            return
        runs = client.runs()
    say_json(runs) if as_json else say_runs(runs)


@spoken
def rounds(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the rounds of a run: how each ended and why, and how far its devices got."""
    from client_sdk.http.operator import OperatorClient

    found: list[RoundView] = []
    with OperatorClient(coordinator) as client:
        while page := client.rounds(run, after=found[-1].round if found else 0, limit=PAGE):
            found += page
            if len(page) < PAGE:
                break
    say_json(found) if as_json else say_rounds(found)


@spoken
def metrics(run: RunName, coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List a run's metrics by checkpoint, with the number of examples behind each."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        found = client.metrics(run)
    if as_json:
        say_json(found)
        return
    rows = [(row.version, row.source, row.name, row.value, row.examples) for row in found]
    say_table(
        ("version", "source", "metric", "value", "examples"),
        rows,
        f"No metrics yet. Score the checkpoints: quorate evaluate {run} --data DATA",
    )


@spoken
def devices(coordinator: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the enrolled devices: what each does now, and when it was last seen."""
    from client_sdk.http.operator import OperatorClient

    found: list[DeviceView] = []
    with OperatorClient(coordinator) as client:
        while page := client.devices(after=found[-1].device if found else "", limit=PAGE):
            found += page
            if len(page) < PAGE:
                break
    if as_json:
        say_json(found)
        return
    rows = [
        (row.device, row.state, row.run, row.round, row.examples_cap, moment(row.last_seen_at), row.label or None)
        for row in found
    ]
    say_table(
        ("device", "state", "run", "round", "examples", "last seen", "label"),
        rows,
        "No devices yet. Enrol one: quorate device --enrolment-token TOKEN --data DATA",
    )


@spoken
def events(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens, until the run ends.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Begin after the event with this number.")] = 0,
    coordinator: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Print a run's log, one event a line."""
    from client_sdk.http.operator import OperatorClient

    with OperatorClient(coordinator) as client:
        newest = client.run(run).seq
        if after >= newest and not follow:
            return
        for event in client.events(run, after):
            if as_json:
                say_json(event)
            else:
                say(f"{event.seq:>6}  {moment(event.at)}  {event.kind:<12} {_brief(event.body)}")
            if event.seq >= newest and not follow:
                return


def _brief(body: dict[str, object]) -> str:
    told = "  ".join(
        f"{name}={json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value}"
        for name, value in body.items()
    )
    return told if len(told) <= 160 else told[:159] + "…"
