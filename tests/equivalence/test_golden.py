"""What runs write and peers say, held against ``golden.json`` bit by bit: a change of form must change none of it.

Runs go through ``simulate`` into a data folder; every row of every table of its database, the names of its blobs (which
are digests), and the values of ``History`` are compared. Where something differs the message names run, table and the
first row that differs. Where it was meant to::

    python -m tests.equivalence.test_golden --write
    python -m tests.equivalence.test_golden --rows crowd events     # one table in full, to compare two versions

The values are the same on every machine, since every number in them is exact or correctly rounded by one operation:

- A batch's gradient is the mean of integer targets over a power of two of examples, the loss's value likewise: the
  loss is linear in the weights, and its value does not depend on them. Both are small dyadic numbers, whose sums have
  no rounding and so no order.
- Learning rates, mu and momentum are powers of two, so a fused multiply-add gives what a product and a sum give; each
  weight is moved by itself, with one rounding an operation. Global weights are any float32: they are never summed.
- The metric ``level`` is floor(8 w) / 8 of one weight: a dyadic number again.
- Norms are exact (the coordinator's by its exact sum of squares and one square root; the device's are of multiples of
  (3, 4)); the exact sum of updates is of integers, and its mean one division.
- Virtual time begins at a fixed whole number and moves by sums, products and quotients in a fixed order, each rounded
  once as IEEE 754 says. Speeds that are drawn (``speed_sigma``) need ``exp`` and are left out. Who is chosen by
  examples goes by the order of logarithms of 64-bit draws, in which a last bit decides nothing.

Who arrives comes from numpy's PCG64, who is shuffled where from torch's generator: other releases of these may draw
otherwise. Not held here: secure rounds, but for their plans and events (their bytes are held by the secagg tests); raw
updates on disk, since a simulation keeps none, whatever the plan's retention.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import select
import signal
import sqlite3
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.main import get_command

from tests.equivalence import pinned
from tests.equivalence.pinned import Behaviour, History, Learner, Plan, simulate
from tests.forks import Forked
from tests.rotating import in_parts

pytestmark = pytest.mark.whole

GOLDEN = Path(__file__).with_name("golden.json")
AGAIN = "`python -m tests.equivalence.test_golden --write` writes it anew, where the difference is meant"

# ------------------------------------------------------------ an exact learner


class Exact(nn.Module):
    """Four weights and two, whatever the input; and a counter that is neither trained nor averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.b = nn.Parameter(torch.zeros(2))
        self.register_buffer("kept", torch.tensor([3, 1, 4], dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.w, self.b]).expand(len(x), 6)


