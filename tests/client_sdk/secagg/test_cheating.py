"""A coordinator that cheats at random, with as many colluders as a roster withstands: hundreds of sessions in three
days, others in each run.

After each session the oracles (``oracle``) look at everything that honest devices ever said, over all headers, attempts
and views: shares by advertisement, signatures by checkpoint digest, and what linear algebra makes of the vectors. The
controls show that the same sessions break devices that lack one rule. ``make soak`` plays for SOAK_SECONDS.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.survivors import Proof
from tests.client_sdk.secagg.cheater import Cheater, cheater, costly_steps_done_once, tolerated
from tests.client_sdk.secagg.cheats import revealing
from tests.client_sdk.secagg.lax import (
    ForgetsRosters,
    ForgetsVectors,
    KeepsOlderAttempts,
    Lax,
    RevealsBoth,
    SignsAgain,
    relax,
)
from tests.rotating import in_parts, on_day

SMALL = [(3, 1), (3, 2), (4, 1), (3, 3), (5, 2), (5, 3), (5, 4)]
LARGE = [(7, 5), (9, 3), (11, 7), (13, 6), (13, 7)]
"""Honest devices and colluders of strict rosters, most of them as many as all devices together withstand: 2t - n - 1;
of 20 devices 7."""

RING_10 = GraphRule(profile="fast", drop=1, corrupt_millionths=100_000, sigma=20, eta=20)
"""For 10 devices: 4 neighbours, t = 3; one colludes, one may vanish."""
RING_20 = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)
"""For 17 to 20 devices: 10 to 12 neighbours; one colludes, three may vanish."""


def many(usual: int) -> int:
    """So many examples; ``make soak`` plays 50 times as many."""
    return usual * max(1, settings().max_examples // 100)


@pytest.fixture(autouse=True, scope="module")
def _costly_steps_done_once() -> Iterator[None]:
    with costly_steps_done_once():
        yield


def ring(rule: GraphRule, seed: int) -> Cheater:
    return cheater(9, 1, seed, rule, 9) if rule is RING_10 else cheater(19, 1, seed, rule, 17)


@on_day(0, of=3)
@pytest.mark.timeout(1800)
@settings(max_examples=many(150), derandomize=False, database=None)
@given(size=st.sampled_from(SMALL), steps=st.integers(20, 120), seed=st.integers(0, 2**48))
def test_no_random_cheat_breaks_devices(size: tuple[int, int], steps: int, seed: int) -> None:
    assert cheater(*size, seed).play(steps).verdict() == {}


@on_day(1, of=3)
@pytest.mark.timeout(1800)
@settings(max_examples=many(20), derandomize=False, database=None)
@given(size=st.sampled_from(LARGE), steps=st.integers(100, 300), seed=st.integers(0, 2**48))
def test_no_random_cheat_breaks_devices_in_larger_rosters(size: tuple[int, int], steps: int, seed: int) -> None:
    assert cheater(*size, seed).play(steps).verdict() == {}


@on_day(2, of=3)
@pytest.mark.timeout(1800)
@settings(max_examples=many(40), derandomize=False, database=None)
@given(rule=st.sampled_from([RING_10, RING_10, RING_20]), steps=st.integers(60, 250), seed=st.integers(0, 2**48))
def test_no_random_cheat_breaks_devices_in_a_ring(rule: GraphRule, steps: int, seed: int) -> None:
    assert ring(rule, seed).play(steps).verdict() == {}


def test_the_sizes_are_those_where_the_bound_is_tight() -> None:
    for honest, colluding in SMALL + LARGE:
        assert tolerated(honest + colluding) >= colluding
    tight = [size for size in SMALL + LARGE if tolerated(sum(size)) == size[1]]
    assert tight == [(3, 1), (3, 2), (3, 3), (5, 2), (5, 3), (5, 4), (7, 5), (11, 7), (13, 6), (13, 7)]
    ten = RING_10.parameters(10)
    assert (ten.neighbours, ten.threshold, ten.signers) == (4, 3, 9)
    assert all(RING_20.parameters(n).neighbours < n - 1 for n in (17, 18, 19, 20))


@on_day(0, of=2)
def test_the_cheater_gets_far() -> None:
    """Otherwise the tests above would say nothing: sums are completed, lists differ over one roster, checkpoints are
    left and attempts restarted, devices stand in two rosters, and most refusals come up."""
    seen: Counter[str] = Counter()
    refusals: set[str] = set()
    for seed in range(100):
        played = cheater(*SMALL[seed % len(SMALL)], seed).play(100)
        oracle = played.oracle()
        assert oracle.verdict() == {}
        seen["revealed"] += bool(revealing(played.members))
        seen["opened"] += bool(oracle.equations())
        seen["completable"] += sum(map(len, oracle.completable().values()))
        seen["different lists"] += played.different > 0
        seen["rosters"] += any(len(views) > 1 for views in played.views.values())
        seen["attempts"] += any(head.attempt for head in played.heads)
        seen["checkpoints"] += len({head.model for head in played.heads}) > 1
        refusals |= {message for _, message in played.refusals}
    assert min(seen.values()) >= 10, seen
    assert len(seen) == 7, seen
    for words in (
        "is spent there",
        "never shared",
        "lacks this device",
        "share holders signed",
        "a replay",
        "other terms",
    ):
        assert any(words in message for message in refusals), words


@pytest.mark.slow
@pytest.mark.parametrize("graph", in_parts(["complete", "ring"], of=2))
@pytest.mark.parametrize("rules", [ForgetsRosters, KeepsOlderAttempts, SignsAgain, ForgetsVectors, RevealsBoth])
def test_where_a_rule_is_switched_off_the_same_cheater_breaks_devices(rules: type[Lax], graph: str) -> None:
    assert found_within(400, graph, rules)


@pytest.mark.slow
def test_where_signatures_are_not_checked_the_same_cheater_breaks_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proof, "require", lambda *anything: None)
    assert found_within(400, "complete", None)


def found_within(sessions: int, graph: str, rules: type[Lax] | None) -> dict[str, object]:
    """What the oracles find in the first session that breaks something; empty where none does."""
    for seed in range(sessions):
        played = cheater(5, 2, seed) if graph == "complete" else ring(RING_10, seed)
        if rules is not None:
            for number in played.honest:
                relax(played.members[number], rules)
        found = played.play(150).verdict()
        if found:
            return found
    return {}


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: as long as it is told, from seeds never played before."""
    seconds, seed = float(os.environ.get("SOAK_SECONDS", "600")), int(time.time()) * 1000
    first, until = seed, time.monotonic() + seconds
    while time.monotonic() < until:
        kind = seed % 10
        if kind < 6:
            played = cheater(*SMALL[seed // 10 % len(SMALL)], seed).play(120)
        elif kind < 8:
            played = cheater(*LARGE[seed // 10 % len(LARGE)], seed).play(300)
        else:
            played = ring(RING_10 if kind == 8 else RING_20, seed).play(250)
        assert played.verdict() == {}, f"seed {seed}"
        seed += 1
    with capsys.disabled():
        print(f"\nsecure rounds, a cheating coordinator: {seed - first} sessions from seed {first}, nothing broken")
