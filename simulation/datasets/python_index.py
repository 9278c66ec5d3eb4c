"""Getting one file of a project from the Python package index that the user's pip is set to, without running any of it.

This file knows pip's settings and the simple repository API (PEP 503 pages, PEP 691 JSON, folders). It has never heard
of data sets. `pip download` of a source archive runs the archive's set-up code to learn its metadata, so pip is asked
only for its settings; the page and the file are then read here, with pip's own certificates, proxy and passwords in
addresses or `.netrc`. Whatever comes is checked against a digest pinned in this repository before it is opened.
"""

from __future__ import annotations

import ast
import json
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

import httpx2

from simulation.datasets.errors import DataCorrupt, DataUnavailable
from simulation.datasets.fetch import check_digest, run_client

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
"""What an index is asked for (PEP 691): JSON where it has it."""

PAGE_LIMIT = 64 << 20
"""The most bytes of an index's page on one project."""


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Those of pip's settings that say where packages come from and how they are reached."""

    find_links: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = 30.0


def index_file(project: str, filename: str, sha256: str, limit: int) -> bytes:
    """`filename` of `project` (as pip would find it, any version), of at most `limit` bytes, checked against `sha256`.

    Places with links come first, then the index, then further indexes; the first that has the file gives it. Raises
    `DataUnavailable` (no pip, offline, not there) and `DataCorrupt` (wrong digest, or too long).
    """
    settings = pip_settings()
    name = re.sub(r"[-_.]+", "-", project).lower()
    places = [*settings.find_links, *(f"{index.rstrip('/')}/{name}/" for index in settings.indexes)]
    troubles: list[str] = []
    for place in places:
        try:
            links = _links(place, settings)
            if filename in links:
                archive = _read(links[filename], settings, limit, accept="*/*")
                return check_digest(archive, sha256, f"the file {filename}")
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
    """The index that pip uses when none is set: its help text says it."""
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


def _links(place: str, settings: PipSettings) -> dict[str, str]:
    """File name -> address of what `place` (a page, an HTML file or a folder) offers; the first of equal names.

    Raises LookupError, TypeError or ValueError for a page that is none.
    """
    found: dict[str, str] = {}
    for address in _addresses(place, settings):
        if _local(address) is not None and _local(place) is None:
            continue  # what comes from elsewhere names no files here
        found.setdefault(unquote(urlsplit(address).path.rpartition("/")[2]), address)
    return found


def _addresses(place: str, settings: PipSettings) -> Iterator[str]:
    path = _local(place)
    if path is not None and path.is_dir() and not (path / "index.html").is_file():
        yield from (child.as_uri() for child in sorted(path.iterdir()))
        return
    if path is not None:
        path = path / "index.html" if path.is_dir() else path
        place = path.absolute().as_uri()
    page = _read(place, settings, PAGE_LIMIT, accept=ACCEPT).decode(errors="replace")
    if page.lstrip().startswith("{"):
        yield from (_joined(place, str(file["url"])) for file in json.loads(page).get("files", ()))
    else:
        anchors = _Anchors()
        anchors.feed(page)
        yield from (_joined(anchors.base or place, link) for link in anchors.links)


class _Anchors(HTMLParser):
    """The links of a page (PEP 503), and its base address where it states one."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.links.append(target)
        elif tag == "base" and target:
            self.base = self.base or target


def _joined(page: str, link: str) -> str:
    """The link's full address; a name and password in the page's address hold for links to the same host too."""
    full, home = urlsplit(urljoin(page, link)), urlsplit(page)
    if "@" in home.netloc and full.netloc == home.netloc.rpartition("@")[2]:
        full = full._replace(netloc=home.netloc)
    return urlunsplit(full._replace(fragment=""))


def _local(place: str) -> Path | None:
    """The path that `place` names, if it is one: `file:` addresses and plain paths."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return None if "://" in place else Path(place).expanduser()


def _read(address: str, settings: PipSettings, limit: int, accept: str) -> bytes:
    """The bytes at `address`. Raises `OSError`, an httpx2 error, or `DataCorrupt` where there are more than `limit`."""
    path = _local(address)
    if path is not None:
        with path.open("rb") as file:
            body = file.read(limit + 1)
    else:
        client = httpx2.Client(
            auth=_password(address),
            verify=_trust(address, settings),
            proxy=settings.proxy,
            timeout=settings.timeout_s,
            follow_redirects=True,
            headers={"Accept": accept},
        )
        gathered = bytearray()
        with client, client.stream("GET", address) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                gathered += piece
                if len(gathered) > limit:
                    break
        body = bytes(gathered)
    if len(body) > limit:
        raise DataCorrupt(f"{_shown(address)} holds more than {limit} bytes: it was not read")
    return body


def _password(address: str) -> httpx2.Auth | None:
    """The user's `.netrc`, where there is one and the address itself has no password."""
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return httpx2.NetRCAuth(str(netrc)) if "@" not in urlsplit(address).netloc and netrc.is_file() else None


def _trust(address: str, settings: PipSettings) -> ssl.SSLContext:
    """How the host proves itself: by pip's certificates, else the system's; not at all if pip's settings trust it."""
    given = settings.cert or os.environ.get("REQUESTS_CA_BUNDLE") or None
    folder = given is not None and Path(given).is_dir()
    context = ssl.create_default_context(cafile=None if folder else given, capath=given if folder else None)
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert)
    parts = urlsplit(address)
    if {parts.hostname, parts.netloc.rpartition("@")[2]} & set(settings.trusted_hosts):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
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
