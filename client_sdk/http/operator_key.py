"""Finds the API key that an operator's client sends to a coordinator.

::

    a file that the caller names                  --key-file
    a file that the environment names             QUORATE_KEY_FILE
    the key in the environment                    QUORATE_API_KEY
    the key of a coordinator on this machine      which `quorate serve` of the same user noted for its URL

A key is never an argument of a command, which every user of a machine can read.

``quorate serve`` notes the file of its owner's key in the user's state folder (``XDG_STATE_HOME``), in one file for
each URL. The note holds as long as that process lives and is this user's: another user who listens on the port after
it gets no key of ours.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

KEY_FILE = "QUORATE_KEY_FILE"
API_KEY = "QUORATE_API_KEY"


def find_key(coordinator: str, key_file: Path | str | None = None) -> str | None:
    """The key for the coordinator at this URL; None where there is none. ValueError where a file was named that cannot
    be read, or has no key."""
    named = key_file or os.environ.get(KEY_FILE)
    if named:
        return read_key(Path(named))
    given = os.environ.get(API_KEY, "").strip()
    if given:
        return given
    noted = _noted(coordinator)
    return None if noted is None else read_key(noted)


def noted_beside(coordinator: str) -> str:
    """The numeric address of this URL at localhost, where a key is noted for that; else empty. The key is not sent to
    ``localhost``, which may be another process, of another user, at ::1."""
    other = coordinator.replace("//localhost", "//127.0.0.1", 1)
    return other if other != coordinator and _noted(other) is not None else ""


def read_key(path: Path) -> str:
    """The key in a file. ValueError, in a sentence, where it cannot be read or is empty."""
    try:
        key = path.expanduser().read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ValueError(f"The key file {path} cannot be read: {why}.") from None
    if not key or not key.isprintable():
        raise ValueError(f"The key file {path} has no key.")
    return key


def note_key(coordinator: str, key_file: Path) -> Path:
    """Notes where the key of the coordinator is that this process serves at the URL. Returns the note's file; notes of
    other URLs that name the same key are removed. OSError."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = _note(coordinator)
    for other in folder.glob("*.json"):
        if other != path and _read(other).get("key_file") == str(key_file.resolve()):
            other.unlink(missing_ok=True)
    draft = folder / f"{path.name}.{os.getpid()}.new"
    content = json.dumps({"url": coordinator, "key_file": str(key_file.resolve()), "process": os.getpid()})
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content + "\n")
    draft.replace(path)
    return path


def forget_key(coordinator: str) -> None:
    """Removes the note of this process, if it is still its own. OSError."""
    path = _note(coordinator)
    if _read(path).get("process") == os.getpid():
        path.unlink(missing_ok=True)


def _noted(coordinator: str) -> Path | None:
    note = _read(_note(coordinator))
    process, key_file = note.get("process"), note.get("key_file")
    if not isinstance(process, int) or not isinstance(key_file, str):
        return None
    try:
        os.kill(process, 0)
    except (OSError, OverflowError):  # no such process, or another user's
        return None
    return Path(key_file)


def state_folder() -> Path:
    """What commands remember for this user: in ``XDG_STATE_HOME``, or ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state") / "quorate"


def _folder() -> Path:
    return state_folder() / "keys"


def _note(coordinator: str) -> Path:
    return _folder() / f"{quote(coordinator.rstrip('/').lower(), safe='')[:200]}.json"


def _read(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    return {}
