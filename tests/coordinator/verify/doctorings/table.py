"""The table to which each module adds its functions."""

from __future__ import annotations

from collections.abc import Callable

from tests.coordinator.verify.history import Doctor

Doctoring = Callable[[Doctor], int]
DOCTORINGS: dict[str, Doctoring] = {}
RETAINED_ONLY = {"retained-update-deleted", "retained-update-flipped"}
"""Those that need raw updates of rounds that were committed."""


def doctoring(function: Doctoring) -> Doctoring:
    DOCTORINGS[function.__name__.replace("_", "-")] = function
    return function
