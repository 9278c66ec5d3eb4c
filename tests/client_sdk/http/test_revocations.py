"""The revocation list that a coordinator serves on: a device takes a newer one of its authority, and no other."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from client_sdk.credentials.certificate import RevocationList, sign_revocations
from client_sdk.credentials.errors import BadCredential, CredentialError, RolledBackList
from client_sdk.device.record import AuthorityRef, Record
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http.client import Client, fetch_list, fetch_revocations
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.secagg.memory import Memory
from tests.client_sdk.credentials.world import DAY, DEVICE, NOW, OTHER, STRANGER, TRUSTED, revocations
from tests.client_sdk.device.test_policy import assignment
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_script import script, serving, trainer


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
    storage.keep(lambda _: Memory(revocations=9))
    with pytest.raises(RolledBackList, match="list 8 is older than 9, which was seen in a secure round"):
        fetch_revocations(serves(revocations(8).encoded), storage, TRUSTED)
    assert storage.load_revocations() is None
    assert fetch_revocations(serves(revocations(9).encoded), storage, TRUSTED).counter == 9


NAMED = revocations(7, STRANGER)


def names(body: bytes, status: int = 200, listed: RevocationList = NAMED) -> httpx2.Client:
    """A coordinator that shows ``body`` where ``listed`` is asked for."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == Route.REVOCATION_LIST.format(digest=listed.digest.hex())
        return httpx2.Response(status, content=body)

    return httpx2.Client(base_url="https://c.example", transport=httpx2.MockTransport(answer))


def no_network() -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError(f"nothing is to be fetched: {request.url}")

    return httpx2.Client(base_url="https://c.example", transport=httpx2.MockTransport(answer))


def test_the_list_of_a_header_is_fetched_by_its_digest_and_kept() -> None:
    storage = MemoryStorage()
    assert fetch_list(names(NAMED.encoded), storage, TRUSTED, NAMED.digest) == NAMED
    assert fetch_list(no_network(), storage, TRUSTED, NAMED.digest) == NAMED


def test_the_list_of_a_header_may_be_older_than_the_newest_that_was_seen_which_stays() -> None:
    storage = MemoryStorage()
    storage.save_revocations(revocations(9))
    assert fetch_list(names(NAMED.encoded), storage, TRUSTED, NAMED.digest) == NAMED
    assert storage.load_revocations() == revocations(9)


@pytest.mark.parametrize(
    ("shown", "asked", "words"),
    [
        (revocations(8), NAMED, "another revocation list"),
        (sign_revocations(OTHER, counter=8, issued=NOW, next_update=NOW + DAY, revoked=[]), None, "authority"),
        (sign_revocations(OTHER, counter=3, issued=NOW, next_update=NOW + DAY, revoked=[]), None, "authority"),
        (revocations(5, STRANGER), None, "two revocation lists with number 5"),
    ],
    ids=["another", "another authority's", "another authority's and older", "same number, other bytes"],
)
def test_no_other_list_is_taken_for_that_of_a_header(
    shown: RevocationList, asked: RevocationList | None, words: str
) -> None:
    storage = MemoryStorage()
    storage.save_revocations(revocations(5))
    listed = asked or shown
    with pytest.raises(CredentialError, match=words):
        fetch_list(names(shown.encoded, listed=listed), storage, TRUSTED, listed.digest)
    assert storage.load_revocations() == revocations(5)


def test_a_list_that_a_device_sees_between_rounds_binds_its_attempts_and_one_that_it_sees_in_a_round_does_not() -> None:
    storage = MemoryStorage()
    authority = AuthorityRef(url="https://a.example", digest=TRUSTED.digest.hex(), public_key=TRUSTED.public_key.hex())
    idle = Record(coordinator="https://c.example", authority=authority)

    def sees(counter: int, record: Record) -> int:
        storage.save(record)
        http = serves(revocations(counter).encoded)
        with Client("https://c.example", storage, trainer(), http=http) as device:
            assert device.revocations().counter == counter
        return storage.load_secure().revocations

    assert sees(7, idle) == 7
    assert sees(8, idle.changed(assignment=assignment())) == 7
    assert sees(8, idle) == 8


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
