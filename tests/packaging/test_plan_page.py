"""The reference of plans says what the code says."""

from __future__ import annotations

from client_sdk.protocol.devices import TaskStrategy
from scripts.plan_page import PAGE, SECTIONS, page, tables_in


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.plan_page"


def test_every_field_has_its_range_and_its_story() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    within = {kind for model in SECTIONS.values() for kind in tables_in(model).values()} - {TaskStrategy}
    fields = sum(len(model.model_fields) for model in (*SECTIONS.values(), *within))
    assert len(rows) == fields - 1, "but for task.strategy, which no plan says"
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row
