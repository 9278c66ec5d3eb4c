"""The schema of plans, for editors and forms: types, ranges, defaults, and what each field means."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from client_sdk.protocol.field_docs import field_docs
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import section_of


@cache
def plan_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of a plan, each field with its description. Nobody changes it."""
    document: dict[str, Any] = Plan.model_json_schema()
    models: list[type[BaseModel]] = [Plan]
    for model in models:  # it grows by the sections that it has
        own = document if model is Plan else document["$defs"][model.__name__]
        found = [section_of(model, name) for name in own["properties"]]
        models += [section for section in found if section is not None and section not in models]
        for field, text in field_docs(model).items():
            if field in own["properties"]:
                own["properties"][field]["description"] = " ".join(text.split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
