"""The benchmark of private rounds reports its rows, of the right noise only."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import privacy


def test_it_reports_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "MILLION", 100_000)
    monkeypatch.setattr(privacy, "PEERS", 12)
    rows = {row.name: row for row in privacy.measure(quick=True)}
    assert list(rows) == ["noise_1m_cpu_s", "private_mean_1m_vs_plain", "masks_with_noise_1m"]
    assert all(row.value is not None and row.value > 0 for row in rows.values())
    assert rows["noise_1m_cpu_s"].aim == 1.0


def test_other_noise_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "MILLION", 100_000)
    monkeypatch.setattr(privacy, "exactly", lambda: 2 * np.asarray(privacy.rounded()))
    with pytest.raises(SystemExit, match="wrong results are not reported"):
        next(privacy.measure(quick=True))
