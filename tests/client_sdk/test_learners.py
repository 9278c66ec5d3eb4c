"""Finding learners and data, and setting them to work; every way in which they cannot be had is a sentence."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_sdk.data import Data, DataSourceError, Examples, Shard, count, held_out_part, load_data, training_part
from client_sdk.learners import Catalogue, LearnerError, LearnerTrainer, evaluate, unknown_here
from client_sdk.protocol.devices import Assignment, CheckpointRef, Score, Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update

MODEL: Tensors = {"w": np.zeros(2, np.float32)}


def train(model: Tensors, data: Any, task: Task) -> Update:
    return Update({"w": model["w"] + np.float32(1)}, examples=len(data[0]))


@dataclass
class Recorder:
    """A learner object that remembers how it was called."""

    version: str = "3.1"
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        self.calls.append((data, others))
        return Update({"w": model["w"]}, examples=5)


def installed(name: str, value: str, package: str = "clinic", version: str = "2.4.1") -> EntryPoint:
    """An entry point as an installed distribution has it."""
    entry = EntryPoint(name, value, "quorate.learners")
    vars(entry).update(dist=SimpleNamespace(name=package, version=version))
    return entry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with learners of every kind, importable by the name that is given."""
    name = f"learners_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent("""
        __version__ = "0.9"

        def train(model, data, task): ...

        class Kept:
            version = "1.7"
            def train(self, model, data, task, **others): ...

        kept = Kept()
        number = 3

        def make(): return Kept()
        def make_nothing(): return 3
        def two(model, data): ...

        class inner:
            deep = kept
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_installed_learners_are_named_after_package_and_entry_and_not_imported(package: str) -> None:
    catalogue = Catalogue(installed=[installed("risk", f"{package}:train"), installed("x", f"{package}:kept", "other")])
    assert catalogue.versions == {"clinic:risk": "2.4.1", "other:x": "2.4.1"}
    assert package not in sys.modules
    assert callable(catalogue.load("clinic:risk"))
    assert package in sys.modules


def test_quorates_own_learner_is_found_without_torch_being_imported() -> None:
    import subprocess

    code = (
        "import sys; from client_sdk.learners import Catalogue; versions = Catalogue().versions;"
        "assert 'quorate:mnist-mlp' in versions, versions; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_owners_own_learner_has_its_own_version_or_its_modules(package: str) -> None:
    catalogue = Catalogue(
        [f"{package}:train", f"{package}:kept", f"{package}:make", f"{package}:inner.deep"], installed=()
    )
    assert catalogue.versions == {
        f"{package}:train": "0.9",
        f"{package}:kept": "1.7",
        f"{package}:make": "1.7",
        f"{package}:inner.deep": "1.7",
    }


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nonsense", "does not name a learner; write module:attribute"),
        ("no_such_module_here:train", "needs the module no_such_module_here, which is not installed."),
        ("{}:missing", "has no missing."),
        ("{}:number", "is no learner: it has no train, and it is no function"),
        ("{}:two", "as a function it must take (model, data, task)."),
        ("{}:make_nothing", "gave a int, which has no train."),
    ],
)
def test_an_explicit_learner_that_cannot_be_used_is_an_error_at_once(package: str, name: str, sentence: str) -> None:
    with pytest.raises(LearnerError) as caught:
        Catalogue([name.format(package)], installed=())
    assert sentence in str(caught.value)


def test_an_installed_learner_that_does_not_load_is_withdrawn_from_the_offer(tmp_path: Path) -> None:
    catalogue = Catalogue(installed=[installed("a", "torch_that_is_not_there.nn:a"), installed("b", "also_not:b")])
    with pytest.raises(LearnerError, match="needs the module torch_that_is_not_there"):
        catalogue.load("clinic:a")
    assert list(catalogue.versions) == ["clinic:b"]
    with pytest.raises(LearnerError, match=r"has not got the learner clinic:a; it may train: clinic:b 2\.4\.1\."):
        catalogue.load("clinic:a")


