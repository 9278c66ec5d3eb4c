"""What commands share: the client of a coordinator, how an answer is shown; how far a long command is;
the options of every command that listens on a network; secrets.

Progress is shown on standard error: on a terminal by a bar with counts and the time left, else by a line every ten
seconds. A secret that a command makes goes into a new file, readable by its owner only and never in place of another
file. A password stands on no command line, since every user of a machine can read them.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.terminal import TimeLeft, fail, note

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient


def asking(coordinator: str, key_file: Path | None) -> OperatorClient:
    """A client of this coordinator, whose module is imported now."""
    from client_sdk.http.operator import OperatorClient

    return OperatorClient(coordinator, key_file=key_file)


def require_new(path: Path | None) -> None:
    """Failure where the file exists, or its folder does not. Before the secret is made. None: no file was asked for."""
    if path is not None and (path.exists() or not path.absolute().parent.is_dir()):
        fail(f"{path} exists, or has no folder: name a new file.")


def write_secret(path: Path, text: str) -> None:
    """Write a line into a new file with mode 0600. OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")


_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]+@|[?&]password=")


def refuse_password(url: str | None) -> None:
    """Failure where the URL has a password."""
    if url is not None and _PASSWORD.search(url):
        fail(
            "The database's URL has a password, which every user of this machine could read on a command line: "
            "leave it out, and give it in PGPASSWORD or ~/.pgpass, or for 'quorate serve' the whole URL in "
            "QUORATE_DATABASE."
        )


TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its certificate and the chain (PEM); read again when changed.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")]
BehindProxy = Annotated[
    list[str] | None,
    typer.Option(metavar="CIDR", help="Network of the proxy that ends TLS, in place of a certificate; repeatable."),
]


def ending_tls(tls_cert: Path | None, tls_key: Path | None, behind_proxy: list[str] | None) -> dict[str, Any]:
    """The settings of the options that were given."""
    options = {"tls_cert": tls_cert, "tls_key": tls_key, "behind_proxy": behind_proxy or None}
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def settings_errors() -> Iterator[None]:
    """Failure, in a sentence, where the settings made inside the block are not valid."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        invalid = "; ".join(
            ": ".join([*filter(None, [".".join(map(str, row["loc"]))]), str(row["msg"]).removeprefix("Value error, ")])
            for row in error.errors(include_url=False)
        )
        fail(f"These settings are not valid: {invalid}.")


LINE_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""

Show = Callable[[str, int, int], None]
"""Takes what is done now, how much of it is, and how much there is of it."""


@contextmanager
def progress(*, bytes: bool = False) -> Iterator[Show]:
    """A function that shows how far the work is; ``bytes``: that is what it counts. The bar goes when the work ends."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines(bytes)
        return
    counts = DownloadColumn() if bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), counts, TimeRemainingColumn())
    # Results go past the bar only where they are on the same terminal: a pipe on standard output keeps them.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=None)
        shown = ""

        def show(what: str, done: int, of: int) -> None:
            nonlocal shown
            if what != shown:
                bar.reset(task, description=what, total=of)
                shown = what
            bar.update(task, completed=done, total=of)

        yield show


@contextmanager
def counted_bytes(what: str, of: int) -> Iterator[Callable[[int], None]]:
    """A function that takes the number of bytes of each block of a transfer of ``of`` bytes."""
    with progress(bytes=True) as show:
        done = 0

        def more(size: int) -> None:
            nonlocal done
            done += size
            show(what, done, of)

        yield more


def _lines(bytes: bool, clock: Callable[[], float] = time.monotonic) -> Show:
    printed_at = clock()
    now, left = "", TimeLeft(clock)

    def show(what: str, done: int, of: int) -> None:
        nonlocal printed_at, now, left
        if what != now:
            now, left = what, TimeLeft(clock)
        rest = left.of(done, of)
        if clock() - printed_at >= LINE_EVERY_S:
            printed_at = clock()
            amount = f"{done / 1e6:.1f} of {of / 1e6:.1f} MB" if bytes else f"{done} of {of}"
            note(f"{what}: {amount}{rest}")

    return show
