"""A browser with a jar of cookies, which sends what a page of the coordinator sends, to a coordinator in memory."""

from __future__ import annotations

import asyncio
from http.cookies import SimpleCookie
from typing import Any

import httpx2
from fastapi import FastAPI

from client_sdk.protocol.access import REQUEST_HEADER, REQUEST_VALUE
from client_sdk.protocol.names import Route
from coordinator.runtime.coordinator import Coordinator
from coordinator.service import create_app
from coordinator.settings import Settings


class Browser:
    """``origin``: of the coordinator. ``page``: the headers of a request by one of its pages; a test may change
    them."""

    def __init__(self, app: FastAPI, origin: str = "http://localhost:8470") -> None:
        self.app = app
        self.origin = origin
        self.page = {"Origin": origin, "Sec-Fetch-Site": "same-origin", REQUEST_HEADER: REQUEST_VALUE}
        self.cookies: dict[str, str] = {}

    @classmethod
    def of(cls, coordinator: Coordinator, settings: Settings | None = None, **more: Any) -> Browser:
        return cls(create_app(coordinator, settings or coordinator.core.settings), **more)

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
        """Sends one request. ``headers``: in the place of the page's."""
        given = dict(self.page if headers is None else headers)
        if self.cookies and "Cookie" not in given:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())

        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url=self.origin) as http:
                return await http.request(method, path, headers=given, **more)

        answer = asyncio.run(send())
        for line in answer.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        return answer

    def log_in(self, key: str) -> httpx2.Response:
        return self.ask("POST", Route.SESSIONS, json={"key": key})

    def me(self) -> httpx2.Response:
        return self.ask("GET", Route.ME)

    def close(self) -> None:
        self.app.state.service.close()
