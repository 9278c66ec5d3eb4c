"""BatchNorm in federated rounds: each codec, secure rounds, a datacenter, each engine, a run that goes on; and who says
which tensors are statistics. ``tests/equivalence/test_models_equal_loop.py`` has a loop in PyTorch beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk import codecs
from client_sdk.learning import Learner, LearnerFailed
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Update
from coordinator.datacenter.training import GlobalOrder
from simulation import Behaviour, History, SimulationError, simulate
from simulation.engines import EngineName
from simulation.virtual import secure_world
from tests.rotating import in_parts

SIZES = (24, 40, 64, 9)
ROUNDS = 3
RATE, BATCH, EPOCHS, SEED = 0.1, 8, 2, 5
STATISTICS = ("1.running_mean", "1.running_var")
TOLERANCE = 2e-6


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


LEARNER = Learner(model=network, loss=nn.functional.cross_entropy)


def shards() -> dict[str, tuple[Any, Any]]:
    """Inputs far from 0 and small: statistics move far, and variances are near 0."""
    found = {}
    for number, size in enumerate(SIZES):
        rng = np.random.default_rng(number)
        x = (rng.normal(size=(size, 3)) * 0.05 + 3 * number).astype(np.float32)
        found[f"c{number}"] = x, (x[:, 0] > 3 * number).astype(np.int64)
    return found


CLIENTS = shards()


def run(aggregation: Mapping[str, Any] | None = None, rounds: int = ROUNDS, **options: Any) -> History:
    more = {"secure": options.pop("terms")} if "terms" in options else options.pop("sections", {})
    plan = {
        "task": {
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "learning_rate": RATE,
            "seed": SEED,
            "drop_last": True,
            "codec": options.pop("codec", "float32@1"),
            "averaged": options.pop("averaged", ["*"]),
        },
        "cohort": {"select": len(SIZES), "goal": len(SIZES), "quorum": 1.0},
        "aggregation": {"weighting": "examples", "weight_cap": 100, **(aggregation or {})},
        "finish": {"rounds": ROUNDS},
        **more,
    }
    asked = {"keep_checkpoints": None if "folder" in options else "all", "progress": False, "seed": 1, **options}
    return simulate(plan, asked.pop("learner", LEARNER), CLIENTS, rounds=rounds, **asked)


@pytest.mark.parametrize("codec", in_parts((name for name in codecs.names() if name != "float32@1"), of=2))
def test_lossy_codecs_leave_the_first_rounds_statistics_as_they_are(codec: str) -> None:
    plain, found = run(rounds=1), run(rounds=1, codec=codec)
    for key in STATISTICS:
        assert found.checkpoint(1)[key].tobytes() == plain.checkpoint(1)[key].tobytes()
    assert found.checkpoint(1)["0.weight"].tobytes() != plain.checkpoint(1)["0.weight"].tobytes()


def test_a_fallback_to_the_datacenter_keeps_them_as_plain_training_does() -> None:
    x, y = (np.concatenate(parts) for parts in zip(*CLIENTS.values(), strict=True))
    section = {"data": "proxy", "steps": 6, "batch_size": 40, "learning_rate": RATE, "momentum": 0.5, "patience": 1}
    asked: dict[str, Any] = {"behaviour": Behaviour(dropout=0.999), "datacenter": {"proxy": (x, y)}}
    history = run({"server_learning_rate": 2.0}, rounds=2, sections={"datacenter": section}, **asked)
    assert [(row.kind, row.status) for row in history.rounds[:2]] == [
        ("federated", "abandoned"), ("datacenter", "committed"),
    ]  # fmt: skip
    module = network()
    module.load_state_dict({key: torch.tensor(value) for key, value in history.checkpoint(0).items()})
    optimizer, order = torch.optim.SGD(module.parameters(), RATE, momentum=0.5), GlobalOrder(len(x), 40, SEED)
    for step in range(6):
        rows = order.at(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(x)[rows]), torch.tensor(y)[rows]).backward()
        optimizer.step()
    found = history.checkpoint(1)
    for key, value in module.state_dict().items():
        scale = max(1.0, float(np.abs(found[key]).max()))
        assert np.abs(found[key] - value.numpy()).max() <= TOLERANCE * scale, key


# ---------------------------------------------------------------- engines, folders, secure rounds

EVERYTHING = {"server_optimizer": "fedadam", "server_learning_rate": 0.05, "clip_norm": 0.5, "statistics_range": 2.0}
TERMS = {"max_norm": 1.0, "max_abs": 0.5, "minimum_cohort": 3}
WORKERS: dict[str, Any] = {"processes": {"workers": 2}}


def digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


@pytest.mark.parametrize("engine", [name for name in get_args(EngineName) if name not in ("serial", "ray")])
def test_every_engine_gives_the_same_bits(engine: EngineName) -> None:
    options: dict[str, Any] = {"engine": engine, **WORKERS.get(engine, {})}
    for more in (EVERYTHING, {"rule": "trimmed-mean", "rule_parameters": {"fraction": 0.25}, "weighting": "equal"}):
        assert digests(run(more, **options)) == digests(run(more))


def test_a_run_that_goes_on_has_the_same_bits_and_says_what_was_cut(tmp_path: Path) -> None:
    run(EVERYTHING, folder=tmp_path, rounds=1)
    again = run(EVERYTHING)
    assert digests(run(EVERYTHING, folder=tmp_path)) == digests(again)
    assert all(row.statistics_cut for row in again.rounds)


@pytest.mark.parametrize("codec", in_parts(codecs.linear_names(), of=2))
def test_secure_rounds_of_any_q_and_codec_have_the_statistics_of_the_loop(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices train in the order of the plan's seed, as those of the plain round do."""
    monkeypatch.setattr(secure_world, "private_seed", lambda *about: SEED)
    q = 16 if codec == "float32@1" else 4
    more = {"partial": "refuse", "server_optimizer": "fedadam", "server_learning_rate": 0.05}
    terms = {**TERMS, "q": q, "max_abs": 0.3, "weight_cap": 40}
    history = run(more, rounds=1, secure="quantized", terms=terms, codec=codec)
    plain = run({"weight_cap": 40}, rounds=1).checkpoint(1)
    for key in STATISTICS:
        assert np.abs(history.checkpoint(1)[key] - plain[key]).max() < 1e-6
    assert float(history.checkpoint(1)["1.running_var"].min()) >= 0


