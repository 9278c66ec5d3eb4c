"""The docstrings that stand under the fields of a message or a section of a plan, for the pages that show them.

Pydantic reads them too (``use_attribute_docstrings``), but when a class is made, for 1.5 to 2 ms of CPU each: with it
``from client_sdk import Client`` took 60 ms more (32 classes) and ``quorate --help`` 37 ms more, of some 900, on every
device and for every command. It also leaves a field alone whose type has a description, so a digest would no more say
which digest it is. Here a module is read once, when the first page is drawn.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """``{field: the docstring under it}``, with those of the models that it extends; its own win."""
    found: dict[str, str] = {}
    for ancestor in reversed(model.__mro__):
        found |= _docs_of_module(ancestor.__module__).get(ancestor.__name__, {})
    return found


@cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """``{class: {field: docstring}}`` of a module's classes; empty where its source is not installed."""
    if name.split(".")[0] in ("builtins", "pydantic"):
        return {}
    try:
        source = inspect.getsource(sys.modules[name])
    except (OSError, TypeError):  # compiled files only; typed into an interpreter
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for field, below in pairwise(node.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=field_name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found.setdefault(node.name, {})[field_name] = inspect.cleandoc(text)
                    case _:
                        pass
    return found
