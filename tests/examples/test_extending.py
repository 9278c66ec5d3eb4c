"""docs/extending.md does what it says: its package is installed as it stands there, and used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.data import DataSourceError, entry_of, load_data
from client_sdk.learners import Catalogue
from client_sdk.tensors import from_bytes
from coordinator.engine.plan_file import PlanError
from simulation import History, simulate
from tests.examples.page_package import PAGE, ROOT, blocks, installed_in
from tests.rotating import on_day


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's package, as an installer would leave it."""
    installed_in(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("clinic", None)
    codecs._of_package.cache_clear()


def run(folder: Path, shifts: Sequence[int] = (0, 1, 2), engine: Any = "serial", **changes: Any) -> History:
    _, plan = blocks("toml")
    asked = tomllib.loads(plan)
    asked = {
        name: {**part, **changes.get(name, {})} if isinstance(part, dict) else part for name, part in asked.items()
    }
    learner = Catalogue().load("clinic:mean")
    data = load_data("clinic:wards@1.0")
    clients = {f"c{at}": type(data.train)(data.train.x + shift, data.train.y) for at, shift in enumerate(shifts)}
    init = {"w": np.zeros(2, np.float32)}
    return simulate(asked, learner, clients, init=init, progress=False, folder=folder, engine=engine)


def test_the_packages_rule_optimizer_codec_learner_and_data_make_a_model(package: Path) -> None:
    """A quarter below the larger extreme of 0.1 * (mean - w): 0.65 and 0.75, then 0.6175 and 0.7125; and half of each
    round's step is the last one's. The codec has eight bits of mantissa."""
    history = run(package / "data")
    line = history._store.checkpoints(history.run)
    assert len({row.named_tensors.get("server-optimizer") for row in line}) == 3
    model = from_bytes(history._blobs.open(line[-1].digest).read())
    np.testing.assert_allclose(model["w"], [0.325 + 0.63375, 0.375 + 0.73125], rtol=0.01)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_whole_rule_of_the_package_leaves_out_whom_it_should(package: Path, engine: Any) -> None:
    """Of seven clients two hold data that is far off. The model follows the mean of the others,
    also where a server optimizer steps, and the round is the same in another process."""
    modest = {"rule": "clinic:modest", "rule_version": "1", "rule_parameters": {"times": 2}}
    history = run(
        package / "data",
        shifts=(0, 1, 2, 3, 4, 5000, -5000),
        engine=engine,
        task={"codec": "float32@1"},
        cohort={"select": 7, "goal": 7, "quorum": 1.0},
        aggregation=modest,
        finish={"rounds": 1},
    )
    model = from_bytes(history._blobs.open(history._store.checkpoints(history.run)[-1].digest).read())
    np.testing.assert_allclose(model["w"], [0.05 * 7, 0.05 * 8], rtol=1e-6)  # half of 0.1 * mean, by the optimizer


def test_the_packages_selection_lets_devices_rest(package: Path) -> None:
    rested = {"choose": "clinic:rested", "choose_version": "1", "pool": 6}
    history = run(package / "data", shifts=range(6), cohort=rested, finish={"rounds": 2})
    first, second = ({row.device for row in history._store.contributions(history.run, number)} for number in (1, 2))
    assert (len(first), first | second) == (3, {f"c{number}" for number in range(6)})


@pytest.mark.parametrize("way", ["masked", "quantized"])
def test_a_strategy_that_is_linear_in_the_sum_runs_under_masks_as_an_object_of_a_notebook(
    package: Path, way: Any
) -> None:
    patient = importlib.import_module("clinic").Patient()
    size = {"select": 12, "goal": 12, "quorum": 1.0}
    asked: dict[str, Any] = {
        "name": "masked",
        "task": {"epochs": 1, "learning_rate": 0.5},
        "cohort": size,
        "aggregation": {"weighting": "equal", "partial": "refuse"},
        "finish": {"rounds": 4},
    }
    clients = {f"c{at}": load_data("clinic:wards").train for at in range(12)}
    learner, init = Catalogue().load("clinic:mean"), {"w": np.zeros(2, np.float32)}
    plain = simulate(asked, learner, clients, init=init, strategy=patient, progress=False)
    secure = {"max_norm": 100.0, "max_abs": 8.0, "minimum_cohort": 4}
    given = {"init": init, "strategy": patient, "secure": way, "progress": False}
    masked = simulate({**asked, "secure": secure}, learner, clients, **given)  # type: ignore[arg-type]
    x, last, mean = np.zeros(2), np.zeros(2), np.array([5.0, 6.0])
    for number in range(1, 5):
        step = 0.5 * min(1, number / 4) * (mean - x) + last / 2
        x, last = x + step, step
    np.testing.assert_allclose(plain.checkpoint()["w"], x, rtol=1e-6)
    np.testing.assert_allclose(masked.checkpoint()["w"], x, atol=2e-3)
    assert masked._store.checkpoints(masked.run)[-1].named_tensors.keys() == {"last-step"}


@pytest.fixture(scope="module")
def without_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel holds, in a folder of its own: no tests are there."""
    folder = tmp_path_factory.mktemp("installed")
    for name in ("quorate", "client_sdk", "coordinator", "simulation", "dashboards"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def of_the_package(package: Path, installed: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(package),
            "test_clinic.py",
            *options,
        ],
        cwd=package,
        env={"PYTHONPATH": f"{package}:{installed}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@on_day(0, of=2)
def test_the_packages_own_tests_pass(package: Path, without_checkout: Path) -> None:
    done = of_the_package(package, without_checkout)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


@pytest.mark.slow
def test_a_package_that_breaks_its_contract_reads_the_values(package: Path, without_checkout: Path) -> None:
    code = (package / "clinic.py").read_text()
    (package / "clinic.py").write_text(code.replace('name = "clinic:coarse@1"', 'name = "coarse"'))
    done = of_the_package(package, without_checkout, "-k", "its_name_has_a_version")
    assert done.returncode == 1
    assert "AssertionError: assert None" in done.stdout, done.stdout


def test_another_version_is_refused_in_a_sentence(package: Path) -> None:
    with pytest.raises(PlanError, match="the aggregation rule clinic:middle is installed in version 2, not 3"):
        run(package / "data", aggregation={"rule_version": "3"})
    with pytest.raises(ValueError, match=r"the codec 'clinic:coarse@2', in version 1\.0, has clinic:coarse@1"):
        run(package / "data", task={"codec": "clinic:coarse@2"})
    with pytest.raises(DataSourceError, match=r"The data clinic:wards is installed in version 1.0, not 2."):
        load_data("clinic:wards@2")
    assert entry_of("wards").name == "clinic:wards"
    assert Catalogue().versions["clinic:mean"] == "1.0"


def test_without_the_package_every_name_is_refused() -> None:
    with pytest.raises(DataSourceError, match="There is no data 'clinic:wards'"):
        load_data("clinic:wards")
    with pytest.raises(codecs.UnknownCodec, match="the codec 'clinic:coarse@1' is not installed here"):
        codecs.get("clinic:coarse@1")


def defined(folder: str) -> Iterator[str]:
    """The names of classes, functions, constants, fields and imports under a folder."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case (
                    ast.ClassDef(name=name)
                    | ast.FunctionDef(name=name)
                    | ast.Name(id=name, ctx=ast.Store())
                    | ast.alias(name=name)
                ):
                    yield name
                case _:
                    pass


@on_day(1, of=2)
def test_what_the_page_names_is_there() -> None:
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    names = set(re.findall(r"`(\w+)`", text))
    there = {
        name for folder in ("quorate", "client_sdk", "coordinator", "simulation", "tests") for name in defined(folder)
    }
    assert {name for name in names if name.lower() != name or "_" in name} - there == set()
    for path in re.findall(r"`((?:client_sdk|coordinator|simulation|tests)/[\w/.]+?)(?:\*\.py)?`", PAGE):
        assert (ROOT / path).exists() or list(ROOT.glob(path + "*")), path
