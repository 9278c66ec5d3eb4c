"""The authority's revocation list: fetched in the background, stored, and served on to everybody.

The newest is at one path. Each that is in date is at its digest: what a header of a secure attempt names.

A fetch that fails stops nothing: the list that is held counts on, until its next update for secure rounds. Why it
failed is in the log, once, and with the rest of the authority's errors in ``/readyz``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from fastapi import Request
from starlette.responses import Response

from client_sdk.credentials.errors import CredentialError
from client_sdk.http.authority import AuthorityClient
from client_sdk.protocol.authority import REVOCATIONS_MEDIA_TYPE
from client_sdk.protocol.names import Digest, Route
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.requests import Permission
from coordinator.runtime.identities import Identities, PinnedAuthority
from coordinator.service.core import Service
from coordinator.service.declaring import REVOCATIONS, declared
from coordinator.service.route import LeanRoute
from coordinator.store.port import StoreError

FetchList = Callable[[], bytes]
"""Returns the bytes of the authority's list. It may block. ProblemError, CredentialError, OSError."""

log = structlog.get_logger("coordinator.service")


def fetch_from(authority: PinnedAuthority) -> FetchList:
    """Fetches the list from the authority's URL."""
    digest = authority.trusted.digest

    def fetch() -> bytes:
        with AuthorityClient(authority.url, digest) as client:
            return client.revocations().encoded

    return fetch


class ListKeeper:
    """Takes the list every ``every_s`` seconds, beginning at once."""

    def __init__(self, identities: Identities, fetch: FetchList, every_s: float) -> None:
        self._identities = identities
        self._fetch = fetch
        self._every_s = every_s

    async def keep(self) -> None:
        """Until it is cancelled. No thread of the service waits for an authority that is slow."""
        while True:
            await asyncio.to_thread(self.take)
            await asyncio.sleep(self._every_s)

    def take(self) -> None:
        """Fetches the list once, and takes it where it may follow the one that is held."""
        before = self._identities.fetch_failure
        try:
            self._identities.take_list(self._fetch())
        except ProblemError as error:
            failure = error.problem.detail
        except (CredentialError, OSError, StoreError) as error:
            failure = str(error)
        else:
            failure = ""
        self._identities.fetch_failure = failure
        if failure and not before:
            log.warning("the revocation list was not taken; trying on", reason=failure)
        elif before and not failure:
            log.info("the revocation list is taken again")


def revocation_routes(service: Service) -> list[LeanRoute]:
    """GET of the newest list, and of each by its digest."""

    def encoded() -> bytes:
        identities = service.coordinator.identities
        held = identities.list()
        if held is None:
            raise problem("busy", identities.trouble(), retry_after_s=30)
        return held.encoded

    async def revocations(request: Request) -> Response:
        """The authority's newest revocation list that this coordinator has seen, in the authority's own bytes.

        Whoever pins the authority's key checks its signature and takes no lower counter than before."""
        return Response(await service.work(encoded), media_type=REVOCATIONS_MEDIA_TYPE)

    def find(digest: str) -> bytes:
        found = service.coordinator.identities.list_named(digest)
        if found is None:
            raise problem("unknown-list", f"there is no list {digest} here that is in date")
        return found

    async def revocation_list(request: Request, digest: Digest) -> Response:
        """The list of this SHA-256, as long as it is in date: that by which a secure attempt begins, also where the
        authority has issued a newer one meanwhile. It never changes, so it may be cached for ever."""
        headers = {"ETag": f'"{digest}"', "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(await service.work(find, digest), headers=headers, media_type=REVOCATIONS_MEDIA_TYPE)

    options: dict[str, Any] = {"methods": ["GET"], "tags": ["access"], "response_class": Response}
    options |= {"responses": {200: {**REVOCATIONS, "description": "the list"}}}
    routes = [
        LeanRoute(Route.REVOCATIONS, revocations, summary="Read the revocation list", **options),
        LeanRoute(Route.REVOCATION_LIST, revocation_list, summary="Read one revocation list", **options),
    ]
    return [declared(route, Permission.NOBODY) for route in routes]
