"""The texts of training errors: a module that is missing is named with the extra ``datacenter``."""

from __future__ import annotations

from importlib.util import find_spec

from client_sdk.terminal import sentence_of

MODULES = frozenset({"torch", "psutil"})
"""Modules that ``quorate[datacenter]`` installs."""


def training_error_text(error: Exception) -> str:
    """The error as one sentence."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if top in MODULES:
        return f"Training here needs {top}, which is not installed: pip install 'quorate[datacenter]'"
    return sentence_of(error)


def no_torch() -> str | None:
    """The error text where torch is not installed; None where it is. Does not import torch."""
    return None if find_spec("torch") is not None else training_error_text(ModuleNotFoundError("torch", name="torch"))
