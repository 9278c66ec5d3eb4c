"""Draws the rooms and who imports whom, from the imports of the code, into ``docs/architecture.md``.

::

    python -m scripts.room_diagram           # writes the page anew where a diagram is out of date

A room is a folder of a package, or a module that stands beside those folders. An arrow is drawn from a room to a room
that it imports. Where a way over other rooms says the same, the direct arrow is left out (transitive reduction).
Imports for type checkers count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("client_sdk", "coordinator", "simulation")
_MARKED = re.compile(r"(<!-- rooms (\w+): [^>]*-->\n).*?(<!-- end of rooms -->)", re.DOTALL)

Rooms = Mapping[str, frozenset[str]]
"""Room -> the rooms that it imports, by dotted name."""


def rooms() -> Rooms:
    """Every room of the packages, from the code as it stands in this checkout."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        room = _room_of(module)
        imported = {_room_of(name) for name in graph.find_modules_directly_imported_by(module)}
        found.setdefault(room, set()).update(imported - {room})
    return {room: frozenset(imported - set(PACKAGES)) for room, imported in found.items() if room not in PACKAGES}


def _room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def reduced(graph: Rooms) -> dict[str, list[str]]:
    """The fewest arrows with the same ways. Raises ValueError where rooms import each other in a circle."""
    reach: dict[str, set[str]] = {}

    def below(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise ValueError(f"rooms import each other in a circle: {' -> '.join((*path[path.index(room) :], room))}")
        if room not in reach:
            reach[room] = set().union(*({near} | below(near, (*path, room)) for near in graph.get(room, ())))
        return reach[room]

    for room in sorted(graph):
        below(room, ())
    return {
        room: sorted(near for near in graph[room] if not any(near in reach[other] for other in graph[room]))
        for room in sorted(graph)
    }


def diagram(package: str, graph: Rooms) -> str:
    """One package's rooms as a Mermaid flowchart; rooms of other packages stand outside its box."""
    arrows = {room: near for room, near in reduced(graph).items() if room.startswith(f"{package}.")}
    lines = ["```mermaid", "flowchart TB", f"    subgraph {package}"]
    lines += [f'        {_id(room)}["{room.split(".")[1]}"]' for room in arrows]
    lines += ["    end"]
    for room, near in arrows.items():
        own = [name for name in near if name.startswith(f"{package}.")]
        others = sorted({name.split(".")[0] for name in graph[room] if not name.startswith(f"{package}.")})
        lines += [f"    {_id(room)} --> {_id(name)}" for name in own]
        if not any(name in arrows for name in own):
            lines += [f"    {_id(room)} -.-> {name}([{name}])" for name in others]
    return "\n".join([*lines, "```"]) + "\n"


def _id(room: str) -> str:
    return room.replace(".", "__")


def page(text: str) -> str:
    """The page with its diagrams made anew."""
    graph = rooms()
    return _MARKED.sub(lambda found: found[1] + diagram(found[2], graph) + found[3], text)


def main() -> None:
    before = PAGE.read_text()
    after = page(before)
    if after != before:
        PAGE.write_text(after)
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} has been brought up to date.\n")


if __name__ == "__main__":
    main()