def linear(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Its gradient is the targets' mean; its value is the mean of their sums, whatever ``out`` is."""
    return ((out - out.detach() + 1.0) * target).sum(-1).mean()


def level(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (torch.floor(out[:, 0] * 8.0) / 8.0).mean()


LEARNER = Learner(model=Exact, loss=linear, metrics={"level": level})
INIT = {"w": np.zeros(4, np.float32), "b": np.array([0.5, -0.25], np.float32), "kept": np.array([3, 1, 4], np.int64)}


def part(count: int, number: int) -> tuple[Any, Any]:
    """``count`` examples of client ``number``: integers from -9 to 5."""
    rows = np.arange(count)[:, None] * 7 + np.arange(6)[None, :] * 5 + number * 11
    return np.zeros((count, 1), np.float32), (rows % 15 - 9).astype(np.float32)


def norms(count: int, number: int) -> tuple[Any, Any]:
    """Examples of one client that are all alike, with a gradient of norm 5, 10 or 20."""
    target = np.zeros((count, 6), np.float32)
    target[:, :2] = np.array([-3.0, 4.0]) * 2 ** (number % 3)
    return np.zeros((count, 1), np.float32), target


def fleet(count: int = 12, make: Callable[[int, int], tuple[Any, Any]] = part) -> dict[str, Any]:
    """Clients c00, c01, ... of 4, 8, 12 or 16 examples, with four held out."""
    return {
        f"c{number:02}": SimpleNamespace(train=make(4 * (1 + number % 4), number), test=make(4, number + 50))
        for number in range(count)
    }


CLASSES = {f"c{number:02}": ("slow", "fast", "weak")[number % 3] for number in range(40)}
BEHAVIOUR = {
    "slow": Behaviour(step_s=2.0, network_s=1.0),
    "fast": Behaviour(step_s=0.25, network_s=0.5),
    "weak": Behaviour(step_s=0.5, stragglers=0.75, dropout=0.25),
}


# ------------------------------------------------------------ the runs


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: its plan, and the rest of what ``simulate`` is told."""

    cohort: dict[str, Any]
    rounds: int = 4
    task: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    clients: Callable[[], dict[str, Any]] = fleet
    calls: int = 1
    """In how many calls the run is played, each going on in the folder of the last."""

    def play(self, folder: Path, **more: Any) -> None:
        plan = {
            "name": "golden",
            "task": {"batch_size": 4, "learning_rate": 0.125, "seed": 3, **self.task},
            "cohort": {"collect_s": 64.0, "select_s": 16.0, **self.cohort},
            "finish": {"rounds": self.rounds},
            **self.plan,
        }
        with pinned.fixed_time():
            for _ in range(self.calls):
                simulate(
                    plan, LEARNER, self.clients(), init=INIT, folder=folder, progress=False, **self.options, **more
                )


CROWD = {"select": 8, "goal": 5, "quorum": 0.6, "collect_s": 12.0}
FEW = {"select": 4, "goal": 4, "quorum": 0.75}
DATACENTER = {
    "data": "proxy", "steps": 4, "batch_size": 8, "accumulate": 2, "learning_rate": 0.25, "momentum": 0.5,
    "warmup_steps": 2, "lease_s": 32.0,
}  # fmt: skip

RUNS: dict[str, Case] = {
    "mean": Case(cohort={"select": 6, "goal": 6}, task={"epochs": 2}, options={"test": part(16, 90)}),
    "median": Case(
        cohort={"select": 5, "goal": 5},
        plan={"aggregation": {"rule": "median", "weighting": "equal"}},
        options={"seed": 5},
    ),
    "crowd": Case(
        cohort=CROWD,
        rounds=6,
        task={"epochs": 2},
        plan={"aggregation": {"partial": "examples_seen", "weight_cap": 11}},
        options={"behaviour": BEHAVIOUR, "classes": CLASSES},
        clients=lambda: fleet(40),
    ),
    "equal": Case(
        cohort=CROWD,
        task={"steps": 5},
        plan={"aggregation": {"weighting": "equal", "partial": "examples_seen"}},
        options={"behaviour": BEHAVIOUR, "classes": CLASSES, "seed": 2},
        clients=lambda: fleet(20),
    ),
    "proximal": Case(
        cohort={"select": 6, "goal": 5, "quorum": 0.4},
        task={"epochs": 3, "mu": 0.5, "time_budget_s": 4.0},
        plan={"aggregation": {"partial": "refuse"}},
        options={"behaviour": Behaviour(stragglers=0.5, step_s=0.5, dropout=0.125)},
    ),
    "half": Case(
        cohort=FEW,
        task={"codec": "float16@1", "averaged": ["w"], "epochs": 2},
        plan={"aggregation": {"clip_norm": 0.75, "server_learning_rate": 0.5}},
    ),
    "norms": Case(cohort=FEW, task={"max_grad_norm": 2.5, "steps": 2}, clients=lambda: fleet(8, norms)),
    "kept": Case(
        cohort={"select": 4, "goal": 3, "pool": 8, "choose": "by_examples", "min_examples": 8},
        plan={"aggregation": {"weighting": "equal"}, "retention": {"rounds": 2}},
        clients=lambda: fleet(20),
    ),
    "target": Case(
        cohort=FEW,
        plan={"finish": {"rounds": 50, "metric": "level", "target": 2.0, "source": "clients"}},
        options={"score_clients": "all", "classes": CLASSES, "score_every": 2, "test": part(16, 91)},
    ),
    "patience": Case(
        cohort=FEW,
        task={"score_held_out": True},
        plan={"finish": {"rounds": 50, "metric": "level", "better": "lower", "source": "devices", "patience": 3}},
    ),
    "abandoned": Case(
        cohort={"select": 4, "goal": 4, "quorum": 1.0, "collect_s": 8.0},
        rounds=3,
        options={"behaviour": Behaviour(dropout=0.3), "rounds": 4, "seed": 4},
        calls=3,
    ),
    "fallback": Case(
        cohort={"select": 4, "goal": 4, "quorum": 1.0, "collect_s": 8.0},
        rounds=8,
        plan={"datacenter": {**DATACENTER, "patience": 1}},
        options={"behaviour": Behaviour(dropout=0.2), "datacenter": {"proxy": part(16, 70)}},
    ),
    "every": Case(
        cohort=FEW,
        rounds=5,
        plan={"datacenter": {**DATACENTER, "every": 2, "momentum": 0.25}},
        options={"datacenter": {"proxy": part(16, 71)}, "test": part(16, 92)},
    ),
}
Rows = list[str]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_OF_CHAINS = ("link", "refusals", "signed_by", "signature")
"""Columns of the chains of hashes, which follow from the others. The contract of stores pins them."""
_SAID = ("facts", "node")
"""Columns with what devices said of themselves, and what follows from their ids."""


def rows_of(folder: Path) -> dict[str, Rows]:
    """Everything that lies in a data folder, row by row, as canonical JSON. JSON inside a column is taken apart."""
    (database,) = folder.glob("*.sqlite3")
    found: dict[str, Rows] = {}
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        for table in [row["name"] for row in tables]:
            if table.startswith("sqlite_") or table in ("alembic_version", "audit_head"):  # the last one follows too
                continue
            key = ", ".join(
                f'"{column["name"]}"'
                for column in sorted(connection.execute(f"PRAGMA table_info({table})"), key=lambda one: one["pk"])
                if column["pk"]
            )
            rows = connection.execute(f"SELECT * FROM {table} ORDER BY {key}")
            names = [description[0] for description in rows.description if description[0] not in (*_OF_CHAINS, *_SAID)]
            found[table] = [canonical({name: _taken_apart(name, row[name]) for name in names}) for row in rows]
    found["blobs"] = sorted(
        canonical(path.relative_to(folder).as_posix()) for path in (folder / "blobs").rglob("*") if path.is_file()
    )
    return found


def _taken_apart(name: str, value: Any) -> Any:
    """Of a snapshot only that there is one: its format is its version's own, and the log gives the state again."""
    if name == "snapshot":
        return value is not None
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def answers_of(folder: Path) -> dict[str, Rows]:
    """What the public ``History`` says of the same folder."""
    with History.open(folder) as history:
        assert history.created_at == pinned.BEGINNING, (
            "the run does not begin at the fixed time: let tests/equivalence/pinned.py set the clock that it now reads"
        )
        model = history.checkpoint()
        return {
            "history.rounds": [canonical(_told(asdict(found))) for found in history.rounds],
            "history.metrics": [canonical(found.model_dump(mode="json")) for found in history.metrics],
            "history.participation": [canonical(found) for found in history.participation.items()],
            "history.withdrawals": [canonical(asdict(found)) for found in history.withdrawals],
            "history.plan": [canonical(history.plan.written_out), history.plan.digest],
            "history.end": [canonical([history.run, len(history), history.status, history.reason])],
            "history.model": [canonical([name, array.dtype.str, array.tolist()]) for name, array in model.items()],
        }


_TREATMENT = (
    "clipped",
    "capped",
    "partial",
    "statistics_cut",
    "rounding",
    "zero_sum",
    "duplicates",
    "refused_for",
    "missed",
)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A round without what was not done to its updates."""
    return {name: value for name, value in row.items() if name not in _TREATMENT or value}


def played(name: str, folder: Path, **more: Any) -> dict[str, Rows]:
    RUNS[name].play(folder, **more)
    return {**rows_of(folder), **answers_of(folder)}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(rows: Rows) -> str:
    """What is kept of a table: how many rows, 128 bits of a digest of all, and 16 of each, to find the one that
    differs."""
    return " ".join([str(len(rows)), sha256("\n".join(rows))[:32], *(sha256(row)[:4] for row in rows)])


def differences(tables: dict[str, Rows], kept: dict[str, str]) -> Iterator[str]:
    for table in sorted(tables.keys() ^ kept.keys()):
        yield f"table {table}: " + ("is gone" if table in kept else f"is new, with {len(tables[table])} rows")
    for table in sorted(tables.keys() & kept.keys()):
        rows = tables[table]
        if sealed(rows) == kept[table]:
            continue
        old, new = kept[table].split()[2:], sealed(rows).split()[2:]
        at = next(
            (place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
        )
        what = f"it is now {rows[at][:1500]}" if at < len(rows) else "it is not among those that are there now"
        yield f"table {table}: {len(old)} rows before, {len(rows)} now; row {at} is the first that differs: {what}"


def hold(run: str, tables: dict[str, Rows]) -> None:
    found = list(differences(tables, golden()["runs"][run]))
    assert not found, f"the run {run!r} differs from golden.json:\n" + "\n".join(found) + f"\n({AGAIN})"


def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("run", RUNS)
def test_run_writes_the_golden_rows(run: str, tmp_path: Path) -> None:
    hold(run, played(run, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("run", in_parts(RUNS, of=2))
def test_run_of_two_processes_writes_the_same_rows(run: str, tmp_path: Path) -> None:
    hold(run, played(run, tmp_path / "run", engine="processes", workers=2))


def test_runs_cover_what_they_are_here_for(tmp_path: Path) -> None:
    """Golden values of runs in which nothing happens would hold nothing."""
    crowd = [json.loads(row) for row in played("crowd", tmp_path / "crowd")["history.rounds"]]
    for stage in ("late", "dropped"):
        assert any(found[stage] for found in crowd), stage
    fallback = [json.loads(row) for row in played("fallback", tmp_path / "fallback")["history.rounds"]]
    assert {found["kind"] for found in fallback} == {"federated", "datacenter"}
    assert {found["status"] for found in fallback} == {"committed", "abandoned"}
    proximal = played("proximal", tmp_path / "proximal")
    assert proximal["history.withdrawals"]


# ------------------------------------------------------------ words: messages, events, plans, routes

PLANS: dict[str, dict[str, Any]] = {
    "least": {"name": "least", "task": {"learner": "a:b"}},
    "most": {
        "name": "most",
        "task": {
            "learner": "a:b", "learner_version": "2", "steps": 8, "batch_size": 4, "learning_rate": 0.125, "mu": 0.5,
            "max_grad_norm": 1.5, "time_budget_s": 8, "codec": "float16@1", "averaged": ["head.*"], "seed": 7,
            "score_held_out": True,
        },
        "cohort": {
            "select": 30, "goal": 20, "quorum": 0.5, "pool": 40, "select_s": 8, "collect_s": 16,
            "choose": "by_examples", "min_examples": 2,
        },
        "aggregation": {
            "weighting": "equal", "weight_cap": 100, "partial": "examples_seen", "clip_norm": 2.5,
            "server_optimizer": "average", "server_learning_rate": 0.5,
        },
        "finish": {
            "rounds": 9, "metric": "level", "source": "devices", "better": "lower", "target": 0.5, "patience": 3,
            "min_delta": 0.25,
        },
        "retention": {"rounds": 2},
        "datacenter": {
            **DATACENTER, "patience": 2, "every": 3, "return_devices": 15, "wait_s": 4, "max_s": 64, "nproc": 2,
            "optimizer": "lamb", "weight_decay": 0.5, "precision": "bfloat16",
        },
    },
    "median": {
        "name": "median", "task": {"learner": "a:b"}, "aggregation": {"rule": "median", "weighting": "equal"},
    },
    "strict": {
        "name": "strict", "task": {"learner": "a:b"}, "secure": {"max_norm": 1.0, "max_abs": 0.25},
    },
    "fast": {
        "name": "fast", "task": {"learner": "a:b"}, "aggregation": {"weighting": "examples"},
        "secure": {
            "profile": "fast", "drop": 20, "corrupt": 0.05, "sigma": 64, "eta": 30, "q": 16, "max_norm": 1.0,
            "max_abs": 0.25, "weight_cap": 500, "minimum_cohort": 128, "reserve": 10,
            "exchange_s": 30, "attempts": 2, "expires_s": 7200,
        },
    },
}  # fmt: skip

MISTAKES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "name": {**PLANS["least"], "name": "No Name"},
    "field": {**PLANS["least"], "cohort": {"selct": 3}},
    "type": {**PLANS["least"], "cohort": {"select": "3"}},
    "goal": {**PLANS["least"], "cohort": {"select": 3, "goal": 4}},
    "work": {"name": "x", "task": {"learner": "a:b", "epochs": 1, "steps": 2}},
    "median": {**PLANS["least"], "aggregation": {"rule": "median"}},
    "twice": {**PLANS["least"], "cohort": {"choose": "by_examples"}},
    "metric": {**PLANS["least"], "finish": {"target": 1.0}},
    "devices": {**PLANS["least"], "finish": {"metric": "level", "target": 1.0, "source": "devices"}},
    "datacenter": {**PLANS["least"], "datacenter": {"data": "proxy"}},
    "secure": {**PLANS["median"], "secure": {"max_norm": 1.0, "max_abs": 0.25}},
}


def messages() -> dict[str, str]:
    """The bytes of each message with every field filled, and with what its reader fills in when fields are left out."""
    found = {}
    for name, (reader, body, optional) in pinned.MESSAGES.items():
        assert set(reader.model_fields) == set(body), f"the example of {name!r} does not fill every field"
        for way, given in (("full", body), ("least", _without(body, optional))):
            found[f"{name} {way}"] = reader.model_validate_json(json.dumps(given)).model_dump_json()
    return {name: _short(text) for name, text in found.items()}


def _short(text: str) -> str:
    """64 equal digits as one: no other text of the examples has so many."""
    return re.sub(r"([0-9a-f])\1{63}", r"\1*64", text)


def _without(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def events() -> dict[str, str]:
    """The stored body of each kind, read and written again, whole and from a log that lacks what may be left out."""
    found = {}
    for kind, (body, optional) in pinned.EVENTS.items():
        for way, given in (("full", body), ("least", _without(body, optional))):
            event = pinned.from_json(kind, 12.5, dict(given))
            assert (pinned.kind_of(event), event.at) == (kind, 12.5)
            found[f"{kind} {way}"] = json.dumps(pinned.to_json(event), separators=(",", ":"))
        assert json.loads(found[f"{kind} full"]) == body
    return {name: _short(text) for name, text in found.items()}


def plans() -> dict[str, list[str]]:
    parsed = {name: Plan.parse(body) for name, body in PLANS.items()}
    return {name: [plan.digest, sha256(canonical(plan.written_out))] for name, plan in parsed.items()}


def mistakes() -> dict[str, str]:
    found = {}
    for name, body in MISTAKES.items():
        with pytest.raises(ValueError) as refused:
            Plan.parse(body)
        found[name] = str(refused.value)
    return found


def problem_documents() -> dict[str, list[str]]:
    found = {}
    for kind in pinned.PROBLEMS:
        error = pinned.problem(kind, "One sentence.", instance="/v1/runs", retry_after_s=1.5)
        found[kind] = [error.problem.advice, error.problem.model_dump_json()]
    return found


def commands() -> dict[str, str]:
    """Every command of ``quorate`` -> its arguments and options with their other names."""
    found: dict[str, str] = {}

    def walk(words: str, command: Any) -> None:
        found[words] = " ".join(
            "/".join([*one.opts, *one.secondary_opts]) if one.param_type_name == "option" else f"<{one.name}>"
            for one in command.params
        )
        if hasattr(command, "list_commands"):
            context = command.make_context(words, [], resilient_parsing=True)
            for name in command.list_commands(context):
                walk(f"{words} {name}", command.get_command(context, name))

    walk("quorate", get_command(pinned.cli_app))
    return dict(sorted(found.items()))


def settings() -> list[str]:
    """What ``QUORATE_<NAME>`` may set: part of how a coordinator is deployed."""
    return sorted(pinned.Settings.model_fields)


def updates() -> dict[str, str]:
    """The body that a device sends, byte for byte, for each codec; trained alone through the front door."""
    found = {}
    for codec in ("float32@1", "float16@1", "eden1@1", "eden2@1", "eden4@1", "sign@1", "entropy1@1", "entropy4@1"):
        plan = {"task": {"batch_size": 4, "learning_rate": 0.125, "epochs": 2, "codec": codec}, "cohort": FEW}
        made = simulate(plan, LEARNER, fleet(), init=INIT, only="c03", round=2, seed=1)
        found[codec] = hashlib.sha256(pinned.encode_update(made, codec, "golden", 2)).hexdigest()
    return found


WORDS: dict[str, Callable[[], Any]] = {
    "commands": commands,
    "constants": lambda: dict(pinned.CONSTANTS),
    "events": events,
    "messages": messages,
    "mistakes": mistakes,
    "plans": plans,
    "problems": problem_documents,
    "routes": lambda: {name: str(route.value) for name, route in pinned.Route.__members__.items()},
    "settings": settings,
    "updates": updates,
}


@pytest.mark.parametrize("what", WORDS)
def test_words_are_the_golden_ones(what: str) -> None:
    assert WORDS[what]() == golden()[what], f"{what} differ from golden.json ({AGAIN})"


# ------------------------------------------------------------ a served coordinator


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of ``quorate serve`` on an empty folder."""
    words = ["serve", "--json", "--data", str(folder), "--port", "0"]
    process = Forked(words, pinned.CLI_MODULE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 60)
        line = process.stdout.readline() if ready else ""
        assert line, "the coordinator did not start"
        yield json.loads(line)["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def service(folder: Path) -> dict[str, Any]:
    """What a server offers: its meters, and its paths with methods, parameters and answers; and what it makes on
    disk."""
    with served(folder) as url:
        with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as answer:
            paths = json.load(answer)["paths"]
        key = {"Authorization": f"Bearer {(folder / 'owner-key').read_text().strip()}"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=key), timeout=30) as answer:
            meters = answer.read().decode()
    (database,) = folder.glob("*.sqlite3")
    with closing(sqlite3.connect(database)) as connection:
        schema = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name")
        statements = [re.sub(r"\s+", " ", row[0]) for row in schema]
        version = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    return {
        "meters": sorted(line[7:] for line in meters.splitlines() if line.startswith("# TYPE ")),
        "paths": {
            f"{method.upper()} {path}": " ".join(
                [*(f"{one['in']}:{one['name']}" for one in found.get("parameters", [])), *sorted(found["responses"])]
            )
            for path, methods in sorted(paths.items())
            for method, found in sorted(methods.items())
        },
        "files": sorted(path.name for path in folder.iterdir() if "sqlite3-" not in path.name),
        "schema": [version, *(sha256(statement)[:16] for statement in statements)],
    }


@pytest.mark.slow
def test_served_coordinator_offers_the_golden_paths_and_meters(tmp_path: Path) -> None:
    found, expected = service(tmp_path / "data"), golden()["service"]
    assert found == expected, f"the service differs from golden.json ({AGAIN})"


# ------------------------------------------------------------ written anew


def main() -> None:
    parser = argparse.ArgumentParser(description="Write golden.json anew, or show one table of one run.")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", nargs=2, metavar=("RUN", "TABLE"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if asked.rows:
            run, table = asked.rows
            print(*played(run, folder / run)[table], sep="\n")
        elif asked.write:
            runs = {}
            for run in RUNS:
                runs[run] = {table: sealed(rows) for table, rows in played(run, folder / run).items()}
            made = {what: make() for what, make in WORDS.items()} | {"service": service(folder / "data"), "runs": runs}
            GOLDEN.write_text(json.dumps(made, indent=0, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
        else:
            parser.print_help()


if __name__ == "__main__":
    main()
