"""The notebook runs from top to bottom, and what is committed in it was really made by running it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from simulation.datasets import DataUnavailable, load
from tests.rotating import on_day

NOTEBOOK = Path(__file__).parents[2] / "examples" / "simulate.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def streams(cell: Any) -> str:
    """What a cell printed."""
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")


def test_its_outputs_were_made_by_running_it_once_from_the_top() -> None:
    nbformat.validate(read())
    code = [cell for cell in read().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert shown >= {"text/html", "image/png"}
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    printed = "".join(map(streams, code))
    assert "20 of 20 rounds committed" in printed
    assert "the same bits: True" in printed


def test_it_names_nothing_of_the_machine_it_was_run_on() -> None:
    """No absolute path, in what is written and in what was printed or shown; pictures are letters without a meaning."""
    texts = [cell.source for cell in read().cells]
    for cell in read().cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            texts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    for text in texts:
        found = re.sub(r"data:image/[^\"']*", "", text)
        assert not re.search(r"(?<![\w/.:<~])/[a-z][\w.-]*/[\w.-]", found), found[:2000]
        assert "site-packages" not in found


@on_day(1, of=2)
@pytest.mark.service
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        load("mnist")
    except DataUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setenv("ROUNDS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    notebook = read()
    NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = "".join(streams(cell) for cell in notebook.cells)
    assert "2 of 2 rounds committed" in printed
    assert "the same bits: True" in printed
    assert "480 examples, 24 steps" in printed
