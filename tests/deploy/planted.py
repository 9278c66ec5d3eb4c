"""Secrets that a test plants, and the places in which it then looks for them."""

from __future__ import annotations

import base64
import fnmatch
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

SHORTEST = 12
"""Characters of a secret, at least: a shorter one could be somewhere by chance."""
ENOUGH = 20
"""So many of its first characters are looked for: a log may cut or wrap what it shows."""

TITLE = "title"
"""The place of a process's short name: at most 15 bytes, so that it is searched for the beginning of a secret."""


@dataclass(frozen=True)
class Secret:
    name: str
    text: str
    may_be_in: tuple[str, ...] = ()
    """Names of places, with ``*``, in which it belongs: ``file owner-key``."""

    def forms(self) -> Iterator[bytes]:
        """The bytes that give it away: itself, and the ways in which programs write it down."""
        beginning = self.text[:ENOUGH]
        raw = beginning.encode()
        yield raw
        yield raw.hex().encode()
        yield quote(beginning, safe="").encode()
        # Base64 depends on what stands before: each of the three ways, without the characters that others share.
        for shift in range(3):
            yield base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4]


class Places:
    """What a process has written and said, each piece under the name of its place."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes]] = []

    def add(self, name: str, content: str | bytes) -> None:
        self.found.append((name, content.encode() if isinstance(content, str) else content))

    def pem_files(self) -> list[tuple[str, bytes]]:
        """The files of keys in the folders: (place, content)."""
        return [(place, content) for place, content in self.found if place.endswith(".pem")]

    def add_folder(self, folder: Path) -> None:
        """Each file by its path in the folder, and all their names."""
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            self.add("names of files", name)
            if path.is_file():
                self.add(f"file {name}", path.read_bytes())

    def add_processes(self, process: psutil.Process) -> None:
        """What every user of the machine sees of a process and its children: their command lines and titles. A child
        may end meanwhile."""
        self._add_process(process)
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                self._add_process(child)

    def _add_process(self, process: psutil.Process) -> None:
        self.add("command line", "\0".join(process.cmdline()))
        self.add(TITLE, (Path("/proc") / str(process.pid) / "comm").read_bytes())

    def leaks(self, secrets: Iterable[Secret]) -> list[str]:
        """Which secret is in which place where it does not belong."""
        found = []
        for secret in secrets:
            assert len(secret.text) >= SHORTEST, f"{secret.name} is too short to be looked for"
            forms = list(secret.forms())
            for place, content in self.found:
                if any(fnmatch.fnmatchcase(place, allowed) for allowed in secret.may_be_in):
                    continue
                looked_for = [secret.text[:SHORTEST].encode()] if place == TITLE else forms
                if any(form in content for form in looked_for):
                    found.append(f"{secret.name} is in {place}")
        return found
