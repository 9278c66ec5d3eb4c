"""Fashion-MNIST: clothes, in the sizes and files of MNIST: 60,000 + 10,000 images of 28 x 28 pixels.

The source is the Debian package dataset-fashion-mnist: its installed files, or else its downloaded archive. Its gzip
headers differ between builds of the package, so the decoded arrays are pinned, not the compressed files.
"""

from __future__ import annotations

from pathlib import Path

from simulation.datasets.cache import Arrays, DatasetSource, cached
from simulation.datasets.dataset import Dataset
from simulation.datasets.errors import DataCorrupt, DataUnavailable
from simulation.datasets.examples import LabelledExamples
from simulation.datasets.fetch import deb_members, gunzip
from simulation.datasets.idx import LAYOUT, decode_layout, idx_bytes

PACKAGE = "dataset-fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the installed Debian package has the four files."""

IN_PACKAGE = "./usr/share/datasets/fashion-mnist"
"""The path of ``FOLDER`` within the package's archive."""


def _build() -> Arrays:
    files = {file: idx_bytes(shape) for file, shape in LAYOUT.values()}
    if all((FOLDER / f"{file}.gz").is_file() for file in files):
        packed = {file: _read(FOLDER / f"{file}.gz", limit) for file, limit in files.items()}
    else:
        wanted = {f"{IN_PACKAGE}/{file}.gz": limit for file, limit in files.items()}
        members = deb_members(PACKAGE, wanted)
        packed = {file: members[f"{IN_PACKAGE}/{file}.gz"] for file in files}
    return decode_layout({file: gunzip(packed[file], limit, f"{file}.gz") for file, limit in files.items()})


def _read(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise DataCorrupt(f"{path} is larger than its {limit} bytes of data: reinstall {PACKAGE}")
        return path.read_bytes()
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read ({error.strerror}): reinstall {PACKAGE}.") from error


SOURCE = DatasetSource(
    name="fashion-mnist",
    licence="MIT, copyright 2017 Zalando SE",
    citation="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning "
    "algorithms, arXiv:1708.07747, 2017",
    digests={
        "train_x": "a73edac68323bf2bdab65676b6403b7ca7cc424386e391c8fa64b36561cbcb42",
        "train_y": "49367b9e84ea5eb6cddd41ea02d980d2513f49bb28d9d2b1cdc2ba642be5c76b",
        "test_x": "124a3b64476933dd1f2399b9295871f5e01a47519c5dadd753238f7d339bee7d",
        "test_y": "e41cfdcd17eeaafde5df8d9716da3deb72004a1f6f057d80d1ce6a213b4a232a",
    },
    build=_build,
)


def fashion_mnist() -> Dataset:
    """Fashion-MNIST; x is `[n, 28, 28]`, bright clothes on black (0); ten classes from T-shirt to ankle boot.

    Raises `DataUnavailable` (offline, no apt) and `DataCorrupt`.
    """
    arrays = cached(SOURCE)
    return Dataset(
        name=SOURCE.name,
        train=LabelledExamples.from_pixels(arrays["train_x"], arrays["train_y"]),
        test=LabelledExamples.from_pixels(arrays["test_x"], arrays["test_y"]),
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        licence=SOURCE.licence,
        citation=SOURCE.citation,
    )