def test_who_names_a_learner_means_that_one_alone(package: str) -> None:
    here = [installed("risk", f"{package}:train"), installed("x", f"{package}:kept", "other")]
    own = f"{package}:make"
    assert Catalogue({"clinic:mine": train}, installed=here).usable == {"clinic:mine": "0"}
    assert Catalogue({}, installed=here).usable == {}
    assert Catalogue([own], installed=here).usable == {own: "1.7"}
    assert Catalogue(["clinic:risk"], installed=here).usable == {"clinic:risk": "2.4.1"}
    for wrong in ("clinic:Rsk", "clinic:RISK"):
        with pytest.raises(LearnerError, match="did you mean clinic:risk"):
            Catalogue([wrong], installed=here)
    with pytest.raises(LearnerError, match=r"has no kpt; did you mean .*kept"):
        Catalogue([f"{package}:kpt"], installed=here)
    assert Catalogue("clinic:risk", installed=here).usable == {"clinic:risk": "2.4.1"}, "a name is not its letters"
    assert Catalogue({}, allow="other:x", installed=here).usable.keys() == {"other:x"}
    with pytest.raises(LearnerError, match="3 is not a learner's name"):
        Catalogue({3: train}, installed=here)  # type: ignore[dict-item]
    with pytest.raises(LearnerError, match="has not got the learner other:x; it may train: clinic:mine 0"):
        Catalogue({"clinic:mine": train}, installed=here).load("other:x")
    assert set(Catalogue({"clinic:mine": train}, allow="*", installed=here).usable) == {
        "clinic:mine",
        "clinic:risk",
        "other:x",
    }
    assert set(Catalogue([own], allow=["other:x"], installed=here).usable) == {own, "other:x"}
    assert set(Catalogue(allow=["other:x"], installed=here).usable) == {"other:x"}
    assert not Catalogue(allow=[], installed=here).usable, "an app's list of what it allows may come out empty"
    assert set(Catalogue(installed=here).usable) == {"clinic:risk", "other:x"}
    with pytest.raises(LearnerError, match=r"There is no learner clinic:rsk here to allow; did you mean clinic:risk\?"):
        Catalogue(allow=["clinic:rsk"], installed=here)


def test_only_what_can_be_imported_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_here.py").write_text("def make(): raise ValueError('no weights')\n1 / 0\n")
    (tmp_path / "makes_none.py").write_text("def make(): raise ValueError('no weights')\n")
    monkeypatch.syspath_prepend(tmp_path)
    here = [
        installed("good", f"{__name__}:train"),
        installed("absent", "torch_that_is_not_there.nn:a"),
        installed("missing", f"{__name__}:nothing_of_this_name"),
        installed("breaks", "breaks_here:make"),
        installed("none", "makes_none:make"),
    ]
    trainer = LearnerTrainer(Catalogue(installed=here), (np.zeros((7, 2)), np.zeros(7)))
    assert trainer.learners == {"clinic:good": "2.4.1"}
    with pytest.raises(LearnerError, match="cannot be imported: ZeroDivisionError"):
        Catalogue(["clinic:breaks"], installed=here)


def test_a_learner_that_does_not_exist_is_refused_and_one_that_cannot_be_known_is_said(package: str) -> None:
    assert unknown_here("quorate:mnist-mlp") == ""
    assert unknown_here(f"{package}:kept") == ""
    with pytest.raises(LearnerError, match=r"There is no learner quorate:mnist-mpl; did you mean quorate:mnist-mlp"):
        unknown_here("quorate:mnist-mpl")
    with pytest.raises(LearnerError, match="has no nothing"):
        unknown_here(f"{package}:nothing")
    assert "is not known: its package is not installed here; did you mean quorate:mnist-mlp" in unknown_here(
        "qorate:mnist-mlp"
    )
    assert unknown_here("clinic-of-others:risk").endswith("its package is not installed here.")


def test_a_missing_torch_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "needs_torch_here.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LearnerError, match=r"pip install 'quorate\[torch\]'"):
        Catalogue(installed=[installed("a", "needs_torch_here:a")]).load("clinic:a")


def test_a_name_that_the_protocol_does_not_know_is_refused() -> None:
    with pytest.raises(LearnerError, match="looks like package:name"):
        Catalogue({"no colon": train}, installed=())


# ------------------------------------------------------------ training


def assignment(learner: str) -> Assignment:
    return Assignment(
        run="run-1",
        round=4,
        device="d7",
        checkpoint=CheckpointRef(version=0, digest="00" * 32, bytes=1),
        plan_digest="ab" * 32,
        task=Task(learner=learner),
        report_within_s=60,
        max_update_bytes=100,
    )


def test_a_plain_function_gets_model_data_and_task() -> None:
    data = (np.zeros((7, 2)), np.zeros(7))
    trainer = LearnerTrainer(Catalogue({"a:plain": train}, installed=()), data)
    assert trainer.examples == 7
    assert trainer.learners == {"a:plain": "0"}
    update = trainer.train(assignment("a:plain"), MODEL, "d7", lambda: 9.0)
    np.testing.assert_array_equal(update.delta["w"], [1, 1])
    assert update.examples == 7


