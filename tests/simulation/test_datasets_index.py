"""Files of a Python package index: found where the user's pip looks, checked, and never run.

pip is the real one, with settings of the test's own; the index is a folder, or a small server on the loopback.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from simulation.datasets import DataCorrupt, DataUnavailable, cache, python_index
from simulation.datasets.python_index import PipSettings, pip_settings

FILE = "Some_Data-1.0.tar.gz"
BODY = b"the archive's bytes"
SHA256 = hashlib.sha256(BODY).hexdigest()


class Index(ThreadingHTTPServer):
    """Answers by path with (type, body); keeps (path, Accept, Authorization) of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.passwords = False

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        password = self.headers["Authorization"]
        self.server.asked.append((self.path, self.headers["Accept"], password))
        kind, body = self.server.pages.get(self.path, ("", b""))
        status = 404 if not kind else 401 if self.server.passwords and password is None else 200
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_CACHE", str(tmp_path / "cache"))


def index_file(project: str, filename: str, sha256: str, limit: int) -> bytes:
    """As on a machine that has nothing in its cache."""
    shutil.rmtree(cache.cache_folder(), ignore_errors=True)
    return python_index.index_file(project, filename, sha256, limit)


@pytest.fixture
def index() -> Iterator[Index]:
    server = Index()
    server.pages["/files/" + FILE] = ("application/gzip", BODY)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets pip's configuration file; its variables are gone, and so is the user's own netrc and proxy."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path))

    def write(text: str) -> None:
        settings.write_text(text)

    return write


def only_index(monkeypatch: pytest.MonkeyPatch, *indexes: str, find_links: tuple[str, ...] = ()) -> None:
    """Settings without asking pip, which takes half a second. The machine's own /etc/pip.conf plays no part."""
    settings = PipSettings(indexes=indexes, find_links=find_links, timeout_s=5.0)
    monkeypatch.setattr("simulation.datasets.python_index.pip_settings", lambda: settings)


def html(*links: str, base: str = "") -> tuple[str, bytes]:
    anchors = "".join(f'<a href="{link}">x</a><br>' for link in links)
    return "text/html", f"<!DOCTYPE html><html><head>{base}</head><body>{anchors}</body></html>".encode()


