"""Makes docs/security-tests.md: each promise of SECURITY.md with the tests that hold it.

::

    python -m scripts.security_tests

The table is ``scripts/security_tests.toml``: the short name of a promise, and names of tests or files of tests.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANNEX = ROOT / "docs" / "security-tests.md"


def tests_of_promises() -> dict[str, list[str]]:
    """Names of tests, or paths of files of tests, by a promise's short name (``N1``)."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "scripts" / "security_tests.toml").read_text(encoding="utf-8"))
    return found


def sentences() -> dict[str, str]:
    """The first sentence of each promise in SECURITY.md, without links, by the promise's short name."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    found = re.findall(r"^- \*\*([A-Z]\d+)\*\* (.*?)(?=\n- |\n\n|\n#|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    plain = {name: re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(said.split())) for name, said in found}
    return {name: re.split(r"(?<=[.:]) (?=[A-Z])", said, maxsplit=1)[0] for name, said in plain.items()}


def annex() -> str:
    """The page, as Markdown."""
    said = sentences()
    lines = [
        "# The tests of each promise",
        "",
        "`python -m scripts.security_tests` makes this page of `scripts/security_tests.toml` and",
        "[SECURITY.md](../SECURITY.md).",
    ]
    for name, tests in tests_of_promises().items():
        lines += ["", f"**{name}** {said[name]}", "", *(f"- `{test}`" for test in tests)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    ANNEX.write_text(annex(), encoding="utf-8")
