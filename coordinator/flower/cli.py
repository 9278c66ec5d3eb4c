"""``quorate flower``: run Flower apps on Quorate's devices, or on simulated nodes. Importing it needs no flwr."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from client_sdk.protocol.names import message_of
from client_sdk.terminal import (
    DEFAULT_URL,
    Json,
    KeyFile,
    Url,
    errors_as_sentences,
    fail,
    note,
    say,
    say_json,
    show_answer,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
flower = typer.Typer(
    no_args_is_help=True,
    help="Run Flower apps on Quorate's devices.",
    epilog="Example: quorate flower run my-app --simulation 10",
)
app.add_typer(flower, name="flower")


@app.callback()
def _commands() -> None:
    """Run Flower apps."""


@flower.callback()
def _flower() -> None:
    """Run Flower apps on Quorate's devices."""


@flower.command(
    epilog="Example: quorate flower run my-app --simulation 10 --run-config 'lr=0.05', or on devices: quorate flower "
    "run my-app --run trial-1"
)
@errors_as_sentences
def run(
    app_dir: Annotated[Path, typer.Argument(metavar="APP_DIR", help="The app's folder, with its pyproject.toml.")],
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="The run; the same name goes on after a crash.")
    ] = None,
    simulation: Annotated[
        int | None, typer.Option("--simulation", min=1, metavar="N", help="Simulate N nodes in this process.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --simulation: a data folder that keeps the run; 'quorate serve --data DIR' shows it.",
        ),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", metavar="K=V", help="Overrides, or one TOML file. Several times."),
    ] = None,
    quorum: Annotated[
        float | None,
        typer.Option(
            help="Go on when this share of the replies is there; the rest is late. Not for strategies that rely on "
            "an exact number of replies, as those with differential privacy do.",
        ),
    ] = None,
    grace: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds to wait after the quorum.")] = 0.0,
    max_reply: Annotated[
        int | None,
        typer.Option("--max-reply", min=1, metavar="BYTES", help="Longest reply (default: twice the longest message)."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Longest wait for replies, below the app's own.")
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Run an app's ServerApp in a process of its own, and its ClientApps on devices or simulated nodes.

    Devices join with 'quorate device --flower APP_DIR'. What the app prints goes to standard error.
    """
    from coordinator.flower.process import Orders, ServerAppEnded, follow

    if data is not None and simulation is None:
        fail("--data keeps a simulation: give --simulation N too, or leave it out.")
    try:
        orders = Orders(
            folder=app_dir,
            coordinator=coordinator,
            key_file=key_file,
            run=name,
            simulation=simulation,
            data=data,
            overrides=tuple(run_config or ()),
            quorum=quorum,
            grace_s=grace,
            max_reply=max_reply,
            longest_wait_s=timeout,
            quiet=as_json,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        fail(f"--{str(first['loc'][-1]).removesuffix('_s').replace('_', '-')}: {message_of(first)}.")

    begun: list[str] = []

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "run":
            begun.append(event["run"])
        if as_json:
            say_json(event)
        elif event["event"] == "run":
            say(f"The run {event['run']} of {event['app']} {event['version']}.")
        elif event["event"] == "remark" or event["done"] or sys.stdout.isatty():
            say(event["text"])

    try:
        end = follow(orders, show)
    except ServerAppEnded as ended:
        if ended.frames:
            note(ended.frames)
        if ended.left:
            note(f"Unless the run {ended.left} is over, {_how_to_go_on(ended.left)}")
        fail(str(ended))
    except KeyboardInterrupt:
        if begun and simulation is None:
            note(f"Stopped. The run {begun[0]} is kept: {_how_to_go_on(begun[0])}")
        raise
    totals = {key: end[key] for key in ("rounds", "replies", "errors", "seconds")}
    done = "Done: {rounds} rounds, {replies} replies, {errors} errors, {seconds:.1f} s.".format(**totals)
    show_answer(totals, done, as_json=as_json)


def _how_to_go_on(run: str) -> str:
    return f"--run {run} goes on with it, and 'quorate flower stop {run}' ends it."


@flower.command(epilog="Example: quorate flower stop trial-1")
@errors_as_sentences
def stop(
    name: Annotated[str, typer.Argument(metavar="RUN", help="The run.")],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """End a run that no ServerApp will go on with: its messages are no longer offered to devices."""
    from client_sdk.http.flower import FlowerOperator
    from client_sdk.http.operator_transport import OperatorTransport
    from client_sdk.protocol.flower import EndFlowerRun

    with closing(OperatorTransport(coordinator, key=None, key_file=key_file, http=None)) as transport:
        view = FlowerOperator(transport).end(name, EndFlowerRun(status="stopped", reason="An operator has stopped it."))
    show_answer(view, f"The run {view.run} is {view.status}.", as_json=as_json)
