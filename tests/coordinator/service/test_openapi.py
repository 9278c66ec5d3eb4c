"""The OpenAPI document is what the routes do: requests drawn from it, or from what it excludes, are answered so.

schemathesis draws the requests and checks the answers; hypothesis chooses and shrinks. A request is sent as an
operator, or with the token of a device or a worker, over ASGI, to the application of a real coordinator with a run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from client_sdk.credentials.errors import BadCredential
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.flower import FLOWER_MEDIA_TYPE
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, TENSORS_MEDIA_TYPE, Route
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE
from coordinator.access import LOCAL_OWNER
from coordinator.blobs import FileBlobs
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.settings import Settings
from coordinator.store import open_store
from tests.coordinator.certified import Certifier, key_of
from tests.coordinator.service.devices import Signing, model_bytes, plan
from tests.rotating import in_parts

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPERATIONS = 80
STREAMS = (Route.EVENTS, Route.STREAM)
EACH = 10
"""Requests to each operation. `make soak` sends more."""
schemathesis.openapi.media_type(OCTETS_MEDIA_TYPE, st.binary(max_size=200))
schemathesis.openapi.media_type(FLOWER_MEDIA_TYPE, st.binary(max_size=200))
schemathesis.openapi.media_type(
    TENSORS_MEDIA_TYPE,
    st.one_of(
        st.binary(max_size=200),
        st.just(model_bytes()[0]),
        st.binary(max_size=60).map(lambda header: len(header).to_bytes(8, "little") + header),
    ),
)


@dataclass
class Service:
    """An application under a running lifespan, and a client of it in the same loop."""

    runner: asyncio.Runner
    client: httpx2.AsyncClient
    schema: Any
    known: dict[str, Any]
    tokens: dict[str, str]
    signing: dict[str, Signing]
    """A device and a worker."""

    def request(self, method: str, url: str, **more: Any) -> httpx2.Response:
        return self.runner.run(self.client.request(method, url, **more))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    chosen = Settings(data=folder, max_hold_s=0)
    store = open_store(chosen.database_url)
    authority = Certifier()
    pinned = authority.pinned()
    coordinator = Coordinator(Core(store, FileBlobs(chosen.blobs_folder), settings=chosen), authority=pinned)
    coordinator.identities.take_list(authority.list(time.time()))
    app = create_app(coordinator, chosen)
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=True), base_url="http://localhost", timeout=30
    )
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        try:
            service = Service(runner, client, schemathesis.openapi.from_dict(app.openapi()), {}, {"": ""}, {})
            for name in ("owner", "operator", "viewer", "nobody's"):
                role = "viewer" if name == "nobody's" else name
                made = coordinator.access.keys.create(LOCAL_OWNER, CreateKey.model_validate({"role": role}))
                service.tokens[name] = made.text
            service.known["key"] = made.key
            _populate(service, coordinator, authority)
            yield service
        finally:
            runner.run(lifespan.__aexit__(None, None, None))
            store.close()


def _populate(service: Service, coordinator: Coordinator, authority: Certifier) -> None:
    """A run, a device and a worker, whose names and keys the requests may use."""
    body, digest = model_bytes()
    owner = {"Authorization": f"Bearer {service.tokens['owner']}"}
    service.request("PUT", Route.CHECKPOINT.format(digest=digest), content=body, headers=owner).raise_for_status()
    run = {"plan": plan("known"), "init": digest}
    service.request("POST", Route.RUNS, json=run, headers=owner).raise_for_status()
    device, worker = key_of("a device"), key_of("a worker")
    coordinator.identities.register_device(authority.certificate(device, at=time.time()))()
    known = coordinator.identities.register_worker(authority.certificate(worker, at=time.time(), holder="worker"))
    service.signing |= {"device": Signing(device), "worker": Signing(worker)}
    service.known |= {
        "run": "known", "digest": digest, "round": 1, "attempt": 0, "worker": known.worker, "action": "resume",
        "device": "d1", "stage": "mask",
    }  # fmt: skip


def cases(service: Service, operation: Any) -> st.SearchStrategy[Any]:
    """Requests that the document allows, to what exists and to what does not, and requests that it excludes.

    An event stream that follows would never end.
    """
    fixed: dict[str, Any] = {"query": {"follow": "false"}} if operation.path in STREAMS else {}
    known = {name: value for name, value in service.known.items() if f"{{{name}}}" in operation.path}
    allowed = [operation.as_strategy(**fixed)]
    if known:
        allowed.append(operation.as_strategy(path_parameters=known, **fixed))
    excluded = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE, **fixed)
    return st.one_of(*allowed, excluded)


def explore(service: Service, operation: Any, examples: int) -> None:
    """Sends so many requests to one operation, others each time, and checks each answer."""
    requests = cases(service, operation)
    # The document describes the JSON in an event's data, schemathesis expects the event around it; test_stream.py.
    excluded = [response_schema_conformance] if operation.path in STREAMS else []
    suppressed = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    whose = st.one_of(st.just("owner"), st.sampled_from(sorted({**service.tokens, **service.signing})))

    @settings(max_examples=examples, deadline=None, derandomize=False, database=None, suppress_health_check=suppressed)
    @given(case=requests, who=whose)
    def search(case: Any, who: str) -> None:
        headers = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
        if service.tokens.get(who):
            headers["Authorization"] = f"Bearer {service.tokens[who]}"
        sent = translated(case.as_transport_kwargs(base_url="http://localhost", headers=headers))
        try:
            response = service.request(**sent, auth=service.signing.get(who))
        except BadCredential:  # a drawn header that no device can sign, and so none sends
            reject()
        case.validate_response(response, checks=[check for check in CHECKS if check not in excluded])

    search()


def translated(sent: dict[str, Any]) -> dict[str, Any]:
    """The arguments for requests as those for httpx2, which encodes header values as ASCII only; HTTP has bytes."""
    translated = {name: value for name, value in sent.items() if name not in ("cookies", "data")}
    if translated.get("headers"):
        translated["headers"] = {
            name: value.encode("latin-1") if isinstance(value, str) else value
            for name, value in dict(translated["headers"]).items()
        }
    if "data" in sent:
        translated["content"] = sent["data"]
    return translated


def operations(service: Service) -> list[Any]:
    return [found.ok() for found in service.schema.get_all_operations()]


def test_the_document_has_no_more_operations_than_are_explored(service: Service) -> None:
    assert len(operations(service)) == OPERATIONS


def test_each_body_of_the_document_can_be_drawn(service: Service) -> None:
    known = {"application/json", OCTETS_MEDIA_TYPE, FLOWER_MEDIA_TYPE, TENSORS_MEDIA_TYPE}
    assert {kind for operation in operations(service) for kind in bodies(operation)} <= known


def bodies(operation: Any) -> list[str]:
    """Media types of an operation's request bodies."""
    return list(operation.definition.raw.get("requestBody", {}).get("content", {}))


@pytest.mark.parametrize("number", in_parts(range(OPERATIONS), of=2))
def test_answers_are_those_of_the_document(service: Service, number: int) -> None:
    explore(service, operations(service)[number], EACH)


@pytest.mark.soak
def test_soak(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: all operations in turn, for SOAK_SECONDS."""
    seconds, sent = float(os.environ.get("SOAK_SECONDS", "600")), 0
    ends = time.monotonic() + seconds
    for operation in itertools.takewhile(lambda _: time.monotonic() < ends, itertools.cycle(operations(service))):
        explore(service, operation, 50)
        sent += 50
    with capsys.disabled():
        print(f"\n{sent} requests drawn from the OpenAPI document in {seconds:.0f} s")
