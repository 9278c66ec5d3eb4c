"""The benchmark of signed requests: all that it times is accepted, and something that is refused ends it."""

from __future__ import annotations

import pytest

from benchmarks.request_signatures import Requests, measure
from client_sdk.protocol.problems import ProblemError


def test_rows_are_complete_and_the_difference_is_that_of_the_two_costs() -> None:
    rows = {row.name: row for row in measure(True)}
    first = rows["signed_request_beyond_bare_ms"]
    assert first.aim == 0.05
    assert first.value is not None
    whole, bare = rows["signed_request_ms"].value, rows["bare_verification_ms"].value
    assert whole is not None
    assert bare is not None
    assert 0 < bare < whole


def test_a_request_that_is_refused_ends_the_benchmark() -> None:
    crowd = Requests(2)
    crowd.headers[1] = [(name, value.replace(b"tag", b"gat")) for name, value in crowd.headers[1]]
    with pytest.raises(ProblemError):
        crowd.verify_all()
