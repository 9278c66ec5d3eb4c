"""Counts all schedules that were searched, in ``docs/soak.md``; ``make soak`` adds to it.

The page has a total at the top, and a table with a row for each search.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.explorer.search import SearchReport

_HEAD = """# Schedules searched so far

**{total} schedules** of faults, {broken} of them with a broken invariant. `make soak` adds a row; each began at a seed
of its own, and `python -m tests.explorer --seed N --trace` repeats any of them (with the code of that day).
A broken one was a bug of the product, which was fixed and has a test, or a false alarm of a check, which was corrected.

| day | schedules | broken | seconds | crashes | commits | first seed |
|---|---|---|---|---|---|---|
"""
_ROW = re.compile(r"^\| (\d{4}-\d\d-\d\d) \| (\d+) \| (\d+) \|")


def add_to_count(page: Path, report: SearchReport, *, first: int, day: str) -> int:
    """Adds a search to the page, which is made where there is none. Returns the new total of schedules."""
    lines = page.read_text("utf-8").splitlines() if page.exists() else []
    rows = [line for line in lines if _ROW.match(line)]
    tally = report.tally
    cells = (day, tally.schedules, len(report.findings), round(report.seconds), tally.crashes, tally.commits, first)
    rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    counts = [(int(found[2]), int(found[3])) for row in rows if (found := _ROW.match(row))]
    total, broken = sum(count for count, _ in counts), sum(count for _, count in counts)
    page.write_text(_HEAD.format(total=total, broken=broken) + "\n".join(rows) + "\n", "utf-8")
    return total
