"""Completes the OpenAPI document: a name for each operation, each field's docstring as its description, and an example
of each message.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from client_sdk.protocol import (
    access,
    devices,
    flower,
    insight,
    live,
    names,
    operators,
    problems,
    secure,
    workers,
)
from client_sdk.protocol.field_docs import field_docs
from coordinator.requests import Body, Table
from coordinator.service.declaring import SCHEMES

_KEY = "3f8a61c0d7be4925a1f4c6088d2b97e5" * 2
_DIGEST = "9b1c0f52e6d84a73b0a95e1d47c3f86a" * 2
_APP = {"name": "acme/vision", "version": "1.0.0", "digest": _DIGEST}
_MESSAGE = {"message": _KEY, "node": 4711, "kind": "train", "group": "1", "ttl_s": 3600, "content": _DIGEST}

EXAMPLES: dict[str, dict[str, Any]] = {
    "Registration": {"certificate": "80" + _KEY, "examples": 600, "label": "ward 7"},
    "Registered": {"device": "d1f2e3d4c5b6a798", "examples_cap": 600},
    "CheckIn": {
        "examples": 600,
        "learners": {"quorate:mnist-mlp": "0.2.0.dev0"},
        "policy": {},
        "facts": {"sdk": "0.2.0"},
        "hold_s": 25,
    },
    "Assignment": {
        "kind": "assignment",
        "run": "mnist-1",
        "round": 7,
        "attempt": 0,
        "device": "d-4k7m2q9x",
        "checkpoint": {"version": 6, "digest": _DIGEST, "bytes": 796_840},
        "plan_digest": _KEY,
        "task": {"learner": "quorate:mnist-mlp", "epochs": 1, "batch_size": 10, "learning_rate": 0.1},
        "report_within_s": 30,
        "max_update_bytes": 862_376,
    },
    "Wait": {"kind": "wait", "reason": "The cohort of round 7 is full.", "min_s": 5, "max_s": 30},
    "Started": {"attempt": 0},
    "Withdrawal": {"attempt": 0, "reason": "The battery is low."},
    "SecureWait": {"hold_s": 25},
    "SecureSigned": {"signature": _KEY * 2},
    "SecureRefusal": {"spent": True, "reason": "This device has signed a survivor list on this checkpoint."},
    "Receipt": {
        "run": "mnist-1",
        "round": 7,
        "attempt": 0,
        "device": "d-4k7m2q9x",
        "digest": _DIGEST,
        "weight": 600,
        "logged": {"seq": 1412, "link": _DIGEST},
    },
    "Outcome": {
        "run": "mnist-1",
        "round": 7,
        "device": "d-4k7m2q9x",
        "result": "counted",
        "digest": _DIGEST,
        "version": 7,
    },
    "CreateLedger": {"ledger": "phones", "epsilon": 8.0, "delta": 1e-6},
    "AllowSpending": {"spent_in": "run:mnist-1", "because": "The privacy officer has agreed."},
    "WorkerPoll": {
        "instance": "7c1e04",
        "learners": {"quorate:mnist-mlp": "0.2.0.dev0"},
        "data": ["proxy-mnist"],
        "nproc": 4,
        "strategies": ["recompute", "shard=full"],
        "memory_bytes": 85_000_000_000,
        "hold_s": 25,
    },
    "Heartbeat": {"attempt": 1, "fence": 3, "step": 40, "metrics": {"loss": 0.31, "samples_per_s": 5200}},
    "LeaseEnd": {"attempt": 1, "fence": 3, "failed": False, "reason": "The machine is taken for something else."},
    "WorkerRegistration": {"certificate": "80" + _KEY, "label": "cluster 2"},
    "CreateKey": {"role": "viewer", "scope": "mnist-*", "label": "the dashboard", "expires_in_s": 2_592_000},
    "LogIn": {"key": f"qk_{_KEY[:16]}_{_KEY}"},
    "LogInByLink": {"token": f"ql_{_KEY[:16]}_{_KEY}"},
    "RenameRun": {"name": "keyboards, with a larger cohort"},
    "AdvanceRun": {"by": "olga"},
    "UnbarDevice": {"by": "olga"},
    "SignRun": {"version": 3, "signature": "5e" * 64},
    "CreateRun": {
        "plan": {"name": "mnist", "task": {"learner": "quorate:mnist-mlp"}, "finish": {"rounds": 10}},
        "init": _DIGEST,
        "origin": "model.safetensors",
    },
    "CheckPlan": {
        "plan": {"name": "mnist", "task": {"learner": "quorate:mnist-mlp"}, "finish": {"rounds": 10}},
        "init": _DIGEST,
    },
    "MetricReport": {
        "version": 7,
        "digest": _DIGEST,
        "source": "test",
        "score": {"examples": 10_000, "metrics": {"accuracy": 0.94, "loss": 0.21}},
    },
    "CreateFlowerRun": {"run": "vision", "app": _APP, "config": {"num-server-rounds": 3, "lr": 0.1}},
    "PushMessages": {"messages": [_MESSAGE]},
    "PullReplies": {"messages": [_KEY], "hold_s": 25},
    "FlowerState": {"content": _DIGEST},
    "EndFlowerRun": {"status": "finished", "reason": "the ServerApp has returned"},
    "FlowerPoll": {"apps": [_APP], "hold_s": 25},
    "FlowerError": {"code": 2, "reason": "RuntimeError: the loss is NaN"},
    "EventView": {"seq": 412, "at": 1_790_000_000.0, "kind": "reported", "body": {"round": 7, "device": "d-4k7m2q9x"}},
    "Problem": {
        "type": "/problems/late",
        "title": "The round has closed",
        "status": 409,
        "detail": "Round 7 closed 12 s ago with 256 reports.",
        "retryable": False,
    },
}

_PROBLEM = {
    "description": "A problem document",
    "content": {names.PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def complete(app: FastAPI, table: Table, public_url: str | None) -> None:
    """Makes ``app.openapi()`` return the completed document. It is made once, when it is first asked for. Its server is
    the public URL; without one, the place where the document came from."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            document["servers"] = [{"url": public_url or "/"}]
            schemas = document["components"]["schemas"]
            models: list[type[BaseModel]] = [
                problems.Problem,
                operators.EventView,
                live.LiveSnapshot,
                live.LivePatch,
                *_messages(table),
            ]
            for model in models:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for methods in document["paths"].values():
                for operation in methods.values():
                    operation["operationId"] = operation_id(operation["summary"])
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = _PROBLEM
            for name, schema in schemas.items():
                _describe(name, schema)
            document["components"]["securitySchemes"] = SCHEMES
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def operation_id(summary: str) -> str:
    """Returns the name that a generated client gives to the operation with this summary: *List a run's rounds* is
    ``list_run_rounds``."""
    words = re.findall("[a-z0-9]+", summary.lower().replace("'s", ""))
    return "_".join(word for word in words if word not in ("a", "an", "the"))


def _messages(table: Table) -> list[type[BaseModel]]:
    """The messages of operators, whose bounds FastAPI shows as fractions, and in headers: it describes none."""
    entries = [entry for entry in table if not entry.permission.of_peers or isinstance(entry.shape, Body)]
    return [entry.message for entry in entries if entry.message is not None]


def _describe(name: str, schema: dict[str, Any]) -> None:
    rooms = (access, devices, flower, insight, live, names, operators, secure, workers, problems)
    model = next((getattr(room, name) for room in rooms if hasattr(room, name)), None)
    docs = field_docs(model) if model is not None else {}
    for field, described in schema.get("properties", {}).items():
        if field in docs:
            described["description"] = docs[field]
    if name in EXAMPLES:
        schema["examples"] = [EXAMPLES[name]]
