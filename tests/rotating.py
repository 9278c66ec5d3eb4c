"""Cases that take turns: CI tries another one each day, ``make soak`` all."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

DAY = int(os.environ.setdefault("TESTS_OF_DAY", str(int(time.time() // 86_400))))
"""The day on which the tests began, for all of their processes: those that collect must find the same."""


def taking_turns(*cases: Any) -> list[Any]:
    """The cases for ``parametrize``; all but today's are soak tests."""
    today = DAY % len(cases)
    return [
        case if number == today else pytest.param(case, marks=pytest.mark.soak) for number, case in enumerate(cases)
    ]