class TestSettings:
    @pytest.mark.slow
    def test_files_and_variables(self, pip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
        pip(
            "[global]\nindex-url = http://one/simple\nextra-index-url = http://two/simple\n  http://three/simple\n"
            "trusted-host = one two\ntimeout = 7\nfind-links = /wheels\n[download]\nindex-url = http://four/simple\n"
        )
        monkeypatch.setenv("PIP_PROXY", "proxy:1")
        settings = pip_settings()
        assert settings.indexes == ("http://four/simple", "http://two/simple", "http://three/simple")
        assert (settings.find_links, settings.timeout_s, settings.proxy) == (("/wheels",), 7.0, "http://proxy:1")
        assert settings.trusted_hosts == ("one", "two")
        monkeypatch.setenv("PIP_INDEX_URL", "http://five/simple")
        assert pip_settings().indexes[0] == "http://five/simple"
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        assert pip_settings().indexes == ()

    @pytest.mark.slow
    def test_without_settings_it_is_the_index_that_pip_has_built_in(
        self, pip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pip("")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://two/simple")
        built_in, *others = pip_settings().indexes
        assert built_in.startswith("https://")
        assert built_in.endswith("/simple")
        assert others == ["http://two/simple"]

    def test_no_pip(self, pip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake = tmp_path / "python"
        fake.write_text("#!/bin/sh\necho 'No module named pip' >&2; exit 1\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        with pytest.raises(DataUnavailable, match=r"No module named pip\. .*python -m ensurepip"):
            pip_settings()


class TestFinding:
    @pytest.mark.slow
    def test_by_the_users_own_pip_settings(
        self, index: Index, pip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pip("")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{index.host}/simple/")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        index.pages["/simple/some-data/"] = html("/files/Some_Data-0.9.tar.gz", f"../../files/{FILE}#sha256=feed")
        assert index_file("Some.Data", FILE, SHA256, 100) == BODY
        assert [path for path, _, _ in index.asked] == ["/simple/some-data/", f"/files/{FILE}"]
        assert index.asked[0][1].startswith("application/vnd.pypi.simple.v1+json")

    def test_json_and_a_base_address(self, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        only_index(monkeypatch, f"http://{index.host}/simple")
        body = json.dumps({"files": [{"filename": FILE, "url": f"../../files/{FILE}", "yanked": False}]}).encode()
        index.pages["/simple/some-data/"] = ("application/vnd.pypi.simple.v1+json", body)
        assert index_file("Some_Data", FILE, SHA256, 100) == BODY
        base = f'<base href="http://{index.host}/files/">'
        index.pages["/simple/some-data/"] = html(FILE, base=base)
        assert index_file("Some_Data", FILE, SHA256, 100) == BODY

    def test_folders_and_further_indexes(self, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        links, local = tmp_path / "links", tmp_path / "simple"
        (local / "some-data").mkdir(parents=True)
        links.mkdir()
        only_index(monkeypatch, f"http://{index.host}/simple", local.as_uri(), find_links=(str(links),))
        index.pages["/simple/some-data/"] = html("Some_Data-0.9.tar.gz")
        (local / "some-data" / FILE).write_bytes(BODY)
        (local / "some-data" / "index.html").write_bytes(html(FILE)[1])
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        (local / "some-data" / FILE).unlink()
        (local / "some-data" / "index.html").write_bytes(html(f"http://{index.host}/files/{FILE}")[1])
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        index.asked.clear()
        (links / FILE).write_bytes(BODY)
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        assert index.asked == []

    def test_a_password_in_the_address_goes_to_that_host_only(
        self, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Index()
        index.passwords = True
        only_index(monkeypatch, f"http://me:secret@{index.host}/simple")
        index.pages["/simple/some-data/"] = html(f"http://{index.host}/files/{FILE}")
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        wanted = "Basic " + base64.b64encode(b"me:secret").decode()
        assert [password for _, _, password in index.asked] == [wanted, wanted]
        other.pages["/" + FILE] = ("application/gzip", BODY)
        index.pages["/simple/some-data/"] = html(f"http://{other.host}/{FILE}")
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        thread.join()
        other.server_close()
        assert [password for _, _, password in other.asked] == [None]

    def test_the_users_netrc(self, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        index.passwords = True
        only_index(monkeypatch, f"http://{index.host}/simple")
        index.pages["/simple/some-data/"] = html(f"/files/{FILE}")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        with pytest.raises(DataUnavailable, match="HTTP status 401"):
            index_file("some-data", FILE, SHA256, 100)
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
        assert index_file("some-data", FILE, SHA256, 100) == BODY


class TestCache:
    def test_an_archive_is_fetched_once(
        self, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        only_index(monkeypatch, f"http://me:secret@{index.host}/simple")
        index.pages["/simple/some-data/"] = html(f"/files/{FILE}")
        assert index_file("some-data", FILE, SHA256, 100) == BODY
        index.asked.clear()
        assert python_index.index_file("some-data", FILE, SHA256, 100) == BODY
        assert index.asked == []
        (cache.cache_folder() / "archives" / FILE).write_bytes(b"damaged")
        assert python_index.index_file("some-data", FILE, SHA256, 100) == BODY
        assert len(index.asked) == 2
        assert "secret" not in capsys.readouterr().err

    def test_what_is_refused_leaves_nothing(self, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        only_index(monkeypatch, f"http://{index.host}/simple")
        index.pages["/simple/some-data/"] = html(f"/files/{FILE}")
        for digest, limit in (("0" * 64, 100), (SHA256, 5)):
            with pytest.raises(DataCorrupt):
                index_file("some-data", FILE, digest, limit)
            assert list((cache.cache_folder() / "archives").iterdir()) == []


class TestRefusals:
    def test_a_host_without_tls_counts_only_where_pip_trusts_it(
        self, index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As pip does: what an address without TLS names is not followed, unless it is this machine."""
        only_index(monkeypatch, f"http://{index.host}/simple", "http://index.invalid/simple")
        index.pages["/simple/some-data/"] = html("x-1.tar.gz")
        with pytest.raises(DataUnavailable, match=f"http://index.invalid/simple has no {FILE}"):
            index_file("some-data", FILE, SHA256, 100)
        assert "not being trusted" in caplog.text

    def test_wrong_bytes_and_too_many(self, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        only_index(monkeypatch, f"http://{index.host}/simple")
        index.pages["/simple/some-data/"] = html(f"/files/{FILE}")
        with pytest.raises(
            DataCorrupt, match=r"Some_Data-1\.0\.tar\.gz was not opened: SHA256 hash .* expected sha256:0+ "
        ):
            index_file("some-data", FILE, "0" * 64, 100)
        with pytest.raises(DataCorrupt, match=r"holds more than 18 bytes"):
            index_file("some-data", FILE, SHA256, len(BODY) - 1)
        assert index_file("some-data", FILE, SHA256, len(BODY)) == BODY

    def test_all_places_are_named_without_passwords(
        self, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        gone = Index()
        host = gone.host
        gone.server_close()
        places = (f"http://{index.host}/simple", f"http://me:secret@{host}/simple", (tmp_path / "none").as_uri())
        only_index(monkeypatch, *places, find_links=(str(tmp_path),))
        index.pages["/simple/some-data/"] = html("x-1.tar.gz")
        with pytest.raises(DataUnavailable) as caught:
            index_file("some-data", FILE, SHA256, 100)
        words = str(caught.value)
        assert f"{tmp_path} has no {FILE}; http://{index.host}/simple has no {FILE};" in words
        assert f"http://{host}/simple cannot be read (this machine seems to be offline" in words
        assert f"{places[2]} has no {FILE}." in words
        assert "secret" not in words

    def test_certificates_that_are_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
        only_index(monkeypatch, "https://127.0.0.1:9/simple")
        with pytest.raises(DataUnavailable, match=r"cannot be read \(No such file"):
            index_file("some-data", FILE, SHA256, 100)

    def test_a_page_names_no_local_files(self, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(BODY)
        only_index(monkeypatch, f"http://{index.host}/simple")
        index.pages["/simple/some-data/"] = html((tmp_path / FILE).as_uri())
        with pytest.raises(DataUnavailable, match=f"has no {FILE}"):
            index_file("some-data", FILE, SHA256, 100)

    def test_a_page_that_is_none(self, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        only_index(monkeypatch, f"http://{index.host}/simple")
        for body in (b"{", b'{"files": 3}', b'{"files": [{}]}', b"\xff\xfe"):
            index.pages["/simple/some-data/"] = ("application/json", body)
            with pytest.raises(DataUnavailable, match="was not found where pip looks"):
                index_file("some-data", FILE, SHA256, 100)
