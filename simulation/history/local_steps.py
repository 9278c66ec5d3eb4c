"""How the clients of a simulated run made their local steps, as the run's origin says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAID = "; its local steps are "


@dataclass(frozen=True, slots=True)
class Steps:
    """A way to make local steps."""

    kind: str = "exact"
    lanes: int = 1
    reason: str = ""
    """Why they are *exact* where something else was asked for, as a part of a sentence."""

    @property
    def name(self) -> str:
        """As ``simulate(steps=)`` has it: *stacked* with the clients of a stack."""
        return f"{self.kind}-{self.lanes}" if self.kind == "stacked" else self.kind

    @property
    def said(self) -> str:
        """What the origin of a run says of them."""
        if self.kind == "exact" and not self.reason:
            return ""
        return f"{_SAID}{self.name}" + (f": {self.reason.replace(';', ',')[:120]}" if self.reason else "")

    @classmethod
    def of(cls, origin: str) -> Steps:
        """Those of a run with this origin."""
        found = re.search(rf"{_SAID}([a-z_]+)(?:-(\d+))?(?:: ([^;]*))?", origin)
        return cls() if found is None else cls(found[1], int(found[2] or 1), found[3] or "")


EXACT = Steps()
