"""The log of ``quorate serve``: a bug is shown with where it happened, and without the values of variables."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILS = """
import logging, structlog
from coordinator.commands.serve import configure_log

def fails(enrolment_token):
    selection_seed = 8726452022
    raise ValueError("too few")

configure_log({as_json})
for log in (logging.getLogger("quorate.runs"), structlog.get_logger("coordinator.service")):
    try:
        fails("f9d912925b15")
    except ValueError as error:
        log.error("a bug", exc_info=error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_no_token_or_seed_is_in_the_traceback_of_a_bug(as_json: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FAILS.format(as_json=as_json)], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr.count("ValueError: too few") == 2
    assert ran.stderr.count("fails") >= 2
    assert "f9d912925b15" not in ran.stderr
    assert "8726452022" not in ran.stderr
