"""``--data mine.csv`` and ``mine.parquet`` with ``--target``: what is read, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import data
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.data import DataSourceError, Shard, load_data, require_source, stem, with_target
from tests.client_sdk.commands.run_cli import quorate

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
CODES = ": give numbers, by one table of codes for all devices (each device's own would differ)."
APART = "leave out what identifies a row, subtract an offset, or give fractions."
FILL = ": fill them in, or leave these rows out."
CSV = "age,dose,smokes,ill\n41,0.5,true,1\n29,1,false,0\n63,2.25,true,1\n"


def csv(folder: Path, text: str | bytes = CSV, name: str = "mine.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def parquet(folder: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), folder / "mine.parquet")
    return str(folder / "mine.parquet")


@pytest.mark.parametrize("text", [CSV, "\ufeff" + CSV, CSV.replace("\n", "\r\n"), CSV.replace("ill", '"ill"')])
def test_a_csv_gives_float32_inputs_and_integer_labels(tmp_path: Path, text: str) -> None:
    found = load_data(with_target(csv(tmp_path, text), "ill"))
    np.testing.assert_array_equal(found.train.x, np.array([[41, 0.5, 1], [29, 1, 0], [63, 2.25, 1]], np.float32))
    np.testing.assert_array_equal(found.train.y, [1, 0, 1])
    assert (str(found.train.x.dtype), str(found.train.y.dtype), found.test) == ("float32", "int64", None)


def test_a_parquet_gives_the_same_as_its_csv(tmp_path: Path) -> None:
    columns = {"age": [41, 29, 63], "dose": [0.5, 1, 2.25], "smokes": [True, False, True], "ill": [1, 0, 1]}
    one = load_data(with_target(parquet(tmp_path, **columns), "ill"))
    other = load_data(with_target(csv(tmp_path), "ill"))
    assert (one.train.x.tobytes(), one.train.y.tobytes()) == (other.train.x.tobytes(), other.train.y.tobytes())


def test_the_target_may_be_a_number_or_a_truth(tmp_path: Path) -> None:
    assert load_data(with_target(csv(tmp_path), "dose")).train.y.dtype == np.float32
    truths = load_data(with_target(csv(tmp_path), "smokes")).train
    assert (str(truths.y.dtype), truths.y.tolist()) == ("int64", [1, 0, 1])


def test_a_whole_number_may_become_a_fraction_far_below(tmp_path: Path) -> None:
    """pyarrow alone infers a column from the file's first part, and refuses the rest."""
    text = "a,y\n" + "1,0\n" * 400_000 + "2.5,1\n"
    train = load_data(with_target(csv(tmp_path, text), "y")).train
    assert (len(train), float(train.x[-1, 0])) == (400_001, 2.5)


def test_a_column_split_says_which_rows_are_held_out(tmp_path: Path) -> None:
    text = "a,split,y\n1,train,0\n2,test,1\n3,train,1\n4,test,0\n"
    found = load_data(with_target(csv(tmp_path, text), "y"))
    assert found.test is not None
    assert (found.train.x.ravel().tolist(), found.test.x.ravel().tolist()) == ([1, 3], [2, 4])
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1], [1, 0])
    shard = load_data(with_target(csv(tmp_path, text), "y"), Shard(2, 2))
    assert shard.train.x.tolist() == [[3]]
    numbers = load_data(with_target(csv(tmp_path, "split,y\n1,0\n2,1\n"), "y"))
    assert numbers.train.x.ravel().tolist() == [1, 2]


def test_categories_of_parquet_are_words_of_the_split(tmp_path: Path) -> None:
    split = pa.array(["train", "test"]).dictionary_encode()
    found = load_data(with_target(parquet(tmp_path, a=[1, 2], split=split, y=[0, 1]), "y"))
    assert found.test is not None
    assert len(found.train) == len(found.test) == 1


