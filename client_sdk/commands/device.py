"""``quorate device``: this machine takes part in a federation with its own data; ``quorate device history``: what it
did so far.

This file reads options and prints lines. Everything else is ``client.Client``'s.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.record import Joined
from client_sdk.storage import FileStorage, read_history
from client_sdk.terminal import DEFAULT_URL, Json, Url, fail, note, say, say_json, say_table, spoken

if TYPE_CHECKING:
    from client_sdk.protocol import SecureBounds

DEFAULT_FOLDER = Path("quorate-device")

Folder = Annotated[
    Path,
    typer.Option(help="Folder of this device: its key, its record, its history. One device a folder."),
]
Learners = Annotated[
    list[str] | None,
    typer.Option(
        "--learner",
        metavar="MODULE:ATTRIBUTE",
        help="A learner of your own, beside the installed ones; it is imported. May be given several times.",
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="NAME|FILE.npz", help="This device's data: an installed data set, or a file's x and y."
    ),
]
Share = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Use only this share of the data: 3/400 is the third of 400."),
]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(
    invoke_without_command=True,
    help="Take part in a federation with this machine's data, which never leaves it.\n\n"
    "What was begun is kept in the folder: started again, the device goes on where it was. Ctrl-C stops it.",
    epilog="Example: quorate device --enrolment-token TOKEN --data mnist --shard 3/400 --coordinator " + DEFAULT_URL,
)
@spoken
def device(
    context: typer.Context,
    coordinator: Url = DEFAULT_URL,
    enrolment_token: Annotated[
        str | None,
        typer.Option(
            "--enrolment-token",
            "--token",
            envvar="QUORATE_ENROLMENT_TOKEN",
            metavar="TOKEN",
            help="From the operator; 'quorate serve' prints it. Needed once.",
        ),
    ] = None,
    data: Source = None,
    shard: Share = None,
    learner: Learners = None,
    folder: Folder = DEFAULT_FOLDER,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds, however they end.")] = None,
    secure_only: Annotated[
        bool,
        typer.Option(
            "--secure-only", envvar="QUORATE_SECURE_ONLY", help="Take part only where updates are added under masks."
        ),
    ] = False,
    smallest_cohort: Annotated[
        int | None,
        typer.Option(
            min=2,
            envvar="QUORATE_SMALLEST_COHORT",
            help="In secure rounds, hide among so many devices at least; 64 where nothing is said.",
        ),
    ] = None,
    most_colluding: Annotated[
        int | None,
        typer.Option(min=1, help="In secure rounds, refuse rosters that so many colluding devices could break."),
    ] = None,
    strict_only: Annotated[
        bool, typer.Option("--strict-only", envvar="QUORATE_STRICT_ONLY", help="Join no secure rounds of profile fast.")
    ] = False,
    largest_norm: Annotated[
        float | None, typer.Option(min=0, help="In secure rounds, refuse an L2 clip above this.")
    ] = None,
    largest_range: Annotated[
        float | None, typer.Option(min=0, help="In secure rounds, refuse a range of values above this.")
    ] = None,
    largest_weight_cap: Annotated[
        int | None, typer.Option(min=1, help="In secure rounds, refuse a weight cap above this.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PACKAGE:NAME", help="Train only this learner; may be given several times."),
    ] = None,
    max_epochs: Annotated[
        int | None, typer.Option(min=1, help="Refuse plans that ask for more epochs a round.")
    ] = None,
    label: Annotated[str, typer.Option(help="A name that operators see, such as 'ward 7'.")] = "",
    as_json: Json = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from client_sdk.client import Client, Happening
    from client_sdk.data import Shard, load_data
    from client_sdk.learners import LearnerTrainer, catalogue_for
    from client_sdk.protocol import LEARNER_PATTERN, Policy
    from client_sdk.transport import check_url

    if data is None:
        fail("Name this device's data with --data: an installed data set such as mnist, or a file such as mine.npz.")
    check_url(coordinator)
    for name in allow or []:
        if not re.fullmatch(LEARNER_PATTERN, name):
            fail(f"{name!r} is not a learner's name; it looks like package:name.")
    catalogue = catalogue_for(learner or [])
    if not catalogue.versions:
        fail("This device has no learner: install a package that has one, or name yours: --learner module:attribute.")
    trainer = LearnerTrainer(catalogue, load_data(data, Shard.parse(shard) if shard is not None else None))
    policy = Policy(
        learners=tuple(allow) if allow else None,
        secure_only=secure_only,
        max_epochs=max_epochs,
        secure=_bounds(
            smallest_cohort=smallest_cohort,
            most_colluding=most_colluding,
            largest_norm=largest_norm or None,
            largest_range=largest_range or None,
            largest_weight_cap=largest_weight_cap,
            strict_only=strict_only or None,
        ),
    )

    def tell(happening: Happening) -> None:
        if as_json:
            fields = {"kind": happening.kind, "run": happening.run, "round": happening.round, "text": happening.text}
            say_json(fields)
        else:
            where = f"{happening.run} round {happening.round}: " if happening.run is not None else ""
            say(where + happening.text)

    log_plainly()
    with FileStorage(folder) as storage, stopped_by_signals() as stop:
        if storage.load() is None and enrolment_token is None:
            fail("This device is new: give it an enrolment token with --enrolment-token ('quorate serve' prints one).")
        with Client(
            coordinator,
            storage,
            trainer,
            enrolment_token=enrolment_token,
            policy=policy,
            label=label,
            on_happening=tell,
        ) as client:
            if not as_json:
                say(f"This device has {trainer.examples} examples and talks to {client.coordinator}. Ctrl-C stops it.")
            ended = client.run(rounds, stop)
    if as_json:
        say_json({"kind": "stopped", "rounds": ended})
    else:
        say(f"Stopped after {ended} round{'' if ended == 1 else 's'}. 'quorate device history' lists them.")


@app.command(
    help="List the rounds that this device joined: what it trained, what it sent, how it ended.",
    epilog="Example: quorate device history --folder quorate-device",
)
@spoken
def history(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
    joined = read_history(folder)
    if as_json:
        for entry in joined:
            say_json(entry)
        return
    columns = ["run", "round", "learner", "result", "update", "weight", "seconds", "reason"]
    say_table(columns, [_row(entry) for entry in joined], empty="This device has joined no round yet.")


@app.command(
    "allow-plain",
    help="Let this device take plain plans for a learner again. Once it has joined a secure round of a learner, it "
    "refuses them: an operator could otherwise ask for the same work without masks.",
    epilog="Example: quorate device allow-plain clinic:risk --folder quorate-device",
)
@spoken
def allow_plain(
    learner: Annotated[str, typer.Argument(metavar="PACKAGE:NAME", help="The learner, as plans name it.")],
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
    with FileStorage(folder) as storage:
        memory = storage.load_secure()
        if learner not in memory.learners:
            joined = ", ".join(sorted(memory.learners)) or "none"
            fail(f"This device has joined no secure round of {learner}; it has of: {joined}.")
        storage.save_secure(memory.plain_again(learner))
    if as_json:
        say_json({"kind": "plain-allowed", "learner": learner})
    else:
        say(f"This device takes plain plans for {learner} again, until it joins another secure round of it.")


def _bounds(**said: float | None) -> SecureBounds | None:
    """What the owner said of secure rounds; None where nothing was."""
    from client_sdk.protocol import SecureBounds

    bounds = {name: value for name, value in said.items() if value is not None}
    return SecureBounds.model_validate(bounds) if bounds else None


def _row(entry: Joined) -> list[Any]:
    return [
        entry.run,
        entry.round,
        entry.learner,
        entry.result,
        entry.update_digest[:12] if entry.update_digest is not None else None,
        entry.weight,
        f"{entry.ended_at - entry.joined_at:.1f}",
        entry.reason,
    ]


class _Plain(logging.Handler):
    """What the device logs, without the traceback of a learner that failed; QUORATE_DEBUG=1 shows that."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.getMessage()}; QUORATE_DEBUG=1 shows where" if record.exc_info else record.getMessage())


def log_plainly() -> None:
    """Lets the device's log speak as the command does."""
    log = logging.getLogger("quorate.device")
    if not os.environ.get("QUORATE_DEBUG") and not any(isinstance(handler, _Plain) for handler in log.handlers):
        log.addHandler(_Plain())


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C ends at once. (``timeout`` and others send SIGTERM
    twice.)"""
    stop = Event()
    if current_thread() is not main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            note("Stopping; once more ends it at once.")
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
