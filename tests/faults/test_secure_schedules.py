"""Secure rounds in the explorer: its cheap cryptography, real cryptography, and the positive controls of its checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import pytest
from cryptography.exceptions import InvalidTag

from client_sdk.secagg import agreement, shares, statement
from client_sdk.secagg.agreement import AgreementKey, KeyStream, derive
from client_sdk.secagg.masks import Masker
from tests.explorer.schedule import Schedule
from tests.explorer.search import Product, play, play_many
from tests.explorer.secure.account import in_dispute
from tests.explorer.secure.quick_crypto import HashSigner, quick_crypto
from tests.explorer.shape import Shape, made_secure
from tests.faults.test_explorer import SEED, failures
from tests.rotating import on_day, taking_turns

ROOT = Path(__file__).parents[2]
REAL = 50
"""Schedules with real cryptography in each run of the tests."""


@pytest.mark.parametrize("fault", ["secure-vanish", "secure-lie"])
def test_groups_fall_and_their_rounds_are_committed(fault: str) -> None:
    """In two of the first schedules; else nothing would be checked of groups that fall."""
    fell, stood = 0, 0
    for seed in (4, 8):
        shape = replace(made_secure(Shape.of(seed), groups=3), focus=("", ""), storm_s=200.0, dead=0, leavers=0)
        rates = {"secure-vanish": {"secure-vanish": 0.03}, "secure-lie": {"secure-lie": 0.5}}[fault]
        schedule = Schedule(replace(shape, rates=rates, liars=1, only_lie="canary", replicas=1, lost_replicas=0))
        schedule.play()
        ended = [one for run in schedule.watch.runs.values() for one in run.ended.values() if one.committed]
        groups = [group for one in ended if one.secure is not None for group in one.secure.groups]
        fell, stood = fell + sum(one.fallen for one in groups), stood + sum(bool(one.sum) for one in groups)
    assert fell
    assert stood > 2 * fell


class RealCryptography(Product):
    """Every schedule that can be secure is, with real keys, masks and signatures."""

    def shape(self, seed: int) -> Shape:
        return replace(made_secure(Shape.of(seed)), real_crypto=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_invariant_breaks_with_real_cryptography() -> None:
    secure = (seed for seed in count(SEED) if RealCryptography().shape(seed).secure)
    report = play_many(islice(secure, REAL), RealCryptography())
    assert not report.findings, failures(report)
    assert report.tally.commits > REAL // 2


def test_schedule_commits_secure_rounds_with_real_cryptography() -> None:
    shape = replace(made_secure(Shape.of(3)), rates={}, liars=0, dead=0, real_crypto=True)
    world, broken = play(shape)
    assert broken is None, broken
    assert world.tally.commits >= 2
    assert len(world.vectors.masked) >= 6


def test_same_schedule_with_cheap_and_with_real_cryptography_commits_as_often() -> None:
    shape = replace(made_secure(Shape.of(3)), rates={}, liars=0, dead=0)
    assert play(shape)[0].tally == play(replace(shape, real_crypto=True))[0].tally


def controlled(control: Literal["", "set-back", "twins"], seed: int) -> Shape:
    """A schedule in which devices vanish when they have signed, before the coordinator knows it."""
    shape = made_secure(Shape.of(seed))
    more: dict[str, Any] = {"two_runs": False, "replicas": 1, "lost_replicas": 0, "liars": 0, "dead": 0, "leavers": 0}
    focus = ("secure-vanish", "agreeing")
    return replace(shape, control=control, rates={"lose-request": 0.1}, focus=focus, storm_s=240.0, **more)


SHOWN = {"set-back": 105, "twins": 54}
"""A seed that shows the control, which is played first: else a hundred others come before it."""


def broken_by(control: Literal["", "set-back", "twins"], seeds: Iterable[int]) -> Iterator[str]:
    """The invariant that breaks in each of these schedules; empty where none does."""
    for shape in (controlled(control, seed) for seed in seeds):
        if shape.secure:
            _, broken = play(shape)
            yield broken.invariant if broken is not None else ""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("control", taking_turns("set-back", "twins"))
def test_control_shows_a_device_that_signs_twice(control: Literal["set-back", "twins"]) -> None:
    """No rule protects a device whose memory is set back, or that runs twice with copies of it: the check sees it."""
    assert "spent" in broken_by(control, (SHOWN[control], *range(120)))


@on_day(1, of=2)
def test_without_control_no_device_signs_twice() -> None:
    """Neither where a control shows it, nor in other schedules each day."""
    assert set(broken_by("", (*SHOWN.values(), *range(SEED, SEED + 20)))) == {""}


# ------------------------------------------------------------ cheap cryptography


def test_package_code_cannot_reach_the_cheap_cryptography() -> None:
    """An import contract holds it too; here every text of the packages is searched, also for imports by name."""
    name = re.compile(r"quick_crypto|HashSigner")
    for package in ("client_sdk", "coordinator", "quorate", "simulation"):
        for file in (ROOT / package).rglob("*.py"):
            assert not name.search(file.read_text("utf-8")), file


def test_real_cryptography_is_there_again_afterwards() -> None:
    def replaced() -> list[object]:
        found = [agreement.X25519PrivateKey, agreement.X25519PublicKey, agreement.HKDF, shares.AESGCM]
        return [*found, statement.verify, KeyStream.start]

    before = replaced()
    with suppress(RuntimeError), quick_crypto():
        assert not set(map(id, replaced())) & set(map(id, before))
        raise RuntimeError
    assert replaced() == before


def test_cheap_primitives_accept_and_refuse_as_the_real_ones_do() -> None:
    with quick_crypto():
        one, two, three = (AgreementKey(bytes([number]) * 32) for number in (1, 2, 3))
        assert one.agree(two.public) == two.agree(one.public)
        assert one.agree(two.public) != one.agree(three.public)
        assert derive(b"s", salt=b"a", info=b"b") != derive(b"s", salt=b"ab", info=b"")
        sealed = shares.seal(bytes(44), b"text", b"for whom")
        assert shares.unseal(bytes(44), sealed, b"for whom") == b"text"
        for key, text, associated in ((bytes(43) + b"1", sealed, b"for whom"), (bytes(44), sealed, b"for others")):
            with pytest.raises((InvalidTag, shares.BadShare)):
                shares.unseal(key, text, associated)
        signature = HashSigner("ab").sign(b"message")
        assert statement.verify("ab", b"message", signature)
        assert not statement.verify("ab", b"another", signature)
        assert not statement.verify("cd", b"message", signature)


def test_cheap_stream_goes_on_where_it_stopped() -> None:
    with quick_crypto():
        stream = KeyStream(128)
        stream.start(bytes(32))
        whole = stream.take(128).tobytes()
        stream.start(bytes(32))
        assert stream.take(64).tobytes() + stream.take(64).tobytes() == whole
        stream.start(bytes(32), 64)
        assert stream.take(64).tobytes() == whole[64:]
        assert isinstance(Masker(20), Masker)


def test_dispute_leaves_out_whom_most_complaints_concern() -> None:
    assert in_dispute([], [("a", "d"), ("b", "d")]) == set()
    assert in_dispute([("a", "b")], []) == set()
    assert in_dispute([("a", "d"), ("b", "d"), ("e", "f")], []) == {"d"}
    assert in_dispute([("a", "d")], [("b", "d")]) == {"d"}
