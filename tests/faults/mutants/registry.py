"""What a mutant is: a seeded bug, kept as a small patch outside the product, and the invariants that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    breaks: tuple[str, ...]
    """Invariants, by name, of which one must be found broken."""
    story: str
    patches: Callable[[], list[tuple[Any, str, Any]]]
    """(module or class, name, what stands there instead), made when it is switched on."""
    focus: tuple[str, str] | None = None
    """(fault, phase) of the weather that shows it, where it shows in few schedules."""
    shape: dict[str, Any] = field(default_factory=dict)
    """What else of the shape shows it: more liars, say. ``plan`` holds sections that are laid over the shape's."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """The product has the bug for as long as the block runs. Single-threaded, as the explorer is."""
        with ExitStack() as stack:
            for owner, name, instead in self.patches():
                stack.enter_context(patch.object(owner, name, instead))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str, *breaks: str, focus: tuple[str, str] | None = None, **shape: Any
) -> Callable[[Callable[[], list[tuple[Any, str, Any]]]], None]:
    """Registers a function that returns the patches; its docstring is the mutant's story."""

    def register(patches: Callable[[], list[tuple[Any, str, Any]]]) -> None:
        MUTANTS[name] = Mutant(name, breaks, " ".join((patches.__doc__ or "").split()), patches, focus, shape)

    return register
