"""Public names of a package that are loaded when they are first used, so that importing the package costs nothing.

A package lists where its names live and delegates its ``__getattr__`` (PEP 562) to ``load``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from client_sdk.imports.shadowing import PACKAGES


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
