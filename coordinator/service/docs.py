"""The page that describes the API for people. It loads from this server only, so it works without internet."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import Response

DOCS_PATH = "/docs"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _asset(name: str) -> bytes:
    return (files("coordinator.service") / "assets" / name).read_bytes()


def docs_page() -> Response:
    """Returns the page. Its script renders ``/openapi.json``."""
    return Response(_asset("docs.html"), media_type="text/html", headers={"Content-Security-Policy": _POLICY})


def docs_script() -> Response:
    """Returns the page's script."""
    return Response(_asset("docs.js"), media_type="text/javascript", headers={"Cache-Control": "no-cache"})
