"""Where a file can be mutated: all places of Cosmic Ray's operators, but those that nobody can see by construction.

Not sampled:

- annotations without a call in them, ``Literal`` excepted: no file of the product evaluates its annotations by itself
  (``from __future__ import annotations``); pydantic and typer do, for limits;
- ``if TYPE_CHECKING:``, which runs in type checkers only;
- ``slots=``, ``frozen=`` and ``kw_only=`` of a dataclass, ``frozen=`` of a pydantic model: mypy finds who assigns what
  is frozen, or leaves a name out;
- ``*`` and ``/`` between parameters: callers pass names all the same;
- arguments of a logger's methods: what a log line says is free.

Strings, and with them docstrings and ``__all__``, are never mutated. Cosmic Ray's operators that mostly change
annotations (``int | None``) or make code that cannot run are left out.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

OPERATORS = (
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mod", "Mod_Add")
    ),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_GtE", "GtE_Lt", "Is_IsNot", "IsNot_Is")),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "AddNot"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer"),
    *("NumberReplacer", "ZeroIterationForLoop"),
)
LOGGERS = frozenset({"log", "_log", "_LOG", "logger"})
DATACLASS = frozenset({"slots", "frozen", "kw_only"})
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception"})

Position = tuple[int, int]
"""Line from 1, column from 0."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file: the ``occurrence``-th place in it where the operator applies."""

    file: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def name(self) -> str:
        return f"{self.file} {self.operator} {self.occurrence}"

    def of(self, source: str) -> str:
        """The changed source."""
        changed = mutate_code(source, get_operator(f"core/{self.operator}")(), self.occurrence)
        if not isinstance(changed, str):
            raise TypeError(f"{self.name} changes nothing")
        return changed


def mutations(root: Path, room: Path) -> list[Mutation]:
    """All mutations of a room's files, or of one file."""
    files = [room] if room.is_file() else sorted(room.rglob("*.py"))
    return [mutation for file in files for mutation in _of_file(root, file)]


def sample(every: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """``count`` of them, the same for the same seed."""

    def drawn(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation.name}".encode()).digest()

    return sorted(every, key=drawn)[:count]


def _of_file(root: Path, file: Path) -> Iterator[Mutation]:
    source = file.read_text("utf-8")
    tree = get_ast(source)
    unseen = list(_unseen(ast.parse(source)))
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        places = [(node, start) for node in _nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, (node, (line, column)) in enumerate(places):
            if not _separates(node) and not any(start <= (line, column) < end for start, end in unseen):
                yield Mutation(file.relative_to(root).as_posix(), name, occurrence, line, column)


def _separates(node: Any) -> bool:
    """Whether it is a ``*`` or ``/`` that multiplies and divides nothing: it stands between parameters, or unpacks."""
    return getattr(node, "value", "") in ("*", "/") and node.parent.type != "term"


def _nodes(node: object) -> Iterator[object]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _unseen(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Start and end of each stretch that is not sampled."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                if not _evaluated(annotation):
                    yield _stretch(annotation)
            case (
                ast.FunctionDef(returns=ast.expr() as annotation)
                | ast.AsyncFunctionDef(returns=ast.expr() as annotation)
            ):
                yield _stretch(annotation)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield _stretch(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=method)):
                if logger in LOGGERS and method in LOG_METHODS:
                    yield _stretch(node)
            case ast.Call(func=ast.Name(id="ConfigDict")):
                yield from (_stretch(one) for one in node.keywords if one.arg == "frozen")
            case ast.ClassDef():
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
                        yield from (_stretch(one) for one in decorator.keywords if one.arg in DATACLASS)
            case _:
                pass


def _evaluated(annotation: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Call) or (isinstance(part, ast.Name) and part.id == "Literal")
        for part in ast.walk(annotation)
    )


def _stretch(node: ast.expr | ast.stmt | ast.keyword) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)
