"""A real nginx for tests, with the configuration of ``deploy/nginx``: TLS, a path, and a coordinator behind it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SITE = Path(__file__).parents[3] / "deploy" / "nginx" / "quorate.conf"
WHOLE = """
daemon off;
worker_processes 1;
error_log {folder}/error.log warn;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


def nginx_program() -> str | None:
    """The program; None where it is not installed."""
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@contextmanager
def nginx(folder: Path, *, port: int, upstream: int, path: str, cert: Path, key: Path) -> Iterator[None]:
    """Runs nginx until the block ends. The site is that of ``deploy``, with these ports, this path and these files."""
    program = nginx_program()
    assert program is not None
    folder.mkdir()
    site = SITE.read_text()
    for written, wanted in {
        "127.0.0.1:8470": f"127.0.0.1:{upstream}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "server_name fl.example.org": "server_name localhost",
        "/etc/ssl/quorate/cert.pem": str(cert),
        "/etc/ssl/quorate/key.pem": str(key),
        "location /quorate/": f"location {path}/",
    }.items():
        assert written in site
        site = site.replace(written, wanted)
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(WHOLE.format(folder=folder))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process, folder)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    ends = time.monotonic() + 20
    while time.monotonic() < ends and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nginx did not start: {(folder / 'error.log').read_text()}")
