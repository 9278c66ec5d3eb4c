"""Writes the part of the API's description from which the types of the dashboard are generated.

::

    python -m scripts.dashboard_api          # writes dashboards/web/openapi.json anew

It is the OpenAPI document of the coordinator, without texts and examples, and without the requests of devices and
workers. The dashboard's build makes TypeScript types of it, so that a changed API breaks that build; a test says where
the file is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.blobs import FileBlobs
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.settings import Settings
from coordinator.store import MemoryStore

FILE = Path(__file__).resolve().parent.parent / "dashboards" / "web" / "openapi.json"
OTHERS = frozenset({"devices", "workers"})
"""Groups of requests that a page never sends: those that are signed."""
_TEXTS = frozenset({"description", "summary", "title", "examples", "example", "operationId", "security", "tags"})
_SCHEMAS = "#/components/schemas/"


def text() -> str:
    """The file's content."""
    with TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder))
        coordinator = Coordinator(Core(MemoryStore(), FileBlobs(settings.blobs_folder), settings=settings))
        document = create_app(coordinator, settings).openapi()
    return json.dumps(reduced(document), indent=1, sort_keys=True) + "\n"


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """The document's requests of operators and browsers, with the schemas that they use and no texts."""
    paths = {
        path: {method: _bare(asked) for method, asked in operations.items() if not OTHERS & set(asked.get("tags", ()))}
        for path, operations in document["paths"].items()
    }
    paths = {path: operations for path, operations in paths.items() if operations}
    schemas: dict[str, Any] = {}
    wanted = _references(paths)
    while wanted:
        name = wanted.pop()
        schemas[name] = _bare(document["components"]["schemas"][name])
        wanted |= _references(schemas[name]) - set(schemas)
    info = {"title": "Quorate", "version": "1"}
    return {"openapi": document["openapi"], "info": info, "paths": paths, "components": {"schemas": schemas}}


def _bare(node: Any) -> Any:
    """The node without texts. A field of a message that has the name of a text is kept."""
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if name not in _TEXTS}
    return {
        name: {field: _bare(schema) for field, schema in value.items()} if name == "properties" else _bare(value)
        for name, value in kept.items()
    }


def _references(node: Any) -> set[str]:
    """The names of the schemas to which it refers."""
    if isinstance(node, list):
        return set().union(*map(_references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"].removeprefix(_SCHEMAS)} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(_references, node.values()))


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
