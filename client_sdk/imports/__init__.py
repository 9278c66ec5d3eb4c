"""How packages are imported: public names on first use, and an error where a user's file hides a package of ours; and
what Python's garbage collector spends on imports is saved.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

# ------------------------------------------------------------ shadowing
# Detects a user's file that hides one of our packages, before that file runs.
#
# A user's own ``simulation.py``, in the working folder or on PYTHONPATH, comes before an installed package of that
# name. ``check`` looks each name up as ``import`` would, imports none of them, and compares with where this
# distribution lies: its packages are siblings, in a checkout, an editable install and a wheel alike.
#
# Names of the SDK need only ``client_sdk``, so an app that embeds them may have a ``simulation.py`` of its own; all
# other names and all commands check all packages. ``client_sdk`` cannot be checked from inside, so the front door
# compares its place before the first import. Child processes get ``PYTHONSAFEPATH``, since ``python -m`` would put the
# working folder on their path. A user's own ``quorate.py`` runs before any line of ours can.


PACKAGES = ("client_sdk", "coordinator", "simulation", "dashboards")
"""The rooms of this distribution, each of them a package on the import path."""


class Shadowed(ImportError):
    """A file of the user's hides one of our packages: which file, and what to do."""


def check(packages: Iterable[str] = PACKAGES) -> None:
    """Raise Shadowed where an import of one of these packages would run a file that is not ours."""
    home = Path(__file__).parent.parent.parent
    for package in packages:
        try:
            spec = find_spec(package)
        except ValueError:  # somebody put a module without a spec into sys.modules: there is no file to name
            continue
        other = _other_place(spec, home / package)
        if other is not None:
            raise Shadowed(
                f"{other} hides quorate's own package {package!r}, because Python finds it first: rename it.",
                name=package,
                path=str(other),
            )


def _other_place(spec: ModuleSpec | None, ours: Path) -> Path | None:
    """Return the file or package folder that ``import`` would take instead of ours; None where there is none."""
    if spec is None or not ours.is_dir():  # the name is free, or this install came without the package
        return None
    if spec.origin is None:  # a folder without __init__.py: found only where no package of that name is on the path
        return Path([*(spec.submodule_search_locations or ()), str(ours)][0])
    found = Path(spec.origin)
    place = found.parent if spec.submodule_search_locations is not None else found
    return None if place.resolve() == ours.resolve() else place


# ------------------------------------------------------------ lazy names
# Public names of a package that are loaded when they are first used, so that importing the package costs nothing.
#
# A package lists where its names live and delegates its ``__getattr__`` (PEP 562) to ``load``.


def load(package: str, name: str, homes: Mapping[str, str], *, extra: str | None = None) -> object:
    """Return what a public name stands for, and set it in the package: the next use finds it there.

    ``homes``: name -> the module that defines it. ``extra``: what to install where that module needs a package that is
    absent; the ImportError says so in a sentence.
    """
    if name not in homes:
        raise AttributeError(f"{package} has no {name!r}; it has {', '.join(sorted(homes))}")
    try:
        found: object = getattr(import_module(homes[name]), name)
    except ModuleNotFoundError as missing:
        absent = (missing.name or "").partition(".")[0]
        if extra is None or absent in PACKAGES:
            raise
        raise ImportError(f"{package}.{name} needs {absent}: pip install 'quorate[{extra}]'", name=absent) from None
    setattr(sys.modules[package], name, found)
    return found


# ------------------------------------------------------------ the garbage collector
# What is imported stays until the end, and none of it is garbage. Python's collector looks through it all the same:
# while modules load, and when the process ends. For torch this took 0.5 of 1.6 CPU seconds.


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports that take long: the collector rests."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def end_uncollected() -> None:
    """From now on this process ends without a last search for garbage: its memory goes back as a whole."""
    atexit.register(gc.freeze)
