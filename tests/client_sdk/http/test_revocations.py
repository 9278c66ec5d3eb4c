"""The revocation list that a coordinator serves on: a device takes a newer one of its authority, and no other."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from client_sdk.credentials.errors import BadCredential, CredentialError, RolledBackList
from client_sdk.credentials.revocations import RevocationList, sign_revocations
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http.revocations import fetch_revocations
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.secagg.memory import Memory
from tests.client_sdk.credentials.world import DAY, DEVICE, NOW, OTHER, STRANGER, TRUSTED, revocations
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_script import script, serving


def serves(body: bytes, status: int = 200) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert (request.method, request.url.path) == ("GET", Route.REVOCATIONS.value)
        assert "authorization" not in request.headers
        return httpx2.Response(status, content=body)

    return httpx2.Client(base_url="https://c.example", transport=httpx2.MockTransport(answer))


def test_a_newer_list_is_kept_and_the_same_one_is_the_one_that_is_held() -> None:
    storage = MemoryStorage()
    for number in (3, 3, 9):
        found = fetch_revocations(serves(revocations(number, STRANGER).encoded), storage, TRUSTED)
        assert found.counter == number
        assert storage.load_revocations() == found


@pytest.mark.parametrize(
    ("offered", "error"),
    [
        (revocations(6, STRANGER), RolledBackList),
        (revocations(7, DEVICE), RolledBackList),
        (sign_revocations(OTHER, counter=8, issued=NOW, next_update=NOW + DAY, revoked=[]), BadCredential),
        (b"", BadCredential),
        (revocations(8).encoded[:-1], BadCredential),
    ],
    ids=["lower", "same number, other bytes", "another authority's", "nothing", "cut"],
)
def test_no_other_list_is_taken_also_after_a_restart(
    tmp_path: Path, offered: RevocationList | bytes, error: type[CredentialError]
) -> None:
    with FileStorage(tmp_path) as storage:
        fetch_revocations(serves(revocations(7, STRANGER).encoded), storage, TRUSTED)
    body = offered if isinstance(offered, bytes) else offered.encoded
    for _ in range(2):
        with FileStorage(tmp_path) as storage:
            with pytest.raises(error):
                fetch_revocations(serves(body), storage, TRUSTED)
            assert storage.load_revocations() == revocations(7, STRANGER)


def test_a_counter_that_was_seen_in_a_secure_round_counts_too() -> None:
    storage = MemoryStorage()
    storage.save_secure(Memory(revocations=9))
    with pytest.raises(RolledBackList, match="list 8 is older than 9, which was seen in a secure round"):
        fetch_revocations(serves(revocations(8).encoded), storage, TRUSTED)
    assert storage.load_revocations() is None
    assert fetch_revocations(serves(revocations(9).encoded), storage, TRUSTED).counter == 9


def test_a_coordinator_without_a_list_and_one_that_does_not_answer_are_problems() -> None:
    busy = problem("busy", "No list of the authority was seen yet.").problem.model_dump_json().encode()
    with pytest.raises(ProblemError, match="No list of the authority"):
        fetch_revocations(serves(busy, 503), MemoryStorage(), TRUSTED)
    with pytest.raises(ProblemError, match="cannot be fetched") as refused:
        fetch_revocations(httpx2.Client(base_url="http://127.0.0.1:9"), MemoryStorage(), TRUSTED)
    assert refused.value.kind == "busy"


def test_a_device_without_certificate_knows_no_authority_to_check_a_list_with() -> None:
    with serving(script()) as server, client(server) as device:
        with pytest.raises(ProblemError, match="has no certificate"):
            device.revocations()
        assert server.headers == []
