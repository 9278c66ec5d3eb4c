"""Finds the extensions of installed packages: entry points, by ``package:name`` and version.

Learners, data sets, codecs, aggregation rules, server optimizers and strategies are found this way, each in a group of
its own. A name is the distribution's and the entry's: entry ``risk`` of distribution ``clinic`` is ``clinic:risk``. An
extension is imported only when it is loaded.

A simulation may bring objects of a notebook, without a package: ``provided``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import MappingProxyType
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


@dataclass(frozen=True, slots=True)
class Provided:
    """An object that stands for an entry point, under the name of one."""

    name: str
    version: str
    made: Any

    def load(self) -> Any:
        """The object."""
        return self.made


_PROVIDED: ContextVar[Mapping[str, Mapping[str, Provided]]] = ContextVar("provided", default=MappingProxyType({}))


@contextmanager
def provided(objects: Mapping[str, Mapping[str, Provided]]) -> Iterator[None]:
    """While the block runs, in its thread and in processes that it forks, these are found by ``provided_now``: group of
    entry points -> name -> object."""
    token = _PROVIDED.set({**_PROVIDED.get(), **objects})
    try:
        yield
    finally:
        _PROVIDED.reset(token)


def provided_now(group: str) -> Mapping[str, Provided]:
    """The objects of this group that are provided now, by name."""
    return _PROVIDED.get().get(group, {})


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
