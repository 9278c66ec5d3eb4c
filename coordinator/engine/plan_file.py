"""Reads a plan from a TOML file, with changes on top. An error names the file and the line that it is about.

``tomllib`` gives no positions. Only where a plan is refused, the line of a field is found: the file's first lines that
are TOML by themselves and have the field end with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

Where = tuple[str, ...]
"""The names that lead to a field: ``("cohort", "select")``."""

MOST = 20
"""Mistakes that are told of a plan. A request may have thousands, and each costs a search for what was meant."""
LONGEST = 100
"""Characters of a name that is repeated."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with a plan; ``str`` of it is a clause."""

    what: str
    where: tuple[str | int, ...] = ()
    """The names that lead to the field; of a contradiction between fields, to the section that has them."""

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.where))}: {self.what}" if self.where else self.what


class PlanError(ValueError):
    """A plan that cannot be carried out. The message names the field and says what to change."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        self.mistakes = tuple(one if isinstance(one, Mistake) else Mistake(one) for one in mistakes)
        super().__init__("; ".join(map(str, self.mistakes)))

    def __reduce__(self) -> tuple[type[PlanError], tuple[Mistake, ...]]:
        return type(self), self.mistakes


class PlanFile:
    """A plan's file as a table, with each change (``cohort.select=20``) on top. A change's value is TOML, or a text.

    ``model``: of the plan. A field of it that takes nothing but texts needs no quotes: ``task.learner_version=2.0`` is
    the text 2.0. PlanError where the file cannot be read or is not TOML, and where a change is not one.
    """

    def __init__(self, path: Path | str, changes: Sequence[str] = (), *, model: type[BaseModel]) -> None:
        self._path = path
        try:
            content = Path(path).read_bytes()
            if content.startswith(b"\xef\xbb\xbf"):
                raise PlanError(f"{path} begins with a byte-order mark: save it as UTF-8 without one")
            if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:2]:
                raise PlanError(f"{path} is in UTF-16: save it as UTF-8")
            self._text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
            self.data = tomllib.loads(self._text)
        except OSError as error:
            raise PlanError(f"cannot read the plan {path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise PlanError(f"{path} is not in UTF-8, at byte {error.start + 1}: save it as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"{path} is not valid TOML: {error}") from None
        self._changes = {_change(self.data, change, model): change for change in changes}

    def located(self, error: PlanError) -> PlanError:
        """The error with the places in which the user can correct its mistakes."""
        places = groupby(error.mistakes, self._place)
        return PlanError(*(f"{place}: {'; '.join(map(str, mistakes))}" for place, mistakes in places))

    def _place(self, mistake: Mistake) -> str:
        where = tuple(str(part) for part in mistake.where)
        if where in self._changes:
            return f"--set {self._changes[where]}"
        line = _line(self._text, where) or _line(self._text, where[:-1])
        if line is not None:
            return f"{self._path}, line {line}"
        inside = [change for changed, change in self._changes.items() if where and changed[: len(where)] == where]
        return f"--set {inside[0]}" if inside else str(self._path)


def _line(text: str, where: Where) -> int | None:
    """The number of the line on which this field, or the header of this section, is written; None: on none."""
    lines = text.splitlines(keepends=True)
    for count in range(1, len(lines) + 1) if where else ():
        try:
            found: Any = tomllib.loads("".join(lines[:count]))
        except tomllib.TOMLDecodeError:  # in the middle of a value of several lines
            continue
        for name in where:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return count
    return None


def _change(data: dict[str, Any], change: str, model: type[BaseModel]) -> Where:
    """Make one change to a parsed plan; returns the field that it sets."""
    names, equals, value = change.partition("=")
    where = tuple(name.strip() for name in names.split("."))
    if not equals or not all(where):
        raise PlanError(f"--set {change}: a change is written FIELD=VALUE, as in cohort.select=20")
    table = data
    for name in where[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise PlanError(f"--set {change}: {name} is not a section of the plan")
        table = inner
    found = _value(value.strip())
    table[where[-1]] = found if isinstance(found, str) or not _is_text(model, where) else value.strip()
    return where


def _value(text: str) -> Any:
    """A TOML value; a text that is not one stands for itself, so that a shell needs no quotes inside quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def fields_of(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """The names of the fields of a section; none where there is no such section."""
    section: type[BaseModel] | None = model
    for name in where:
        section = section_of(section, str(name)) if section is not None else None
    return list(section.model_fields) if section is not None else []


def elsewhere(model: type[BaseModel], name: str) -> list[str]:
    """The fields of this name in any section: ``finish.rounds``."""
    return [f"{section}.{name}" for section in model.model_fields if name in fields_of(model, (section,))]


def section_of(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """The model of a field that is a section, also where the section may be left out; None for any other field."""
    kinds = _kinds(model, field)
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _is_text(model: type[BaseModel], where: Where) -> bool:
    """Whether this field takes texts and nothing else, but for being left out."""
    section: type[BaseModel] | None = model
    for name in where[:-1]:
        section = section_of(section, name) if section is not None else None
    return section is not None and str in (kinds := _kinds(section, where[-1])) and set(kinds) <= {str, NoneType}


def _kinds(model: type[BaseModel], field: str) -> tuple[Any, ...]:
    """The types that a field takes; none where there is no such field."""
    kind = model.model_fields[field].annotation if field in model.model_fields else None
    kinds = get_args(kind) or (kind,)
    return tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds)
