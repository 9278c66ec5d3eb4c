"""Docstrings under fields: read from the source, inherited, and left out where no source is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from client_sdk.protocol.devices import Receipt, Task
from client_sdk.protocol.field_docs import field_docs
from coordinator.datacenter.recipe import Recipe
from coordinator.engine.plan import Plan

SOURCE = '''
from pydantic import BaseModel

class First(BaseModel):
    one: int = 1
    """The first's one.

    Indented."""
    two: int = 2

class Second(First):
    one: int = 11
    """The second's one."""
    three: int = 3
    """Three."""
'''


def test_a_models_own_docstring_wins_over_an_inherited_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fields_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import fields_of_a_test as module  # type: ignore[import-not-found]

    assert field_docs(module.First) == {"one": "The first's one.\n\nIndented."}
    assert field_docs(module.Second) == {"one": "The second's one.", "three": "Three."}
    monkeypatch.delitem(sys.modules, "fields_of_a_test")


def test_without_source_there_are_none() -> None:
    namespace: dict[str, type] = {}
    module = type(sys)("module_without_source")
    sys.modules[module.__name__] = module
    try:
        exec(SOURCE.replace("class First", f"__name__ = {module.__name__!r}\nclass First"), namespace)
        assert field_docs(namespace["Second"]) == {}
    finally:
        del sys.modules[module.__name__]


def test_a_field_whose_type_has_a_description_keeps_its_own_words() -> None:
    """Pydantic's own reader would leave these at "SHA-256 in lower-case hexadecimal"."""
    assert field_docs(Receipt)["digest"].startswith("Of the received body.")
    assert field_docs(Task)["learner"].startswith("``package:name`` of a learner installed on the device.")


@pytest.mark.parametrize("model", [Task, Plan, Recipe])
def test_docstrings_belong_to_fields(model: type[Task]) -> None:
    assert set(field_docs(model)) <= set(model.model_fields)