def test_codecs_whose_encodings_cannot_be_added_are_refused_in_secure_rounds() -> None:
    for codec in sorted(set(codecs.names()) - set(codecs.linear_names())):
        with pytest.raises(ValueError, match="codec"):
            run({"partial": "refuse"}, rounds=1, secure="quantized", terms=TERMS, codec=codec)


@pytest.mark.parametrize("codec", ["float32@1", "rotated@1"])
def test_masked_and_quantized_rounds_have_the_same_bits(codec: str) -> None:
    more = {"partial": "refuse", "statistics_range": {"*_mean": 20.0, "*_var": 1.0}}
    one, other = (run(more, rounds=2, secure=way, terms=TERMS, codec=codec) for way in ("masked", "quantized"))
    assert digests(one) == digests(other)


def test_a_run_is_not_continued_with_other_roles(tmp_path: Path) -> None:
    def train(model: Tensors, data: Any, task: Task) -> Update:
        return Update({"w.running_var": np.ones(2, np.float32)}, len(data[0]))

    def go(**more: Any) -> History:
        plan = {"cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 2}}
        init = {"w.running_var": np.zeros(2, np.float32)}
        clients = {name: CLIENTS[name] for name in ("c0", "c1")}
        return simulate(plan, train, clients, init=init, folder=tmp_path, progress=False, rounds=1, **more)

    go(statistics={"w.*": "statistic"})
    with pytest.raises(SimulationError, match="was begun with other tensors as statistics"):
        go(statistics={})
    go(statistics={"w.running_var": "statistic"})


# ---------------------------------------------------------------- who says the roles


def test_names_tell_where_a_function_trains_and_a_word_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(model: Tensors, data: Any, task: Task) -> Update:
        return Update({name: np.full_like(array, -1) for name, array in model.items()}, 1)

    init = {"bn.running_var": np.full(2, 1.5, np.float32), "w": np.zeros(2, np.float32)}
    plan = {
        "cohort": {"select": 2, "goal": 2},
        "aggregation": {"server_learning_rate": 2.0},
        "finish": {"rounds": 2},
    }
    clients = {name: CLIENTS[name] for name in ("c0", "c1")}
    told = simulate(plan, train, clients, init=init)
    assert "By their names these tensors are statistics, not parameters: bn.running_var (never below 0)." in (
        capsys.readouterr().err
    )
    (file := tmp_path / "first.safetensors").write_bytes(to_bytes(init))
    from_file = simulate(plan, train, clients, init=file)
    assert "By their names these tensors are statistics, not parameters: bn.running_var" in capsys.readouterr().err
    assert digests(from_file) == digests(told)
    assert told.checkpoint()["bn.running_var"].tolist() == [0, 0]
    assert [row.raised for row in told.rounds] == [0, 2]
    assert told.checkpoint()["w"].tolist() == [-4, -4]
    said = simulate(plan, train, clients, init=init, statistics={}, progress=False)
    assert said.checkpoint()["bn.running_var"].tolist() == [-2.5, -2.5]
    with pytest.raises(ValueError, match="statistics: no tensor of the model matches 'mean'"):
        simulate(plan, train, clients, init=init, statistics={"mean": "statistic"}, progress=False)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"bn.running_var": "non_negative"}, "'bn.running_var': 'non_negative' is no name and role; roles are"),
        ({"bn.running_var": True}, "'bn.running_var': True is no name and role"),
        ({3: "statistic"}, "3: 'statistic' is no name and role"),
        (["bn.running_var"], "a list says no roles: give a dict"),
    ],
)
@pytest.mark.parametrize("by", ["statistics", "the learner"])
def test_what_is_no_role_is_refused(said: Any, why: str, by: str) -> None:
    class Speaking:
        def train(self, model: Tensors, data: Any, task: Task, *, device: str) -> Update:
            return Update({"bn.running_var": np.full(2, -1, np.float32)}, 1)

        def roles(self) -> Any:
            return said

    plan = {"cohort": {"select": 2, "goal": 2}, "finish": {"rounds": 1}}
    init = {"bn.running_var": np.zeros(2, np.float32)}
    clients = {name: CLIENTS[name] for name in ("c0", "c1")}
    speaks = by == "the learner"
    learner: Any = Speaking() if speaks else lambda model, data, task: Update({"bn.running_var": np.ones(2)}, 1)
    with pytest.raises(ValueError, match=f"{'roles.. of the learner' if speaks else 'statistics'}: {re.escape(why)}"):
        simulate(plan, learner, clients, init=init, progress=False, **({} if speaks else {"statistics": said}))


def test_a_learner_knows_its_buffers_and_what_its_author_names() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.ema = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.register_buffer("seen", torch.zeros(1))
            self.register_buffer("counted", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out

    learner = Learner(model=Averaged, loss=nn.functional.cross_entropy, statistics=("ema",))
    assert learner.roles() == {
        "ema": "statistic",
        "net.1.running_mean": "statistic",
        "net.1.running_var": "non-negative",
        "seen": "statistic",
    }
    with pytest.raises(ValueError, match="says otherwise than the learner"):
        simulate(
            {"cohort": {"select": 2, "goal": 2}}, learner, CLIENTS, statistics={"seen": "statistic"}, progress=False
        )
    with pytest.raises(LearnerFailed, match="The learner's statistics do not fit its model"):
        Learner(model=network, loss=nn.functional.cross_entropy, statistics=("ema",)).roles()
