"""Finds the extensions of installed packages: entry points, by ``package:name`` and version.

Learners, data sets, codecs, aggregation rules and server optimizers are found this way, each in a group of its own. A
name is the distribution's and the entry's: entry ``risk`` of distribution ``clinic`` is ``clinic:risk``. An extension
is imported only when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from client_sdk.protocol.names import LEARNER_PATTERN


class CannotLoad(Exception):
    """An entry point exists but cannot be loaded: one sentence gives the reason."""


@dataclass(frozen=True, slots=True)
class Extension:
    """One entry point."""

    name: str
    """``package:name``."""
    version: str
    """The distribution's."""
    entry: EntryPoint

    def load(self) -> Any:
        """Import and return the object that the entry point names. CannotLoad."""
        try:
            return self.entry.load()
        except Exception as error:
            raise CannotLoad(f"{self.name} cannot be loaded: {type(error).__name__}: {error}") from error


def extensions(group: str, installed: Iterable[EntryPoint] | None = None) -> dict[str, Extension]:
    """The entry points of a group by name. ``installed``: those to use; None: those of this machine."""
    found: dict[str, Extension] = {}
    for entry in entry_points(group=group) if installed is None else installed:
        package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("local", "0")
        name = f"{package}:{entry.name}"
        if re.fullmatch(LEARNER_PATTERN, name):
            found[name] = Extension(name, version, entry)
    return found


@cache
def installed_version() -> str:
    """The version of Quorate itself; ``0`` where it runs from a folder that is not installed."""
    try:
        return version("quorate")
    except PackageNotFoundError:
        return "0"
