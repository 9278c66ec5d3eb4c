"""``quorate verify`` checks a database against the invariants and prints every violation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import Json, fail, note, say, say_json, show_answer
from coordinator.commands.common import progress, refuse_password
from coordinator.datafolder import AUDIT_KEY_FILE, AUTHORITY_FOLDER, BLOBS_FOLDER, DATABASE_FILE

if TYPE_CHECKING:
    from client_sdk.credentials.identity_keys import TrustedAuthority
    from coordinator.store.sql import SqlStore
    from coordinator.verify import AuditHead, Head, Violation


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
            metavar="HEAD",
            help="A link that was written down before, RUN:SEQ:LINK or audit:..., as this command prints it, or a file "
            "with one on each line; may be given several times.",
        ),
    ] = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(help="A device's history, as 'quorate device history --json' prints it: its receipts name links."),
    ] = None,
    audit_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key that signs the audit: a PEM file, or the public key in hexadecimal; may be given several times "
            "(default: audit-key.pem beside the database, if there is one).",
        ),
    ] = None,
    authority_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key of an authority that signs certificates and revocation lists: a PEM file, or the public key in "
            "hexadecimal; may be given several times (default: that of the authority inside, if there is one).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that no device counts twice, that the checkpoints form a line without fork or gap, that every commit is
    explained by the log, that every checkpoint is complete, and that the audit is one signed chain.

    Prints one line for each violation and exits with code 1 if there is any. A coordinator may run meanwhile.

    Prints where each log ends, as RUN:SEQ:LINK, and where the refusals of each run and the audit end. Whoever can write
    to the database can rewrite a log from any event on so that it holds, and cut the audit; it does not have the links
    that were written down elsewhere before. Give them by --head, or give the histories of devices by --receipts.
    Without any, the last line says that this was not checked.
    """
    from coordinator.blobs import BlobFolder
    from coordinator.verify import AuditHead, AuditWitness, CannotVerify
    from coordinator.verify import verify as check

    refuse_password(database)
    links, audit_heads = _heads(head or [], receipts or [])
    url, data = _locate(database)
    beside = data / BLOBS_FOLDER if data is not None and (data / BLOBS_FOLDER).is_dir() else None
    witness = AuditWitness(_audit_keys(audit_key or [], data), audit_heads)
    authorities = _authorities(authority_key or [], data)
    folder = blobs if blobs is not None else beside
    if blobs is not None and not blobs.is_dir():
        fail(f"There is no folder {blobs}.")
    if folder is None and not as_json:
        note("No blobs beside the database: the bytes of checkpoints are not checked (give their folder by --blobs).")
    store = _open(url)
    found = 0
    ends: list[Head | AuditHead] = []
    try:
        readable = BlobFolder(folder) if folder is not None else None
        with progress() as show:
            for wrong in check(
                store,
                readable,
                note=note,
                heads=links,
                reached=ends.append,
                audit=witness,
                progress=show,
                authorities=authorities,
            ):
                found += 1
                _say_wrong(wrong, as_json)
        runs = len(store.runs_named()) + len(store.flower_run_ids())
    except CannotVerify as error:
        fail(str(error))
    finally:
        store.close()
    if as_json:
        for end in ends:
            say_json(_end_json(end))
        heads = len(links) + len(audit_heads)
        say_json({"runs": runs, "wrong": found, "blobs": folder is not None, "heads": heads})
        if found:
            raise typer.Exit(1)
        return
    for end in ends:
        if isinstance(end, AuditHead):
            say(f"the audit ends at {end}")
        else:
            say(f"the refusals end at {end}" if end.refusals else f"the log ends at {end}")
    if found:
        raise typer.Exit(1)
    count = f"{runs} run{'' if runs == 1 else 's'}"
    if links or audit_heads:
        say(f"{count}: every invariant that the database can show holds, and it has the links that were given.")
    else:
        unseen = "a log, refusals or an audit that were cut or rewritten with all their links cannot be seen"
        say(f"{count}: the rows fit each other. No link from outside was given (--head, --receipts), so {unseen}.")


