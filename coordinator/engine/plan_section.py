"""What every section of a plan is: frozen fields, and its conflicts with the rest of the plan.

A section is one file: its fields with their ranges and docstrings, which the page of plans and the form's schema are
made from, and ``against``. ``Plan`` has it as a field; where a plan does not name it, its digest does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan


class Section(BaseModel):
    """A table of the plan's file. An unknown field is an error: it was meant to do something."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def against(self, plan: Plan) -> Iterator[str]:
        """The conflicts of this section with the others of the plan: a sentence each, which names the fields."""
        yield from ()
