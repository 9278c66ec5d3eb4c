"""Serves the dashboard's page and its proxy on this machine."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp


class PageServer(uvicorn.Server):
    """Serves one application on one listening socket. ``on_ready`` is called when it does: from then on SIGINT ends
    it without a word."""

    def __init__(self, app: ASGIApp, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        self._listener = listener
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=1, ws="none")
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([self._listener])
        if self.started:
            self._on_ready()