COLUMNS = "its columns are age, dose, smokes, ill."
REFUSED: dict[str, tuple[str | bytes, str | None, str]] = {
    "no target": (CSV, None, "Name the column of {} to predict, by --target COLUMN; " + COLUMNS),
    "another target": (CSV, "il", "{} has no column 'il'; did you mean 'ill'? Its columns are age, dose, smokes, ill."),
    "text": ("a,b\nx,1\ny,0\n", "b", "{}: the column a holds text, as 'x'" + CODES),
    "labels of text": ("a,b\n1,no\n2,yes\n", "b", "{}: the column b holds text, as 'no'" + CODES),
    "one text below numbers": ("a,b\n1,0\n2,0\n?,1\n", "b", "{}: the column a holds text, as '?'" + CODES),
    "a value missing": ("a,b\n1,0\n,1\n3,1\n", "b", "{}: the column a: a value is missing, first in row 2" + FILL),
    "labels missing": ("a,b\n1,\n2,1\n3,NA\n", "b", "{}: the column b: 2 values are missing, first in row 1" + FILL),
    "a column empty": ("a,b\n,1\n,0\n", "b", "{}: the column a: 2 values are missing, first in row 1" + FILL),
    "dates": ("a,b\n2024-01-01,1\n", "b", "{}: the column a holds values of the type date32[day]: give numbers."),
    "infinite": ("a,b\n1e300,1\n", "b", "{}: the column a holds 1e+300 in row 1, which is beyond float32."),
    "numbers of rows": (
        "a,b\n1152921504606846976,0\n1152921504606846977,1\n",
        "b",
        "{}: the column a holds whole numbers, as 1152921504606846976, that float32 cannot tell apart: " + APART,
    ),
    "no header": ("1,2,0\n3,4,1\n", "y", "The first line of {} must name its columns; it is 1, 2, 0."),
    "the index of pandas": (
        ",a,b\n0,1,1\n",
        "b",
        "Column 1 of {} has no name: if it numbers the rows, leave it out (pandas: " + "index=False).",
    ),
    "twice": ("a,a,b\n0,1,1\n", "b", "{} has two columns 'a'."),
    "only a target": ("b\n1\n", "b", "{} has no column but its target b."),
    "semicolons": ("a;b\n1;0\n", "b", "{} separates its columns by ';': save it with commas."),
    "semicolons, and commas in numbers": (
        "a;b\n1,5;0\n",
        "b",
        "{} separates its columns by ';': save it with commas.",
    ),
    "Latin-1 in the header": ("café,b\n1,0\n".encode("latin-1"), "b", "{} is not in UTF-8: save it as UTF-8."),
    "Latin-1 in a value": ("a,b\ncafé,0\n".encode("latin-1"), "b", "{} is not in UTF-8: save it as UTF-8."),
    "grouped digits": ("a,b\n1_000,0\n", "b", "{}: the column a holds text, as '1_000'" + CODES),
    "an index that pyarrow wrote": (
        "a,b,__index_level_0__\n1,1,0\n",
        "b",
        "Column 3 of {} has no name: if it numbers the rows, leave it out (pandas: index=False).",
    ),
    "UTF-16": (CSV.encode("utf-16"), "ill", "{} is in UTF-16: save it as UTF-8."),
    "UTF-16, big end first": (b"\xfe\xff" + CSV.encode("utf-16-be"), "ill", "{} is in UTF-16: save it as UTF-8."),
    "other split": (
        "a,split,y\n1,train,0\n2,valid,1\n",
        "y",
        "{}: the column split holds 'valid'; " + "it says train or test of a row.",
    ),
    "ragged": ("a,b\n1,2\n3\n", "b", "{} cannot be read as csv: CSV parse error: Expected 2 columns, got 1: 3."),
    "empty": ("", "b", "{} cannot be read as csv: Empty CSV file."),
    "no rows": ("a,b\n", "b", "{} has no rows."),
    "all held out": ("a,split,y\n1,test,0\n", "y", "{}:y has no examples."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_of_numbers_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    text, target, sentence = REFUSED[name]
    file = csv(tmp_path, text)
    with pytest.raises(DataSourceError) as refused:
        load_data(with_target(file, target))
    assert str(refused.value) == sentence.format(file)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (lambda: [[1.0], [2.0]], "the column a holds values of the type list<element: double>: give numbers."),
        (lambda: [1.0, float("nan")], "the column a: a value is missing, first in row 2: "),
        (lambda: pa.array(["x", "y"]).dictionary_encode(), "the column a holds text, as 'x': "),
        (lambda: pa.array([2**64 - 1, 0], pa.uint64()), "the column a holds 18446744073709551615, which is no int64."),
    ],
)
def test_columns_that_only_parquet_has(tmp_path: Path, column: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(DataSourceError) as refused:
        load_data(with_target(parquet(tmp_path, a=column(), y=[0, 1]), "y"))
    assert sentence in str(refused.value)


def test_a_file_that_is_none_of_its_kind_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match=r"mine\.parquet cannot be read as parquet: .*magic bytes"):
        load_data(with_target(csv(tmp_path, name="mine.parquet"), "ill"))
    for there in (load_data, require_source):
        with pytest.raises(DataSourceError, match=r"There is no file gone\.csv\."):
            there("gone.csv:ill")
    require_source(with_target(csv(tmp_path), "ill"))
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(DataSourceError, match=r"There is no file .*folder\.parquet\."):
        load_data(f"{tmp_path}/folder.parquet:ill")
    with pytest.raises(DataSourceError, match=r"a path that ends in \.npz, \.csv or \.parquet"):
        load_data("mine.tsv")


