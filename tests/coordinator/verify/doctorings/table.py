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


def statement(name: str, number: int, sql: str, *values: object) -> None:
    """One statement, of which ``verify`` names round ``number``. A value may be a function of the history."""

    def run(d: Doctor) -> int:
        d.sql(sql, *(value(d) if callable(value) else value for value in values))
        return number

    DOCTORINGS[name] = run


def event_says(name: str, number: int, kind: str, field: str, value: object) -> None:
    """Another value in the first event of this kind in round ``number``, which ``verify`` names."""

    def run(d: Doctor) -> int:
        said = value(d) if callable(value) else value
        d.set_in("events", "body", field, said, "seq = ?", d.event(kind, number))
        return number

    DOCTORINGS[name] = run
