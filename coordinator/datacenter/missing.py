"""What is said of an error where people train: as everywhere, but that what is missing comes with this room's extra."""

from __future__ import annotations

from importlib.util import find_spec

from client_sdk.terminal import sentence_of

MODULES = frozenset({"torch", "pytorch_optimizer", "psutil"})
"""Modules that ``quorate[datacenter]`` brings."""


def sentence_here(error: Exception) -> str:
    """One sentence for people."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if top in MODULES:
        return f"Training here needs {top}, which is not installed: pip install 'quorate[datacenter]'"
    return sentence_of(error)


def no_torch() -> str | None:
    """What is said where torch is not installed; None where it is. Does not import it."""
    return None if find_spec("torch") is not None else sentence_here(ModuleNotFoundError("torch", name="torch"))
