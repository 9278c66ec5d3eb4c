"""Serves the dashboard's page: the built files, from memory. By its policy it loads and asks this origin only.

A coordinator finds ``page`` by its entry point and mounts it under its name. ``scripts/dashboard.py`` builds the files.
Files below ``assets/`` have the digest of their content in their names, so that browsers keep them; the page itself is
asked for each time.

All addresses of the page are relative and its screens stand behind ``#``, so it works behind any prefix, and a login
link keeps its token in the fragment. One tab, which holds a Web Lock, reads the stream and tells the others by a
BroadcastChannel, since HTTP/1.1 gives an origin six connections and Chromium on Android has no SharedWorker. Tooltips
are drawn on the canvas: the policy refuses the inline styles of ECharts' HTML. ``quorate dashboard`` passes requests
on, instead of the coordinator allowing other origins (CORS).
"""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

BUILT = Path(__file__).resolve().parent / "built"
INDEX = "index.html"
POLICY = (
    "default-src 'self'; connect-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)
"""The Content-Security-Policy: nothing of another origin, no script or style inside the page, no ``data:``."""
_STANDING = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
_FOREVER = "public, max-age=31536000, immutable"
_LEAST_TO_COMPRESS = 1024
_READS = ("GET", "HEAD")


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    path: str
    """Relative to the page, with slashes."""
    content: bytes

    @cached_property
    def compressed(self) -> bytes | None:
        """The content by gzip; None where that saves nothing."""
        if len(self.content) < _LEAST_TO_COMPRESS:
            return None
        found = gzip.compress(self.content, mtime=0)
        return found if len(found) < len(self.content) else None

    def response(self, accepts: str) -> Response:
        """``accepts``: the Accept-Encoding of the request."""
        kept = self.path.startswith("assets/")
        headers = {**_STANDING, "Cache-Control": _FOREVER if kept else "no-store", "Vary": "Accept-Encoding"}
        compressed = self.compressed if "gzip" in accepts.lower() else None
        if compressed is not None:
            headers["Content-Encoding"] = "gzip"
        kind = mimetypes.guess_type(self.path)[0] or "application/octet-stream"
        return Response(self.content if compressed is None else compressed, headers=headers, media_type=kind)


class Site:
    """An ASGI application of these files; ``/`` is the page."""

    def __init__(self, assets: Mapping[str, Asset]) -> None:
        self._assets = dict(assets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        if scope["method"] not in _READS:
            return Response(status_code=405, headers={"Allow": ", ".join(_READS)})
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        asset = self._assets.get(path.lstrip("/") or INDEX)
        if asset is None:
            return Response("There is no such file.", 404, headers=_STANDING, media_type="text/plain")
        return asset.response(Headers(scope=scope).get("accept-encoding", ""))


def read(folder: Path) -> dict[str, Asset]:
    """The files of a built page, by path; none where there is no page."""
    if not (folder / INDEX).exists():
        return {}
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    assets = [Asset(path.relative_to(folder).as_posix(), path.read_bytes()) for path in found]
    return {asset.path: asset for asset in assets}


def page() -> ASGIApp | None:
    """The page of this installation; None where it was installed without, since there was no Node.js to build it."""
    assets = read(BUILT)
    return Site(assets) if assets else None
