"""Fetches the authority's revocation lists, which the coordinator serves on, and keeps the newest one.

A coordinator can hide a newer list, never bring an older one back: the counter that was seen is on the disk. A secure
attempt begins by the list that its header names, for as long as that is in date and no earlier attempt of this device
has begun by a newer one.
"""

from __future__ import annotations

import hashlib
from contextlib import closing

import httpx2

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.errors import BadCredential, RolledBackList
from client_sdk.credentials.revocations import RevocationList, following
from client_sdk.device.record import Storage
from client_sdk.http.authority import LIST_LIMIT
from client_sdk.http.exchange import headers, read_limited
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, parse_problem, problem


def fetch_revocations(http: httpx2.Client, storage: Storage, authority: TrustedAuthority) -> RevocationList:
    """The newest list that ``http``'s coordinator serves, kept in ``storage``, where it may follow what was seen
    before. Whether it is current is for the caller to check.

    RolledBackList for an older one, BadCredential for what is no list of this authority, ProblemError for what the
    coordinator refuses, *busy* where it cannot be reached. The list that is kept then stays."""
    body = _fetched(http, Route.REVOCATIONS)
    held = storage.load_revocations()
    found = following(held, body, authority)
    seen = storage.load_secure().revocations
    if found.counter < seen:
        raise RolledBackList(f"Revocation list {found.counter} is older than {seen}, which was seen in a secure round.")
    if found is not held:
        storage.save_revocations(found)
    return found


def fetch_list(http: httpx2.Client, storage: Storage, authority: TrustedAuthority, digest: bytes) -> RevocationList:
    """The list of this digest (SHA-256, 32 bytes): the one in ``storage``, or else the coordinator's, kept where it is
    newer than that one. An older one is returned too. Errors as ``fetch_revocations``."""
    held = storage.load_revocations()
    if held is not None and held.digest == digest:
        return held
    body = _fetched(http, Route.REVOCATION_LIST.format(digest=digest.hex()))
    if hashlib.sha256(body).digest() != digest:
        raise BadCredential("The coordinator shows another revocation list than the one that its header names.")
    newer = held is None or RevocationList.parse(body).counter >= held.counter
    found = following(held if newer else None, body, authority)
    if newer:
        storage.save_revocations(found)
    return found


def _fetched(http: httpx2.Client, path: str) -> bytes:
    """The bytes at this path. ProblemError."""
    try:
        request = http.build_request("GET", path, headers=headers())
        with closing(http.send(request, stream=True, follow_redirects=False)) as response:
            body = read_limited(response, LIST_LIMIT)
    except httpx2.HTTPError as error:
        raise problem(
            "busy", f"The revocation list cannot be fetched ({str(error) or type(error).__name__})."
        ) from error
    if not response.is_success:
        raise ProblemError(parse_problem(response.status_code, body, response.headers))
    return body