def test_a_learner_gets_its_part_of_the_data_the_seeds_and_the_deadline() -> None:
    recorder = Recorder()
    data = Data(Examples(np.zeros((5, 2)), np.zeros(5)), Examples(np.ones((2, 2)), np.ones(2)))
    trainer = LearnerTrainer(Catalogue({"a:b": recorder}, installed=()), data)
    assert trainer.learners == {"a:b": "3.1"}
    trainer.train(assignment("a:b"), MODEL, "d7", lambda: 9.0)
    ((given, others),) = recorder.calls
    for mine, whole in ((given, data.train), (others.pop("held_out"), data.test)):
        assert mine.x.tolist() == whole.x.tolist()
        assert not np.shares_memory(mine.x, whole.x)
    assert others.pop("deadline")() == 9.0
    assert others == {"device": "d7", "round": 4}


def test_scoring_needs_a_learner_that_can() -> None:
    with pytest.raises(LearnerError, match="a:b cannot score a model"):
        evaluate(Recorder(), "a:b", MODEL, None)
    good = SimpleNamespace(evaluate=lambda model, data: Score(examples=3, metrics={"loss": 0.5}))
    assert evaluate(good, "a:b", MODEL, None).examples == 3
    with pytest.raises(LearnerError, match="gave a float, not a Score"):
        evaluate(SimpleNamespace(evaluate=lambda model, data: 0.5), "a:b", MODEL, None)


# ------------------------------------------------------------ data


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "mine.npz", **arrays)
    return str(path / "mine.npz")


def test_a_file_of_arrays(tmp_path: Path) -> None:
    data = load_data(npz(tmp_path, x=np.arange(10), y=np.arange(10) * 2))
    assert len(data.train) == 10
    assert data.test is None
    data = load_data(npz(tmp_path, x=np.arange(10), y=np.arange(10), x_test=np.arange(3), y_test=np.arange(3)))
    assert data.test is not None
    assert len(data.test) == 3


def test_shares_are_disjoint_and_make_the_whole(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.arange(10), y=np.arange(10), x_test=np.arange(2), y_test=np.arange(2))
    shares = [load_data(path, Shard.parse(f"{index}/3")) for index in (1, 2, 3)]
    assert [len(share.train) for share in shares] == [4, 3, 3]
    assert sorted(int(x) for share in shares for x in share.train.x) == list(range(10))
    assert shares[2].test is None
    np.testing.assert_array_equal(shares[1].train.x, shares[1].train.y)


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "a/b", "1/0", "-1/3", "1/3/5"])
def test_a_share_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="3/400 means the third of 400"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros(3)}, "must hold the arrays x and y; it holds x."),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "as many inputs x as targets y"),
        ({"x": np.zeros(3), "y": np.float64(1)}, "as many inputs x as targets y"),
        ({"x": np.zeros(3), "y": np.zeros(3), "x_test": np.zeros(1)}, "x_test and no y_test"),
        ({"x": np.zeros(0), "y": np.zeros(0)}, "has no examples"),
        ({"x": np.array([{}]), "y": np.zeros(1)}, "cannot be read as .npz"),
    ],
)
def test_arrays_that_do_not_make_data_are_an_error(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataSourceError) as caught:
        load_data(npz(tmp_path, **arrays))
    assert sentence in str(caught.value)


def test_files_that_are_none_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match="There is no file"):
        load_data(str(tmp_path / "missing.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataSourceError, match=r"is not an \.npz file"):
        load_data(str(tmp_path / "text.npz"))
    with pytest.raises(DataSourceError, match=r"There is no data 'mnits'; there are .*mnist"):
        load_data("mnits")


def test_an_empty_share_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match=r"The share 5/5 of .* has no examples"):
        load_data(npz(tmp_path, x=np.zeros(3), y=np.zeros(3)), Shard(5, 5))


def test_parts_and_counts_of_what_apps_hand_over() -> None:
    pair = (np.zeros((6, 2)), np.zeros(6))
    assert count(pair) == 6
    assert count(SimpleNamespace(x=np.zeros(4), y=np.zeros(4))) == 4
    assert count(SimpleNamespace(train=pair, test=None)) == 6
    assert count([1, 2, 3]) == 3
    assert training_part(pair) is pair
    assert held_out_part(pair) is None
    assert held_out_part(SimpleNamespace(train=[1], held_out=[2], test=[3])) == [2]
    assert held_out_part(SimpleNamespace(train=[1], held_out=2, test=[3])) == [3], "a number is a flag"
    with pytest.raises(DataSourceError, match="give examples="):
        count(3)
