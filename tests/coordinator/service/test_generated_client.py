"""A client that openapi-python-client generates from the OpenAPI document works, typed, with the key of an owner."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client_sdk.protocol.authority import REVOCATIONS_MEDIA_TYPE
from client_sdk.protocol.flower import FLOWER_MEDIA_TYPE
from client_sdk.protocol.names import TENSORS_MEDIA_TYPE
from coordinator.service.openapi import operation_id
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes, plan

PACKAGE = "generated_quorate"
CONFIG = f"""\
content_type_overrides:
  {TENSORS_MEDIA_TYPE}: application/octet-stream
  {REVOCATIONS_MEDIA_TYPE}: application/octet-stream
  {FLOWER_MEDIA_TYPE}: application/octet-stream
post_hooks: []
"""
"""The generator does not know our media types; docs/operators.md has the same lines."""


@dataclass
class Generated:
    """The generated package, and its client of a real server with the owner's key."""

    folder: Path
    url: str
    client: Any

    def model(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{PACKAGE}.models"), name)

    def ask(self, group: str, operation: str, client: Any = None, **arguments: Any) -> Any:
        """The parsed answer to one request."""
        module = importlib.import_module(f"{PACKAGE}.api.{group}.{operation}")
        return module.sync(client=client or self.client, **arguments)

    def with_key(self, key: str) -> Any:
        return importlib.import_module(PACKAGE).AuthenticatedClient(base_url=self.url, token=key)


@pytest.fixture(scope="module")
def generated(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_bytes(server.http.get("/openapi.json").content)
    (folder / "config.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--meta", "none"]
    command += ["--config", "config.yaml", "--output-path", PACKAGE, "--fail-on-warning"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        made = Generated(folder / PACKAGE, server.url, None)
        made.client = made.with_key(server.key)
        yield made
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


@pytest.mark.slow
def test_every_operation_is_generated_under_its_name(server: Server, generated: Generated) -> None:
    document = server.http.get("/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = {operation["operationId"] for operation in operations}
    assert len(names) == len(operations), "names are unique"
    assert all(re.fullmatch("[a-z]+(_[a-z0-9]+)+", name) for name in names)
    found = {path.stem for path in (generated.folder / "api").glob("*/*.py")} - {"__init__"}
    assert found == names


@pytest.mark.slow
def test_an_owner_creates_and_follows_a_run(generated: Generated) -> None:
    body, digest = model_bytes()
    file = importlib.import_module(f"{PACKAGE}.types").File(payload=io.BytesIO(body))
    generated.ask("checkpoints", "upload_checkpoint", digest=digest, body=file)
    wanted = {"plan": plan("generated", finish={"rounds": 3}), "init": digest, "origin": "a generated client"}
    created = generated.ask("runs", "create_run", body=generated.model("CreateRun").from_dict(wanted))
    assert (created.run, created.rounds_wanted, created.origin) == ("generated", 3, "a generated client")
    assert created.status == generated.model("RunViewStatus").RUNNING
    assert "generated" in [view.run for view in generated.ask("runs", "list_runs")]
    assert generated.ask("runs", "show_run", run="generated").plan["task"]["learner"] == "tests:generated"
    assert [row.round_ for row in generated.ask("runs", "list_run_rounds", run="generated")] == [1]
    (first,) = generated.ask("runs", "list_run_checkpoints", run="generated")
    assert first.digest == digest
    action = importlib.import_module(f"{PACKAGE}.models").PauseResumeOrStopRunAction.STOP
    stopped = generated.ask("runs", "pause_resume_or_stop_run", run="generated", action=action)
    assert stopped.status == generated.model("RunViewStatus").STOPPED


@pytest.mark.slow
def test_an_owner_keeps_keys_and_a_refusal_is_a_problem_document(generated: Generated) -> None:
    asked = generated.model("CreateKey").from_dict({"role": "viewer", "scope": "a*", "label": "generated"})
    made = generated.ask("access", "create_api_key", body=asked)
    assert made.key in [key.key for key in generated.ask("access", "list_api_keys")]
    refused = generated.ask("access", "list_api_keys", client=generated.with_key(made.text))
    assert isinstance(refused, generated.model("Problem"))
    assert (refused.status, refused.type_) == (403, "/problems/not-permitted")
    revoked = generated.ask("access", "revoke_api_key", key=made.key)
    assert revoked.revoked_at is not None
    assert generated.ask("runs", "list_runs", client=generated.with_key(made.text)).status == 401
    assert "key.revoke" in [row.action for row in generated.ask("access", "read_audit")]


@pytest.mark.parametrize(
    ("summary", "name"), [("List a run's rounds", "list_run_rounds"), ("Create an API key", "create_api_key")]
)
def test_names_of_operations_come_from_their_summaries(summary: str, name: str) -> None:
    assert operation_id(summary) == name
