"""Tests that hold for the compiled loops and for NumPy alike run with each of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_sdk.tensors import compiled
from scripts.compiling import ROOT, SOURCE, CannotCompile
from scripts.compiling import compiled as compile_in
from tests.conftest import lacking


@pytest.fixture(scope="session")
def loops(tmp_path_factory: pytest.TempPathFactory) -> compiled.Loops:
    """Compiled of this checkout's source."""
    return loops_in(tmp_path_factory.mktemp("compiled"))


def loops_in(root: Path) -> compiled.Loops:
    """Compiled in this folder."""
    (root / SOURCE).parent.mkdir(parents=True)
    shutil.copyfile(ROOT / SOURCE, root / SOURCE)
    try:
        return compiled.Loops(compile_in(root))
    except CannotCompile as error:
        lacking(f"no C compiler here: {error}")


@pytest.fixture(scope="module", params=["compiled", "NumPy"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test does is done by compiled loops, then by NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = request.getfixturevalue("loops") if request.param == "compiled" else None
        patch.setattr(compiled, "loops", chosen)
        yield
