"""Cases that take turns: CI tries another one each day, ``make soak`` all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

DAY = int(os.environ["TESTS_OF_DAY"])
"""The day on which the tests began, for all of their processes (``tests/conftest.py``)."""


def on_day(number: int, *, of: int) -> pytest.MarkDecorator:
    """For one of several slow tests that take turns: ``slow`` on each day of this number, else a soak test."""
    return pytest.mark.slow if DAY % of == number else pytest.mark.soak


def taking_turns(*cases: Any) -> list[Any]:
    """The cases for ``parametrize``; all but today's are soak tests."""
    today = DAY % len(cases)
    return [
        case if number == today else pytest.param(case, marks=pytest.mark.soak) for number, case in enumerate(cases)
    ]


def in_parts(cases: Iterable[Any], *, of: int) -> list[Any]:
    """The cases for ``parametrize``, where a tuple has several arguments: one of so many parts of them each day; the
    others are soak tests."""
    found = list(cases)
    for number, case in enumerate(found):
        if number % of != DAY % of:
            values = getattr(case, "values", case if isinstance(case, tuple) else (case,))
            marks = [*getattr(case, "marks", ()), pytest.mark.soak]
            found[number] = pytest.param(*values, marks=marks, id=getattr(case, "id", None))
    return found
