"""Problem documents: the table, what is written, and what is made of whatever comes back."""

from __future__ import annotations

import json
import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.protocol import problems
from client_sdk.protocol.problems import PROBLEMS, Problem, ProblemError, parse_problem, problem
from tests.client_sdk.protocol.mutated import mutated


def test_the_tree_at_the_top_of_the_module_is_the_table() -> None:
    drawn = {
        match[1]: (int(match[2]), match[3])
        for match in re.finditer(r"[|`]-- ([a-z-]+) +(\d{3}) +(\w+)", problems.__doc__ or "")
    }
    assert drawn == {kind: (fixed.status, fixed.advice) for kind, fixed in PROBLEMS.items()}


@pytest.mark.parametrize("kind", list(PROBLEMS))
def test_a_problem_survives_the_wire(kind: str) -> None:
    error = problem(kind, "Because.", retry_after_s=2.5)
    document = error.problem.model_dump_json().encode()
    assert json.loads(document)["type"] == f"/problems/{kind}"
    back = parse_problem(error.status, document)
    assert back == error.problem
    assert (back.kind, back.advice, back.is_ours) == (kind, PROBLEMS[kind].advice, True)
    assert back.retryable == (PROBLEMS[kind].advice == "retry")


def test_an_unknown_kind_is_our_bug_and_not_theirs() -> None:
    with pytest.raises(KeyError):
        problem("no-such-kind", "")


def test_the_words_are_the_detail_or_else_the_title() -> None:
    assert str(problem("late", "Round 7 is over.")) == "Round 7 is over."
    assert str(problem("late", "")) == "The round has closed"
    assert len(problem("late", "x" * 5000).problem.detail) == problems.DETAIL_LIMIT


def test_a_problem_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(problem("busy", "Full.", retry_after_s=3)))
    assert isinstance(error, ProblemError)
    assert (error.kind, str(error), error.problem.retry_after_s) == ("busy", "Full.", 3)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "register"), (403, "drop"), (404, "drop"), (408, "retry"), (426, "stop"), (429, "retry"), (502, "retry")],
)
def test_a_page_that_is_no_document_is_read_by_its_status(status: int, advice: str) -> None:
    found = parse_problem(status, b"<html>nginx</html>")
    assert (found.status, found.advice, found.is_ours) == (status, advice, False)
    assert str(found) == f"The server answered with HTTP status {status}."


def test_a_newer_coordinators_kind_is_read_by_its_own_word() -> None:
    document = Problem(type="/problems/eclipse", title="No sun", status=409, retryable=True)
    found = parse_problem(409, document.model_dump_json().encode())
    assert (found.kind, found.advice) == ("eclipse", "retry")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b'{"type": 3}', b'{"type": "/problems/late"}', b"{" * 9999])
def test_no_body_breaks_the_parser(body: bytes) -> None:
    assert parse_problem(500, body).advice == "retry"


def test_retry_after_is_read_in_seconds_and_only_so() -> None:
    body = problem("busy", "Full.").problem.model_dump_json().encode()
    assert parse_problem(503, body, {"retry-after": "17"}).retry_after_s == 17
    for other in ("Wed, 21 Oct 2026 07:28:00 GMT", "-3", "1e9", "soon", "²"):
        assert parse_problem(503, body, {"retry-after": other}).retry_after_s is None
    assert parse_problem(503, b"", {"retry-after": "4"}).retry_after_s == 4


def test_a_redirect_counts_as_a_refusal() -> None:
    assert parse_problem(302, b"").status == 400


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_beyond_those_of_http_is_the_servers_error(status: int) -> None:
    found = parse_problem(status, b"")
    assert (found.status, found.title, found.advice) == (599, f"HTTP status {status}", "retry")


DOCUMENT = json.loads(problem("busy", "Full.", retry_after_s=2).problem.model_dump_json())


@given(
    st.integers(100, 999),
    mutated(DOCUMENT).map(json.dumps).map(str.encode) | st.binary(max_size=60),
    st.none() | st.text(max_size=12) | st.integers(0, 10**12).map(str),
)
def test_whatever_a_peer_sends_is_a_problem_with_words_and_a_time_that_ends(
    status: int, body: bytes, header: str | None
) -> None:
    found = parse_problem(status, body, {} if header is None else {"retry-after": header})
    assert 400 <= found.status <= 599
    assert found.advice in ("retry", "register", "renew", "drop", "stop")
    assert found.is_ours or (str(found) and found.kind == "about:blank")
    assert found.retry_after_s is None or (math.isfinite(found.retry_after_s) and found.retry_after_s >= 0)
    assert parse_problem(found.status, found.model_dump_json().encode()).status == found.status
