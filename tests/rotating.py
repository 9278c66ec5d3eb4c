"""Cases that take turns: CI tries another one each day, ``make soak`` all."""

from __future__ import annotations

import time
from typing import Any

import pytest


def taking_turns(*cases: Any) -> list[Any]:
    """The cases for ``parametrize``; all but today's are soak tests."""
    today = int(time.time() // 86_400) % len(cases)
    return [
        case if number == today else pytest.param(case, marks=pytest.mark.soak) for number, case in enumerate(cases)
    ]
