"""The benchmark of codecs: its labels are true, and a kind of updates gives a row for each codec and figure."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import codecs as subject
from client_sdk import codecs
from client_sdk.codecs import Origin
from tests.rotating import on_day, taking_turns

ENTROPY = [codec.name for codec in codecs.ENTROPY]
"""They take seconds each."""


@pytest.mark.parametrize("name", [*(name for name in codecs.names() if name not in ENTROPY), *taking_turns(*ENTROPY)])
def test_what_is_labelled_unbiased_is_so(name: str) -> None:
    """The squared error of a mean of n draws is the n-th part of one draw's, but for the rounding of float32."""
    values, codec, draws = np.random.default_rng(0).normal(size=600).astype(np.float32), codecs.get(name), 100
    found = np.stack(
        [codec.decode(codec.encode({"w": values}, Origin(round=n, plan="a")))["w"] for n in range(draws)]
    ).astype(np.float64)
    norm = float((values.astype(np.float64) ** 2).sum())
    one, mean = ((found - values) ** 2).sum() / norm / draws, ((found.mean(axis=0) - values) ** 2).sum() / norm
    assert (mean < 2 * one / draws + 1e-10) == (name in subject.UNBIASED)


@on_day(3, of=4)
def test_every_codec_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "fashion", lambda: subject.gaussian(3000))
    rows = {row.name: row for row in subject.measure(True)}
    assert len(rows) == 2 * (4 * len(codecs.names()) + 4)
    assert rows["gaussian nmse eden1@1 unbiased"].met
    assert rows["gaussian bytes eden1@1 unbiased"].ratio == pytest.approx(1 / 16, rel=0.05)
    assert rows["gaussian bound of 1 bits unbiased"].value == pytest.approx(1 / 3), "of normal deviates of one variance"
    assert rows["gaussian gain of variances"].value == pytest.approx(1)
    assert rows["fashion nmse sign@1 biased"].value == pytest.approx(0.363, rel=0.1)
