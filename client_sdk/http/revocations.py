"""Fetches the authority's revocation list, which the coordinator serves on, and keeps the newest one.

A coordinator can hide a newer list, never bring an older one back: the counter that was seen is on the disk.
"""

from __future__ import annotations

from contextlib import closing

import httpx2

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.errors import RolledBackList
from client_sdk.credentials.revocations import RevocationList, following
from client_sdk.device.record import Storage
from client_sdk.http.authority import LIST_LIMIT
from client_sdk.http.exchange import headers, read_limited
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, parse_problem, problem


def fetch_revocations(http: httpx2.Client, storage: Storage, authority: TrustedAuthority) -> RevocationList:
    """The list that ``http``'s coordinator serves, kept in ``storage``, where it may follow what was seen before.
    Whether it is current is for the caller to check.

    RolledBackList for an older one, BadCredential for what is no list of this authority, ProblemError for what the
    coordinator refuses, *busy* where it cannot be reached. The list that is kept then stays."""
    try:
        request = http.build_request("GET", Route.REVOCATIONS, headers=headers())
        with closing(http.send(request, stream=True, follow_redirects=False)) as response:
            body = read_limited(response, LIST_LIMIT)
    except httpx2.HTTPError as error:
        raise problem(
            "busy", f"The revocation list cannot be fetched ({str(error) or type(error).__name__})."
        ) from error
    if not response.is_success:
        raise ProblemError(parse_problem(response.status_code, body, response.headers))
    held = storage.load_revocations()
    found = following(held, body, authority)
    seen = storage.load_secure().revocations
    if found.counter < seen:
        raise RolledBackList(f"Revocation list {found.counter} is older than {seen}, which was seen in a secure round.")
    if found is not held:
        storage.save_revocations(found)
    return found