def _say_wrong(wrong: Violation, as_json: bool) -> None:
    place = f"{wrong.run} round {wrong.round}: " if wrong.round else f"{wrong.run}: " if wrong.run else ""
    shown = {"invariant": wrong.invariant, "run": wrong.run, "round": wrong.round, "what": wrong.what}
    show_answer(shown, f"invariant {wrong.invariant}: {place}{wrong.what}", as_json=as_json)


def _end_json(end: Head | AuditHead) -> dict[str, object]:
    from coordinator.verify import AuditHead

    if isinstance(end, AuditHead):
        return {"audit": end.count, "link": end.link, "head": str(end)}
    return {"run": end.run, "refusals" if end.refusals else "seq": end.seq, "link": end.link, "head": str(end)}


def _heads(texts: list[str], receipts: list[Path]) -> tuple[list[Head], list[AuditHead]]:
    """The links and the heads of the audit that somebody has written down. Failure where a text is none."""
    from coordinator.verify import AuditHead, BadAuditHead, BadHead, is_audit_head, of_history, parsed

    heads: list[Head] = []
    audit: list[AuditHead] = []
    try:
        for line in (line for text in texts for line in _lines(text)):
            if is_audit_head(line):
                audit.append(AuditHead.parse(line))
            else:
                heads.append(parsed(line))
        for path in receipts:
            heads += of_history(path.read_text("utf-8").splitlines())
    except (BadHead, BadAuditHead) as error:
        fail(str(error))
    except OSError as error:
        fail(f"The heads or receipts cannot be read: {error.strerror or error}.")
    except ValueError:
        fail(
            "The heads or receipts cannot be read: the file is no text with a head, or an object of JSON, on each line."
        )
    return heads, audit


def _lines(text: str) -> list[str]:
    """The heads in a file of this name, of which each line is one, or an object of JSON that may have one; or the text
    itself, where there is no such file. ValueError where the file has none."""
    if text.count(":") > 1 or not Path(text).is_file():
        return [text]
    lines = [line.strip() for line in Path(text).read_text("utf-8").splitlines() if line.strip()]
    found = [json.loads(line).get("head") if line.startswith("{") else line for line in lines]
    heads = [str(head) for head in found if head]
    if not heads:
        raise ValueError(f"{text} has no head")
    return heads


def _audit_keys(named: list[str], data: Path | None) -> frozenset[str] | None:
    """The public keys that may have signed the audit; None where none is known. Failure where one cannot be read."""
    from coordinator.key_file import KeyFileError, public_key

    try:
        return frozenset(map(public_key, _or_beside(named, data, AUDIT_KEY_FILE))) or None
    except KeyFileError as error:
        fail(f"{error} Give the key that signs the audit by --audit-key.")


def _authorities(named: list[str], data: Path | None) -> list[TrustedAuthority]:
    """The authorities whose keys are known. Failure where one cannot be read."""
    from client_sdk.credentials.errors import BadIdentityKey
    from client_sdk.credentials.identity_keys import TrustedAuthority
    from coordinator.authority.folder import KEY_FILE
    from coordinator.key_file import KeyFileError, public_key

    beside = f"{AUTHORITY_FOLDER}/{KEY_FILE}"
    try:
        return [TrustedAuthority(bytes.fromhex(public_key(text))) for text in _or_beside(named, data, beside)]
    except (KeyFileError, BadIdentityKey) as error:
        fail(f"{error} Give the authority's key by --authority-key.")


def _or_beside(named: list[str], data: Path | None, file: str) -> list[str]:
    """The keys that were named; else this file in the data folder, where it is there."""
    return named if named or data is None or not (data / file).exists() else [str(data / file)]


def _locate(database: str) -> tuple[str, Path | None]:
    """(URL, folder of the database file; None: it is not in one). Failure when there is no such database."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if "://" in database:
        try:
            url = make_url(database)
        except ArgumentError:
            fail("That is not a database URL (example: sqlite:////var/lib/quorate/quorate.sqlite3).")
        if url.get_backend_name() != "sqlite" or not url.database:
            return database, None
        path = Path(url.database)
    else:
        path = Path(database)
        path = path / DATABASE_FILE if path.is_dir() else path
    if not path.is_file():
        fail(f"There is no database {path}.")
    return f"sqlite:///{path.resolve()}", path.resolve().parent


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
