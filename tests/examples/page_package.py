"""The package of docs/extending.md, as an installer would leave it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The page's blocks of code in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def installed_in(folder: Path) -> None:
    """``clinic``, with its tests, in a folder for ``sys.path``."""
    project, _ = blocks("toml")
    *modules, tests = blocks("python")
    declared: dict[str, Any] = tomllib.loads(project)["project"]
    (folder / "clinic.py").write_text("\n\n".join(modules))
    (folder / "test_clinic.py").write_text("import numpy as np\n" + tests)
    info = folder / f"{declared['name']}-{declared['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n")
    lines = [
        line
        for group, entries in declared["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
