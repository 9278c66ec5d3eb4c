"""What the extras of the installed package ask for, by its metadata, and what of that is not installed."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

PACKAGE = "quorate"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")


def extras() -> list[str]:
    """The extras, without that of developers. PackageNotFoundError where the package runs from a folder."""
    return sorted({extra for _, _, _, extra in _requirements() if extra} - {"dev"})


def included(extra: str) -> set[str]:
    """The extra and those that it brings."""
    inner = {part for name, parts, _, of in _requirements() if of == extra and name == PACKAGE for part in parts}
    return {extra}.union(*map(included, inner))


def brings(extra: str, name: str) -> bool:
    """Whether the distribution comes with the extra."""
    return any(_normal(one) == _normal(name) for one, _, _, of in _requirements() if of in included(extra))


def lacking(extra: str = "") -> dict[str, str]:
    """Distribution -> why it will not do, of those that come with the extra; of a bare install without one."""
    wanted = included(extra) if extra else {""}
    found = {name: _unfit(name, bounds) for name, _, bounds, of in _requirements() if of in wanted and name != PACKAGE}
    return {name: why for name, why in found.items() if why}


@cache
def _requirements() -> list[tuple[str, list[str], str, str]]:
    """(distribution, its extras, its bounds, the extra of ours that asks for it or an empty text)."""
    return _parsed(requires(PACKAGE) or [])


def _parsed(lines: list[str]) -> list[tuple[str, list[str], str, str]]:
    found = [match for line in lines if (match := _REQUIREMENT.match(line))]
    return [(one[1], (one[2] or "").split(","), one[3], one[4] or "") for one in found]


def _unfit(name: str, bounds: str) -> str:
    """Why the distribution will not do; empty where it does."""
    try:
        have = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    for bound in filter(None, re.split(r"[,\s()]+", bounds)):
        one, other = _release(have), _release(bound.lstrip("<>=!~"))
        if (bound.startswith(">=") and one < other) or (bound.startswith("<") and one >= other):
            return f"{name} {have} is installed, and {bound} is needed"
    return ""


def _release(text: str) -> list[int]:
    """``2.13.0+cpu`` as [2, 13], so that 2.13 and 2.13.0 are one."""
    found = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