def test_a_target_belongs_to_a_table() -> None:
    with pytest.raises(
        DataSourceError, match=r"--target names a column of a \.csv or \.parquet file; mnist has its own"
    ):
        with_target("mnist", "ill")
    assert with_target("a/b.CSV", "the ill:ness") == "a/b.CSV:the ill:ness"
    assert [stem(source) for source in ("a/b.csv:c", "b.npz", "mnist", "c\\b.parquet")] == ["b", "b", "mnist", "b"]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.csv", None)
    with pytest.raises(
        DataSourceError, match=r"needs pyarrow, which is not installed: pip install 'quorate\[datasets\]'"
    ):
        load_data(with_target(csv(tmp_path), "ill"))


def test_commands_take_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = csv(tmp_path)
    plan = tmp_path / "plan.toml"
    plan.write_text('name = "a"\n[task]\nlearner = "a:b"\n')
    token = tmp_path / "token"
    token.write_text(EnrolmentToken("http://127.0.0.1:1", bytes(32), bytes(16)).text)
    token.chmod(0o600)
    for command in (
        ["device", "--data", file, "--target", "il"],
        ["evaluate", "run", "--data", file, "--target", "il"],
        ["simulate", str(plan), "--data", file, "--target", "il"],
    ):
        assert quorate(*command) == 1
        assert "has no column 'il'; did you mean 'ill'?" in capsys.readouterr().err
    for command in (
        ["fleet", "--data", "mnist", "--target", "il", "--token-file", str(token)],
        ["datacenter", "train", "a:b", "--data", "mnist", "--target", "il", "--steps", "1"],
    ):
        assert quorate(*command) == 1
        assert "--target names a column of a .csv or .parquet file" in capsys.readouterr().err


def test_large_whole_numbers_that_float32_tells_apart_are_taken(tmp_path: Path) -> None:
    found = load_data(with_target(csv(tmp_path, "a,b\n123456789,0\n223456789,1\n123456789,1\n"), "b"))
    assert found.train.x[:, 0].tolist() == [123456792.0, 223456784.0, 123456792.0]


def test_a_csv_that_is_longer_than_a_block_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = csv(tmp_path, CSV)
    monkeypatch.setattr(data, "_LARGEST_CSV", len(CSV))
    load_data(with_target(file, "ill"))
    monkeypatch.setattr(data, "_LARGEST_CSV", len(CSV) - 1)
    with pytest.raises(DataSourceError, match=r"is larger than 2 GiB: save it as \.parquet"):
        load_data(with_target(file, "ill"))
