"""The registry of mutants. Each is a seeded bug: a small patch of the product, and the invariants that it breaks.

``BuggyProduct`` is the product with one of them, for the explorer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from tests.explorer.plans import KEEPS
from tests.explorer.search import Product
from tests.explorer.shape import Shape, flipped, made_private, made_secure


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    breaks: tuple[str, ...]
    """Invariants, by name, of which one must be found broken."""
    description: str
    patches: Callable[[], list[tuple[Any, str, Any]]]
    """Makes the patches when the mutant is switched on: (module or class, name, replacement)."""
    focus: tuple[str, str] | None = None
    """(fault, phase) on which schedules focus to show the bug, where few other schedules show it."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Other fields of the shape that show it, such as more liars. ``plan`` has sections that replace the shape's;
    ``secure``: the rounds are secure; ``groups``: of so many groups; ``private``: they have noise; ``flips``: bits flip
    in files."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """The product has the bug while the block runs. Single-threaded, as the explorer is."""
        with ExitStack() as stack:
            for owner, name, instead in self.patches():
                stack.enter_context(patch.object(owner, name, instead))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str, *breaks: str, focus: tuple[str, str] | None = None, **shape: Any
) -> Callable[[Callable[[], list[tuple[Any, str, Any]]]], None]:
    """Registers a function that returns the patches; its docstring is the mutant's description."""

    def register(patches: Callable[[], list[tuple[Any, str, Any]]]) -> None:
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, breaks, " ".join((patches.__doc__ or "").split()), patches, focus, shape)

    return register


@dataclass(frozen=True, slots=True)
class BuggyProduct(Product):
    """The product with the bug of this name. Every second schedule focuses on the fault and phase that show it."""

    name: str

    @property
    def mutant(self) -> Mutant:
        import tests.explorer.mutants  # noqa: F401  (each file of it registers its mutants; a worker process knows none yet)

        return MUTANTS[self.name]

    def shape(self, seed: int) -> Shape:
        shape, mutant = Shape.of(seed), self.mutant
        if seed % 2 or (mutant.focus is None and not mutant.shape):
            return shape
        kinds = mutant.shape.keys()
        if "buffered" in shape.plan and {"plan", "secure", "private"} & kinds:
            return shape  # these sections do not go together
        if shape.secure and "http" in kinds:
            return shape  # secure schedules go without HTTP
        if shape.private and "private" not in kinds and {"plan", "secure"} & kinds:
            return shape  # nor do most others with noise
        focus = mutant.focus or ("", "")
        more = {"short_updates": False, **mutant.shape}
        groups = more.pop("groups", 1)
        if more.pop("secure", False):
            shape = made_secure(shape, groups=groups)
        if more.pop("flips", False):
            shape = flipped(shape)
        if more.pop("private", False) and not (shape := made_private(shape)).private:
            return shape  # of a datacenter, or buffered
        if more.get("two_runs"):
            more["set_back"] = False  # as drawn, a second run is not there again
        plan = {**shape.plan, **more.pop("plan", {})}
        if plan.get("strategy") == KEEPS and plan.get("datacenter"):  # a datacenter has no half of it
            del plan["strategy"]
        rates = more.pop("rates", shape.rates or {focus[0]: 0.0})
        return replace(shape, focus=focus, rates=rates, plan=plan, **more)

    def running(self) -> AbstractContextManager[None]:
        return self.mutant.on()

    def again(self, seed: int) -> str:
        return f"python -m tests.explorer.mutants {self.name} --seed {seed} --trace"
