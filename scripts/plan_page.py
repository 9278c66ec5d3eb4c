"""Writes docs/plan.md, the reference of plans, from the plan's own definitions: fields, ranges, defaults, docstrings.

``python -m scripts.plan_page`` writes it; a test fails when it is out of date.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from client_sdk.protocol.field_docs import field_docs
from coordinator.engine.plan import Plan

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"


def tables_in(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Field -> what it is, of the fields that are tables with fields of their own."""
    return {
        name: kind
        for name, info in model.model_fields.items()
        for kind in (info.annotation, *get_args(info.annotation))
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


SECTIONS = tables_in(Plan)
HEAD = """# Plans

A plan is a TOML file with everything that a run shall do. A field that is left out has the default below; an unknown
field, a wrong type and a contradiction are refused in a sentence. `quorate run create plan.toml` starts it. To begin:
[examples/mnist-small.toml](../examples/mnist-small.toml), [examples/mnist.toml](../examples/mnist.toml).

`quorate plan check plan.toml` checks a plan without a coordinator, and shows what its rounds need: devices, bytes,
disk, memory, time. `--set cohort.select=20` (also of `quorate run create` and `quorate simulate`) changes a field; the
value is TOML, or a text. `quorate plan schema > plan.schema.json` writes a JSON schema: an editor that reads it from
the plan's first line, `#:schema ./plan.schema.json`, completes and checks fields.

`name` (required): lower-case letters, digits and dashes, at most 48; the run's id is made from it.
"""


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    for name, model in SECTIONS.items():
        parts += [f"## [{name}]", *_table(model)]
        tables = (kind for field, kind in tables_in(model).items() if field in _properties(model))
        for kind in dict.fromkeys(tables):
            parts += [f"### A {kind.__name__.lower()}", *_table(kind)]
    return "\n".join(parts).rstrip() + "\n"


def _table(model: type[BaseModel]) -> list[str]:
    first = " ".join((model.__doc__ or "").strip().split("\n\n")[0].split())
    lines, docs = [f"{_plain(first)}\n\n| field | range | default | meaning |\n|---|---|---|---|"], field_docs(model)
    for field, info in model.model_fields.items():
        if field not in _properties(model):  # the coordinator's, which no plan says
            continue
        default = _default(info.get_default(call_default_factory=True))
        cells = (f"`{field}`", _range(model, field), default, _plain(" ".join(docs[field].split())))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


@cache
def _schema() -> dict[str, Any]:
    return Plan.model_json_schema()


def _properties(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = (_schema() if model is Plan else _schema()["$defs"][model.__name__])["properties"]
    return found


def _range(model: type[BaseModel], field: str) -> str:
    schema: dict[str, Any] = _properties(model)[field]
    choices = schema.get("anyOf", [schema])
    if "built_in" in schema:
        return ", ".join(f"`{json.dumps(name)}`" for name in schema["built_in"]) + ", or a package's"
    kinds = [_one(choice) for choice in choices if choice.get("type") != "null"]
    return " or ".join(kinds)


def _one(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"a {schema['$ref'].rsplit('/', 1)[1].lower()}, below"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "object": "table",
    }
    words = [kind.get(str(schema.get("type")), "list of texts")]
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    words += [f"{sign} {schema[key]:.15g}" for key, sign in signs.items() if key in schema]
    return " ".join(words)


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    return "none" if value is None else f"`{json.dumps(value)}`"


def _plain(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
