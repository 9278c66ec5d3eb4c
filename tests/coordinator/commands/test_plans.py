"""``quorate plan``: mistakes with their line, the cost of a round, and a schema that agrees with what plans accept."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from client_sdk.protocol.operators import STILL_READ
from client_sdk.tensors import Manifest, read_header, to_bytes
from coordinator.commands.initial_checkpoint import roles_for, said_roles
from coordinator.engine.plan import Plan
from coordinator.runtime.insight.plan_check import RoundCost, plan_schema
from tests.client_sdk.commands.run_cli import quorate

ROOT = Path(__file__).parents[3]
MNIST = ROOT / "examples" / "mnist-secure.toml"
TEXT = """\
name = "wine"
[task]
learner = "nowhere:learner"
averaged = ["head.*"]
[cohort]
select = 4
goal = 3
quorum = 0.6
select_s = 30
collect_s = 60
[retention]
rounds = 2
[finish]
rounds = 10
"""
DECLINE = "devices whose owners set nothing decline"
MODEL = {"head.w": np.zeros((10, 100), np.float32), "body.w": np.zeros(5000, np.float32)}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(TEXT)
    (tmp_path / "model.safetensors").write_bytes(to_bytes(MODEL))
    return path


def test_check_shows_what_a_round_needs(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("plan", "check", str(plan), "--init", str(plan.with_name("model.safetensors"))) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith(f"{plan}: this plan can be carried out (digest {Plan.from_toml(plan).digest[:12]}).")
    assert "a round: selects 4 devices, closes at 3 reports, counts from 2 at the deadline" in lines
    assert "time: at most 90 s a round, 15 minutes for 10 rounds" in lines
    assert "model: 6,000 values, 24.2 kB, of which 1,000 are averaged" in lines


def test_check_says_what_a_secure_plan_leaves_open(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(TEXT + "[aggregation]\npartial = 'refuse'\n[secure]\nmax_norm = 1.0\nmax_abs = 0.5\n")
    cohort = ("--set", "cohort.select=300", "--set", "cohort.goal=256", "--set", "retention.rounds=0")

    def checked(*changes: str) -> str:
        assert quorate("plan", "check", str(plan), *cohort, *changes) == 0
        return " ".join(capsys.readouterr().out.split())

    assert (
        "closes at 268 devices with keys, a reserve of 12; an exchange with enough of them goes on after 15 s"
        in checked()
    )
    assert "a reserve of 3; an exchange with enough of them goes on after 4 s" in checked(
        "--set", "secure.reserve=3", "--set", "secure.quiet_s=4"
    )
    assert quorate("plan", "check", str(plan), *cohort, "--json") == 0
    assert json.loads(capsys.readouterr().out)["secure"] == {"reserve": 12, "margin": 14, "quiet_s": 15.0}
    shown = "of 268 devices 179 sign the list of survivors, which is shown when 193 have masked: 14 of them may vanish"
    assert shown in checked()
    assert "shown when 185 have masked" in checked("--set", "secure.margin=6")
    assert f"a sum: {STILL_READ}" in checked()
    init, adam = ("--init", str(plan.with_name("model.safetensors"))), "aggregation.server_optimizer='fedadam'"
    assert "owners:" not in checked(*init)
    moves = f"owners: {DECLINE}: This device's owner allows a round to move the model by at most 3 times max_norm; "
    assert f"{moves}the plan's may move it by up to 74.2 times it." in checked(*init, "--set", adam)
    lamb = f"{moves}the plan's may move it by any distance."
    assert lamb in checked(*init, "--set", "aggregation.server_optimizer='lamb'")
    total = "sizes: each round's total weight can be computed from its model"
    assert total in checked("--set", "aggregation.weighting='examples'")
    equal = checked("--set", "aggregation.weighting='equal'")
    assert "sizes:" not in equal
    asks = checked("--set", "aggregation.weighting='equal'", "--set", "cohort.min_examples=2")
    assert "sizes: cohort.min_examples = 2 goes by how many examples each device says it has, and leaves out" in asks


def test_check_says_whose_examples_the_cap_cuts(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for examples, said in ((10_000, False), (20_000, True)):
        assert quorate("plan", "check", str(plan), "--examples", str(examples)) == 0
        assert ("who holds 20,000 examples has more than weight_cap = 10,000, and weighs 10,000: the mean is that of "
                "capped sizes" in " ".join(capsys.readouterr().out.split())) == said  # fmt: skip


def test_cost_follows_model_codec_cohort_and_retention(plan: Path) -> None:
    checkpoint = to_bytes(MODEL)
    cost = RoundCost.of(Plan.from_toml(plan), read_header(checkpoint), {})
    assert (cost.values, cost.model_values, cost.model_bytes) == (1000, 6000, len(checkpoint))
    assert 4000 < cost.update_bytes < 4000 + 1000, "float32, and a header with a report"
    assert (cost.fetch_bytes, cost.download_bytes) == (len(checkpoint), 4 * len(checkpoint))
    assert cost.upload_bytes == 4 * cost.update_bytes
    assert cost.disk_bytes == 3 * cost.upload_bytes, "of this round and of two that are retained"
    assert cost.longest_s == 90
    whole, in_steps = (
        RoundCost.of(Plan.from_toml(plan, said), read_header(checkpoint), {}).delta_bytes
        for said in ([], ["aggregation.step_bits=6"])
    )
    assert 0.6 * 4000 < whole < 0.8 * 4000, "what is averaged changes, and the lowest bits have no pattern"
    assert 0.08 * 4000 < in_steps < 0.15 * 4000
    smaller = RoundCost.of(Plan.from_toml(plan, ["task.codec=stochastic8@1"]), read_header(checkpoint), {})
    assert smaller.update_bytes < cost.update_bytes - 2000


def test_a_learner_that_is_not_here_leaves_the_size_open(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("plan", "check", str(plan), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["round"] is None
    assert "nowhere" in document["unknown"]
    assert document["devices"] == {"select": 4, "goal": 3, "quorum": 2}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "cohort.goal=9"], "line 5: cohort: goal (9) is above select (4)"),
        (["--set", "cohort.gaol=9"], "--set cohort.gaol=9: cohort.gaol: there is no such field; did you mean goal?"),
        (["--init", "plan.toml"], "plan.toml is not a safetensors file that can start a run"),
        (["--set", 'aggregation.rule="clinic:krum"', "--set", 'aggregation.rule_version="1"'], "clinic:krum"),
    ],
)
def test_a_plan_that_cannot_be_carried_out(
    plan: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plan.parent)
    assert quorate("plan", "check", "plan.toml", *arguments) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda path: path.name)
def test_examples_agree_with_the_schema(path: Path) -> None:
    if path.name == "pyproject.toml":
        return
    jsonschema.validate(tomllib.loads(path.read_text()), plan_schema())
    Plan.from_toml(path)


def test_schema_refuses_what_plans_refuse(plan: Path) -> None:
    for wrong in ("cohort.gaol=1", "cohort.goal=0", "aggregation.partial=fast", "finish.metric=3", "tsk.a=1"):
        with pytest.raises(ValueError, match="--set"):
            Plan.from_toml(plan, [wrong])
        data = tomllib.loads(TEXT)
        names, _, value = wrong.partition("=")
        section, name = names.split(".")
        data.setdefault(section, {})[name] = int(value) if value.isdigit() else value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, plan_schema())


def test_schema_describes_every_field() -> None:
    document = plan_schema()
    for section in document["$defs"].values():
        for name, field in section["properties"].items():
            assert field.get("description"), name


def test_statistics_are_told_by_names_or_by_the_option(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = plan.with_name("normed.safetensors")
    model.write_bytes(to_bytes({**MODEL, "head.running_mean": np.zeros(7, np.float32)}))

    def said(*options: str) -> str:
        quorate("plan", "check", str(plan), "--init", str(model), *options)
        found = capsys.readouterr()
        return " ".join((found.out + found.err).split())

    assert "of which 1,007 are averaged; 7 are of statistics" in said()
    assert "of statistics" not in said("--statistic", "none")
    assert "; 1,007 are of statistics" in said("--statistic", "head.*", "--statistic", "head.running_mean>=0")
    assert "no tensor of the model matches 'tail'" in said("--statistic", "tail")
    ranged = ("--set", 'aggregation.statistics_range={"*_var"=2.0}')
    assert "aggregation.statistics_range: no averaged statistic matches '*_var'" in said(*ranged)


def test_options_say_roles_and_where_nobody_does_names_tell_and_a_word_says_so() -> None:
    assert said_roles(None) is None
    assert said_roles(["none"]) == {}
    assert said_roles(["a", "b>=0", "c >=0", "none"]) == {
        "a": "statistic", "b": "non-negative", "c": "non-negative", "none": "statistic",
    }  # fmt: skip
    model = Manifest.of({name: np.zeros(2, np.float32) for name in ("w", "bn.running_var")})
    found, word = roles_for(model, None, None)
    assert found == {"bn.running_var": "non-negative"}
    assert word.startswith("By their names these tensors are statistics, not parameters: bn.running_var (never below")
    assert roles_for(model, {}, None) == ({}, "")
    assert roles_for(model, {"w": "statistic"}, None) == ({"w": "statistic"}, "")
    assert roles_for(Manifest.of({"w": np.zeros(2, np.float32)}), None, None) == ({}, "")


def test_a_learner_that_knows_its_statistics_is_not_contradicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "knowing.py").write_text(
        "import numpy as np\n"
        "class L:\n"
        "    def train(self, *_, **__): ...\n"
        "    def initial(self, seed): return {'w': np.zeros(3, np.float32), 'ema': np.zeros(2, np.float32)}\n"
        "    def roles(self): return {'ema': 'statistic'}\n"
        "learner = L()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plan.toml").write_text('name = "x"\n[task]\nlearner = "knowing:learner"\n')
    assert quorate("plan", "check", str(tmp_path / "plan.toml")) == 0
    assert "; 2 are of statistics" in " ".join(capsys.readouterr().out.split())
    assert quorate("plan", "check", str(tmp_path / "plan.toml"), "--statistic", "w") == 1
    assert "leave the option out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ("def roles(self): return ['ema']", "roles() of the learner: a list says no roles: give a dict of names"),
        ("def roles(self): return {'ema': 'mean'}", "roles() of the learner: 'ema': 'mean' is no name and role"),
        (
            "def roles(self): return {'emma': 'statistic'}",
            "no floating-point tensor of the model: emma; did you mean ema?",
        ),
        ("def roles(self): return {'count': 'statistic'}", "no floating-point tensor of the model: count."),
        ("def roles(self): return 1 / 0", "roles() of the learner failed: ZeroDivisionError: division by zero."),
        ("def roles(self, model): return {}", "roles() of the learner failed: TypeError"),
        ("roles = {'ema': 'statistic'}", "The learner's roles is a dict: make it a method roles() that gives it."),
    ],
)
def test_roles_that_are_none_are_a_sentence_before_anything_is_sent(
    roles: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"w": np.zeros(3, np.float32), "ema": np.zeros(2, np.float32), "count": np.zeros(1, np.int64)}
    (tmp_path / "model.safetensors").write_bytes(to_bytes(model))
    (tmp_path / "wrongly.py").write_text(
        "import numpy as np\nclass L:\n    def train(self, *_, **__): ...\n    def initial(self, seed):\n"
        "        return {'w': np.zeros(3, 'f4'), 'ema': np.zeros(2, 'f4'), 'count': np.zeros(1, np.int64)}\n"
        f"    {roles}\nlearner = L()\n"
    )
    monkeypatch.delitem(sys.modules, "wrongly", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plan.toml").write_text('name = "x"\n[task]\nlearner = "wrongly:learner"\n')
    for command in (("plan", "check"), ("run", "create")):
        for init in ((), ("--init", str(tmp_path / "model.safetensors"))):
            assert quorate(*command, str(tmp_path / "plan.toml"), *init) == 1
            assert words in " ".join(capsys.readouterr().err.split())


def test_a_plan_that_trains_no_parameter_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "normed.py").write_text(
        "from torch import nn\nfrom quorate import Learner\n"
        "learner = Learner(model=lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), loss=nn.MSELoss())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = 'name = "x"\n[task]\nlearner = "normed:learner"\naveraged = ["1.running_mean"]\n'
    (tmp_path / "plan.toml").write_text(text)
    assert quorate("run", "create", str(tmp_path / "plan.toml")) == 1
    assert "averages no parameter that can be trained" in " ".join(capsys.readouterr().err.split())


def test_repro_a_metric_that_the_learner_does_not_score_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "The learner quorate:mnist-mlp scores accuracy, loss, not acuracy; did you mean accuracy?"
    for metric, words in (("acuracy", said), ("accuracy", ""), ("loss", "")):
        text = f'name = "x"\n[task]\nlearner = "quorate:mnist-mlp"\n[finish]\nmetric = "{metric}"\ntarget = 0.9\n'
        (tmp_path / "plan.toml").write_text(text)
        assert quorate("plan", "check", str(tmp_path / "plan.toml"), "--json") == 0
        assert json.loads(capsys.readouterr().out)["metric"] == words
        assert quorate("plan", "check", str(tmp_path / "plan.toml")) == 0
        assert ("metric: " + words in " ".join(capsys.readouterr().out.split())) == bool(words)


def test_plan_check_says_what_groups_withstand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """400 devices in 4 groups are more than one strict roster may have."""
    plan = tmp_path / "groups.toml"
    plan.write_text(
        'name = "groups"\n[task]\nlearner = "quorate:mnist-mlp"\n'
        "[cohort]\nselect = 400\ngoal = 300\nquorum = 0.7\n"
        '[aggregation]\npartial = "refuse"\nrule = "median"\n'
        "[secure]\nmax_norm = 1.0\nmax_abs = 1.0\ngroups = 4\nreserve = 0\n[finish]\nrounds = 2\n"
    )
    assert quorate("plan", "check", str(plan)) == 0
    said = capsys.readouterr().out
    assert "1 x 300 withstands 101 of 300 colluding at 80 bits, a device hides among 100; lying" in said
    assert "4 x 75 withstands 26 of 300 colluding at 80 bits, a device hides among 25; lying groups" in said
    assert "survives: 1; a bad sum costs that group." in said
    assert "of 75 devices 51 sign the list" in said

    def with_sizes(*changes: str) -> str:
        assert quorate("plan", "check", str(plan), *_sets(*changes)) == 0
        return " ".join(capsys.readouterr().out.split())

    # Groups of 75 withstand 26, those of 76 withstand 25: what is said holds for both.
    uneven = with_sizes("cohort.goal=303", "secure.groups=4", "cohort.quorum=0.7")
    assert "4 x 75 or 76 withstands 25 of 303 colluding at 80 bits, a device hides among 25;" in uneven
    two = with_sizes("secure.groups=2")
    assert "2 x 150 withstands 51 of 300" in two
    assert "a bad sum costs the round, since most groups must stand." in two


def test_repro_the_bytes_of_a_plan_with_groups_are_those_of_a_group() -> None:
    """They were the same for any number of groups, and of 310 devices in 4 groups they were refused as too many."""
    sizes = ("secure.groups=4", "cohort.goal=300", "cohort.select=320", "cohort.quorum=0.7")
    assert quorate("plan", "check", str(MNIST), *_sets(*sizes)) == 0
    header = read_header(to_bytes(MODEL))

    def cost(groups: int) -> RoundCost:
        plan = Plan.from_toml(MNIST, ["secure.minimum_cohort=32", "cohort.quorum=0.7", f"secure.groups={groups}"])
        return RoundCost.of(plan, header, {})

    one, two, four = map(cost, (1, 2, 4))
    assert one.update_bytes > two.update_bytes > four.update_bytes
    assert 0.2 < _shares(four) / _shares(one) < 0.35, "a device deals, signs and masks with a quarter of the others"
    assert one.fetch_bytes > four.fetch_bytes > 0.5 * one.fetch_bytes, "the roster has all devices all the same"


def _shares(cost: RoundCost) -> int:
    return cost.update_bytes - 2 * cost.model_values


def _sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ((), ()),
        (
            ("secure.max_norm=0.05", "secure.minimum_cohort=3"),
            (
                "This device hides among 64 or more; the plan asks for 3.",
                "This device's owner allows an L2 clip of at least 0.1; the plan asks for 0.05.",
            ),
        ),
        (
            ("task.epochs", "task.steps=1", "task.batch_size=1"),
            ("allows whole passes only; the plan's 1 steps may be less than one pass over its data.",),
        ),
        (("task.epochs=1", "task.batch_size=20"), ()),
        (
            ("aggregation.server_learning_rate=0.0001",),
            ("the round after one of theirs: each moves the model by at most 0.0001 times max_norm, and models that",),
        ),
        (("aggregation.server_learning_rate=0.0021",), ()),
        (
            ("schedule.server_learning_rate.last=0.001", "schedule.server_learning_rate.rounds=9", "finish.rounds=20"),
            ("decline the round after one of theirs: some move the model by at most",),
        ),
        (("schedule.server_learning_rate.last=0.001", "finish.rounds=20"), ()),
        (("aggregation.server_learning_rate=0.0001", "finish.rounds=1"), ()),
    ],
    ids=["example", "terms", "work", "passes", "near", "rate", "falls", "falls-less", "once"],
)
def test_repro_what_default_owners_refuse_is_said(
    changes: tuple[str, ...], reasons: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the plan can be carried out, and no more."""
    text = MNIST.read_text()
    if "task.epochs" in changes:
        text = text.replace("epochs = 3 ", "# epochs")
    (tmp_path / "plan.toml").write_text(text)
    chosen = [change for change in changes if "=" in change]
    assert quorate("plan", "check", str(tmp_path / "plan.toml"), *_sets(*chosen)) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  owners: ")]
    assert len(said) == len(reasons)
    for line, reason in zip(said, reasons, strict=True):
        assert DECLINE in line
        assert reason in line


def test_the_work_of_a_device_of_a_known_size_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of 20 is more than half of 33 examples, and up to 64 are all treated alike; of an unknown number it may
    be less."""
    for examples, refused in ((30, True), (64, True), (65, False)):
        assert quorate("plan", "check", str(MNIST), "--examples", str(examples)) == 0
        said = "allows 50% of its data in a batch at most; the plan's batch of 20 may be more"
        assert (said in capsys.readouterr().out) == refused
