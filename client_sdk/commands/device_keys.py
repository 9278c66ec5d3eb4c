"""``quorate device show | rotate | leave``: a device's id, key and certificate.

This file prints lines. ``http.rotating`` and ``http.leave`` do the work.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands.joining import DEFAULT_FOLDER, Folder
from client_sdk.terminal import Json, fail, note, say, say_json

if TYPE_CHECKING:
    from client_sdk.device.actions import Sleep
    from client_sdk.device.record import Record


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        help="Show this device's id, key and certificate, its authority, and its coordinator.",
        epilog="Example: quorate device show --folder quorate-device",
    )(show)
    app.command(
        help="Replace this device's key by a new one under the same id; the old one is revoked. Stop the device first. "
        "What it has signed in secure rounds stays remembered.",
        epilog="Example: quorate device rotate --folder quorate-device",
    )(rotate)
    app.command(
        help="Leave: the coordinator and the authority forget this device, and its key, certificate, update and "
        "checkpoints are deleted here. Says what is kept. Stop the device first.",
        epilog="Example: quorate device leave --folder quorate-device",
    )(leave)


def show(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    _require(folder)
    from client_sdk.device.storage import read_record

    shown = _shown(read_record(folder))
    if as_json:
        say_json(shown)
        return
    width = max(len(name) for name in shown)
    for name, value in shown.items():
        say(f"{name.replace('_', ' ').ljust(width)}  {'-' if value is None else value}")


def rotate(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    _require(folder)
    from client_sdk.device.storage import FileStorage
    from client_sdk.http.rotating import rotate as rotate_key

    with FileStorage(folder) as storage:
        shown = _shown(rotate_key(storage, pause=_wait))
    if as_json:
        say_json({"kind": "rotated", **shown})
    else:
        say(f"{shown['id']} has another key now, {shown['key']}; its old key is revoked.")
        say("The coordinator learns of it when this device runs again.")


def leave(
    folder: Folder = DEFAULT_FOLDER,
    without_coordinator: Annotated[
        bool,
        typer.Option(
            "--without-coordinator", help="The coordinator is gone: leave without telling it. The key is revoked."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    _require(folder)
    from client_sdk.device.leaving import Kept
    from client_sdk.device.storage import FileStorage
    from client_sdk.http.leave import leave as leave_all
    from client_sdk.protocol.problems import ProblemError

    left = folder / "left.json"
    with FileStorage(folder) as storage:
        before = storage.load() is None and left.is_file()
        if before:
            kept = Kept(**json.loads(left.read_text("utf-8")))
        else:
            try:
                kept = leave_all(storage, without_coordinator=without_coordinator)
            except ProblemError as error:
                fail(
                    f"{error} Nothing was deleted here; leave again later. Where the coordinator is gone for good, "
                    "leave --without-coordinator."
                )
            left.write_text(json.dumps(asdict(kept)), "utf-8")
    if as_json:
        say_json({"kind": "left", "kept": asdict(kept)})
        return
    what = "Its key, certificate, update and checkpoints are deleted. What is kept:"
    say(f"This device has left before. {what}" if before else f"This device has left. {what}")
    for line in (kept.here, kept.coordinator, kept.authority):
        say(f"  {line}")


def _shown(record: Record | None) -> dict[str, Any]:
    """What ``show`` prints: the fields of a device, None where it has none."""
    from client_sdk.credentials.certificate import Certificate
    from client_sdk.http.notices import date_of
    from client_sdk.identity import key_of

    certificate = (
        Certificate.parse(bytes.fromhex(record.certificate)) if record is not None and record.certificate else None
    )
    key = key_of(record.key_seed) if record is not None else None
    authority = record.authority if record is not None else None
    public = key.public_hex if key is not None else certificate.public_key.hex() if certificate is not None else None
    return {
        "id": certificate.id if certificate is not None else None,
        "key": public,
        "valid_until": date_of(certificate.not_after) if certificate is not None else None,
        "authority": authority.url if authority is not None else None,
        "authority_key_sha256": authority.digest if authority is not None else None,
        "coordinator": record.coordinator or None if record is not None else None,
        "registered": record is not None and record.registered is not None,
        "next_key": record is not None and bool(record.next_key_seed),
    }


def _wait(sleep: Sleep) -> None:
    import time

    note(f"{sleep.reason} Trying again in {sleep.max_s:.0f} s; Ctrl-C stops, and the next start goes on.")
    time.sleep(sleep.max_s)


def _require(folder: Path) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
