"""``quorate verify`` checks a database against the invariants and prints every violation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import Json, errors_as_sentences, fail, note, say, say_json
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE

if TYPE_CHECKING:
    from coordinator.store.sql import SqlStore
    from coordinator.verify import Head


@errors_as_sentences
def verify(
    database: Annotated[
        str, typer.Argument(metavar="DB", help="A database file, a data folder of 'quorate serve', or a URL.")
    ],
    blobs: Annotated[
        Path | None,
        typer.Option(help="The folder of the blobs (default: the one beside the database, if there is one)."),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN:SEQ:LINK",
            help="A link that was written down before, as this command prints it; may be given several times.",
        ),
    ] = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(help="A device's history, as 'quorate device history --json' prints it: its receipts name links."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no device counts twice, that the checkpoints form a line without fork or gap, that every commit is
    explained by the log, and that every checkpoint is complete.

    Prints one line for each violation and exits with code 1 if there is any. A coordinator may run meanwhile.

    Prints where each log ends, as RUN:SEQ:LINK, and where the refusals of each run end. Whoever can write to the
    database can rewrite a log from any event on so that it holds; it does not have the links that were written down
    elsewhere before. Give them by --head, or give the histories of devices by --receipts.
    """
    from coordinator.folding.refold import BlobFolder
    from coordinator.verify import CannotVerify
    from coordinator.verify import verify as check

    written_down = _heads(head or [], receipts or [])
    url, beside = _locate(database)
    folder = blobs if blobs is not None else beside
    if blobs is not None and not blobs.is_dir():
        fail(f"There is no folder {blobs}.")
    if folder is None and not as_json:
        note("No blobs beside the database: the bytes of checkpoints are not checked (give their folder by --blobs).")
    store = _open(url)
    found = 0
    ends: list[Head] = []
    try:
        readable = BlobFolder(folder) if folder is not None else None
        for wrong in check(store, readable, note=note, heads=written_down, reached=ends.append):
            found += 1
            if as_json:
                say_json({"invariant": wrong.invariant, "run": wrong.run, "round": wrong.round, "what": wrong.what})
            else:
                say(f"invariant {wrong.invariant}: {wrong.run} round {wrong.round}: {wrong.what}")
        runs = len(store.runs_named())
    except CannotVerify as error:
        fail(str(error))
    finally:
        store.close()
    if as_json:
        for end in ends:
            say_json({"run": end.run, "refusals" if end.refusals else "seq": end.seq, "link": end.link})
        say_json({"runs": runs, "wrong": found, "blobs": folder is not None, "heads": len(written_down)})
        if found:
            raise typer.Exit(1)
        return
    for end in ends:
        say(f"the refusals end at {end}" if end.refusals else f"the log ends at {end}")
    if not found:
        say(f"{runs} run{'' if runs == 1 else 's'}: every invariant that the database can show holds.")
    if found:
        raise typer.Exit(1)


def _heads(texts: list[str], receipts: list[Path]) -> list[Head]:
    """The links that somebody has written down. Failure where a text names none."""
    from coordinator.verify import BadHead, of_history, parsed

    try:
        found = [parsed(text) for text in texts]
        for path in receipts:
            found += of_history(path.read_text("utf-8").splitlines())
    except BadHead as error:
        fail(str(error))
    except OSError as error:
        fail(f"The receipts cannot be read: {error.strerror or error}.")
    return found


def _locate(database: str) -> tuple[str, Path | None]:
    """(URL, folder of the blobs beside it). Failure when there is no such database."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if "://" in database:
        try:
            url = make_url(database)
        except ArgumentError:
            fail(f"{database!r} is not a database URL (example: sqlite:////var/lib/quorate/quorate.sqlite3).")
        if url.get_backend_name() != "sqlite" or not url.database:
            return database, None
        path = Path(url.database)
    else:
        path = Path(database)
        path = path / DATABASE_FILE if path.is_dir() else path
    if not path.is_file():
        fail(f"There is no database {path}.")
    return f"sqlite:///{path.resolve()}", _beside(path.resolve())


def _beside(path: Path) -> Path | None:
    folder = path.parent / BLOBS_FOLDER
    return folder if folder.is_dir() else None


def _open(url: str) -> SqlStore:
    """The store, without migration: verifying changes nothing. Failure when its schema is not the newest."""
    from coordinator.store.migrate import newest, revision
    from coordinator.store.sql import SqlStore

    store = SqlStore(url)
    found = revision(store.engine)
    if found != newest():
        store.close()
        has = "is not a database of Quorate" if found is None else f"has schema {found}"
        fail(f"{url} {has}; this version reads schema {newest()}. 'quorate serve' migrates an older one.")
    return store
