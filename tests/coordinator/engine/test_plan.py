"""The plan refuses what cannot be carried out, field by field and together; its digest is what was agreed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from client_sdk.protocol.workers import DatacenterTask
from coordinator.engine.aggregation.section import MOST_WEIGHT, Aggregation
from coordinator.engine.plan import Cohort, Finish, Plan, Retention, chosen
from coordinator.engine.plan_file import PlanError

MINIMAL: dict[str, Any] = {"name": "mnist", "task": {"learner": "quorate:mnist-mlp"}}
INF, NAN = float("inf"), float("nan")


def plan(**sections: Any) -> Plan:
    return Plan.parse({**MINIMAL, **sections})


def test_defaults_are_those_of_the_design() -> None:
    cohort = plan().cohort
    assert (cohort.select, cohort.goal, cohort.quorum, cohort.quorum_count) == (300, 256, 0.85, 218)
    assert cohort.pool_count == 300
    assert (plan().aggregation, plan().finish, plan().retention) == (Aggregation(), Finish(), Retention())
    assert plan().retention.rounds == 0, "raw updates are not kept unless the plan says so"


@pytest.mark.parametrize(
    ("goal", "quorum", "count"),
    [
        (256, 0.85, 218),  # 217.6
        (100, 0.85, 85),
        (20, 0.15, 3),  # 3.0000000000000004 without the allowance for rounding
        (3, 0.6, 2),
        (3, 1.0, 3),
        (1, 0.01, 1),
        (10, 0.1, 1),
        (1, 1e-12, 1),  # never a round of nothing
    ],
)
def test_quorum_rounds_up(goal: int, quorum: float, count: int) -> None:
    assert Cohort(select=300, goal=goal, quorum=quorum).quorum_count == count


# (section, field, taken, refused): both ends of each range, and just beyond them
RANGES: list[tuple[str, str, list[object], list[object]]] = [
    ("cohort", "select", [256, 100_000], [0, -1, 100_001, 1.5, "many"]),
    ("cohort", "goal", [1, 300], [0, -5, 100_001, None]),
    ("cohort", "quorum", [1e-9, 1.0], [0, -0.1, 1.01, NAN]),
    ("cohort", "pool", [None, 300, 10_000_000], [0, 10_000_001]),
    ("cohort", "select_s", [0.001, 604_800], [0, -1, 604_801, INF, NAN]),
    ("cohort", "collect_s", [0.001, 604_800], [0, -1, 604_801, INF, NAN]),
    ("cohort", "choose", ["uniform", "oort"], ["random", "", 3]),
    ("cohort", "choose_version", [None], ["1", "", "x" * 65]),
    ("cohort", "choose_parameters", [{}], [{"factor": 2.0}, {"a": "b"}, {"a": True}, [], None]),
    ("cohort", "devices", [[], [f"d{number}" for number in range(256)]], ["d1", [3], ["d 1"], ["d1"], ["d1"] * 300]),
    ("cohort", "min_examples", [1, 10**6], [0, -1]),
    ("cohort", "most_rounds", [None, 1, 10_000_000], [0, -1, 10_000_001, 1.5]),
    ("cohort", "apart", [None, 1, 10_000_000], [0, -1, 10_000_001, 1.5]),
    ("aggregation", "rule", ["mean"], ["sum", "bulyan", "", 3]),
    ("aggregation", "rule_version", [None], ["1", "", "x" * 65]),
    ("aggregation", "rule_parameters", [{}], [{"fraction": 0.1}, {"a": "b"}, {"a": True}, [], None]),
    ("aggregation", "weighting", ["examples", "equal"], ["steps"]),
    ("aggregation", "weight_cap", [1, 2**20], [0, 2**20 + 1]),
    ("task", "drop_last", [True, False], [1, "yes"]),
    ("aggregation", "partial", ["full", "examples_seen", "refuse"], ["half"]),
    ("aggregation", "inverse_participation", [None], [0, 1, 65, 1.5, "2"]),
    ("aggregation", "clip_norm", [None, 1e-6, 1e6], [0, -1, INF, NAN]),
    ("aggregation", "step_bits", [None, 2, 16], [0, 1, 17, 2.5, "all"]),
    ("aggregation", "statistics_range", [None, 1e-6, 65536, {"*running_var": 2.0}], [0, -1, 65537, NAN, {"a": 0}, []]),
    (
        "aggregation",
        "server_optimizer",
        ["average", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "lars", "lamb", "radam"],
        ["adam"],
    ),
    ("aggregation", "server_optimizer_version", [None], ["1", "x" * 65]),
    ("aggregation", "server_optimizer_parameters", [{}], [{"tau": 0.1}, {"tau": "small"}, 3]),
    ("aggregation", "server_learning_rate", [1e-6, 1000], [0, -1, 1001, NAN]),
    ("finish", "rounds", [1, 10_000_000], [0, 10_000_001]),
    ("finish", "source", ["evaluator", "hospital-7"], ["", "Not Lower", "a b"]),
    ("finish", "better", ["higher", "lower"], ["bigger"]),
    ("finish", "min_delta", [0, 0.5], [-0.1, INF, NAN]),
    ("finish", "metric", [None], ["", "9x", "a b"]),
    ("finish", "target", [None], [INF, NAN, "good"]),
    ("finish", "patience", [None], [0, -1]),
    ("finish", "abandoned", [None, 1, 1_000_000], [0, -1, 1_000_001]),
    ("retention", "rounds", [0, 1_000_000], [-1, 1_000_001]),
    ("task", "epochs", [None, 1, 10_000], [0, 10_001]),
    ("task", "steps", [None, 1, 10_000_000], [0, 10_000_001]),
    ("task", "batch_size", [1, 1_000_000], [0, 1_000_001]),
    ("task", "learning_rate", [1e-9, 1000], [0, -1, 1001, INF, NAN]),
    ("task", "mu", [0, 1000], [-0.1, 1001, NAN]),
    ("task", "max_grad_norm", [None, 0.1], [0, -1, INF]),
    ("task", "time_budget_s", [None, 1, 600], [0, -1, 604_801, NAN]),
    (
        "task",
        "codec",
        ["float32@1", "float16@1", "stochastic8@1", "clinic:sketch@2"],
        ["float32", "@1", "Float32@1", "a b@1", ":a@1"],
    ),
    ("task", "averaged", [["*"], ["head.*", "body.?"], ["!body"]], [[], [""], ["*", " "], ["!"]]),
    ("task", "seed", [0, 2**63 - 1], [-1, 2**63]),
    ("task", "learner", ["a:b", "my.pkg:net_2"], ["nocolon", ":x", "a:", "a b:c", "", None]),
    ("task", "learner_version", [None, "", "1.2"], ["x" * 65]),
    ("task", "score_held_out", [True, False], ["perhaps"]),
]


def _with(section: str, field: str, value: object) -> dict[str, Any]:
    return {**MINIMAL, section: {**MINIMAL.get(section, {}), field: value}}


@pytest.mark.parametrize(("section", "field", "value"), [(s, f, value) for s, f, taken, _ in RANGES for value in taken])
def test_a_value_in_range_is_taken(section: str, field: str, value: object) -> None:
    parsed = getattr(Plan.parse(_with(section, field, value)), section)
    wanted = None if (field, value) == ("learner_version", "") else value
    assert getattr(parsed, field) == (tuple(value) if isinstance(value, list) else wanted)


@pytest.mark.parametrize(
    ("section", "field", "value"), [(s, f, value) for s, f, _, refused in RANGES for value in refused]
)
def test_a_value_out_of_range_is_refused_by_its_name(section: str, field: str, value: object) -> None:
    with pytest.raises(PlanError, match=rf"^{section}(\.{field})?(\.\w+)?: ") as refusal:
        Plan.parse(_with(section, field, value))
    assert field in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_field_of_the_sections_that_each_plan_has_has_its_range_tested() -> None:
    tested = {(section, field) for section, field, _, _ in RANGES}
    models = {name: type(value) for name, value in plan() if isinstance(value, BaseModel)}
    fields = {(name, field) for name, model in models.items() for field in model.model_fields}
    assert tested == fields - {("task", "strategy")}, "but for what no plan says"


@pytest.mark.parametrize("name", ["", "Upper", "with space", "-first", "x" * 49, "a/b", "ä"])
def test_a_name_that_could_not_be_an_id_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"^name: "):
        plan(name=name)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"cohort": {"select": 100, "goal": 101}}, r"goal \(101\) is above select \(100\): a round could never reach it"),
    ({"cohort": {"pool": 299}}, r"pool \(299\) is below select \(300\)"),
    ({"aggregation": {"rule": "median"}}, 'the median takes no weights: set weighting = "equal"'),
    (
        {"aggregation": {"rule": "median", "weighting": "equal", "partial": "examples_seen"}},
        'the median takes no weights: set partial = "full" or "refuse"',
    ),
    ({"finish": {"target": 0.9}}, 'need a metric to look at, for example metric = "accuracy"'),
    ({"finish": {"patience": 3}}, 'need a metric to look at, for example metric = "accuracy"'),
    ({"finish": {"metric": "accuracy"}}, "a metric alone never ends a run: set target, patience or both"),
    (
        {"finish": {"abandoned": 2}, "datacenter": {"data": "proxy", "patience": 3}},
        r"abandoned \(2\) is below datacenter.patience \(3\): the run would be paused before it could fall back",
    ),
    ({"cohort": {"choose": "by_examples"}}, 'counts the size of a device twice: set weighting = "equal"'),
    (
        {"cohort": {"select": 257, "goal": 257}, "aggregation": {"weight_cap": 2**20}},
        rf"weight_cap \({2**20}\) times cohort.goal \(257\) is above {MOST_WEIGHT}.*lower weight_cap",
    ),
    (
        {"task": {"learner": "a:b", "time_budget_s": 601}},
        r"time_budget_s \(601\) is above cohort.collect_s \(600\): reports would come after the deadline",
    ),
    (
        {"finish": {"metric": "accuracy", "target": 0.9, "source": "devices"}},
        "needs task.score_held_out = true: else no device reports a score",
    ),
    ({"task": {"learner": "a:b", "epochs": 1, "steps": 5}}, "set epochs or steps, not both"),
]


@pytest.mark.parametrize(("sections", "sentence"), CONTRADICTIONS)
def test_the_error_for_a_plan_that_contradicts_itself_names_the_fix(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan(**sections)


def test_repro_a_draw_by_examples_from_a_pool_of_the_cohorts_size_is_refused() -> None:
    """Every waiting device was drawn, so the choice was uniform, without a word."""
    equal = {"weighting": "equal"}
    all_of_them = plan(cohort={"choose": "by_examples", "select": 300, "pool": 300}, aggregation=equal)
    for one in (all_of_them, plan(cohort={"choose": "by_examples"}, aggregation=equal)):
        with pytest.raises(PlanError, match=r"cohort: .*draws 300 of 300 .*set cohort.pool above cohort.select"):
            chosen(one)
    assert chosen(plan(cohort={"choose": "by_examples", "pool": 301}, aggregation=equal))


@pytest.mark.parametrize("way", [None, "full"])
def test_repro_a_secure_run_takes_no_work_that_a_deadline_has_cut_short(way: str | None) -> None:
    """A coordinator could tell all devices but one that the deadline is near."""
    secure = {"max_norm": 1.0, "max_abs": 0.25}
    partial = {} if way is None else {"partial": way}
    asked = plan(secure=secure, aggregation=partial)
    with pytest.raises(PlanError, match=r'aggregation: partial = "full" .*: set aggregation.partial = "refuse"'):
        chosen(asked)
    assert chosen(plan(secure=secure, aggregation={"partial": "refuse"}))
    assert chosen(plan(aggregation=partial)), "plain rounds take it"


def test_the_same_plans_with_the_contradiction_taken_away_are_fine() -> None:
    plan(cohort={"select": 101, "goal": 101})
    plan(cohort={"pool": 300})
    plan(aggregation={"rule": "median", "weighting": "equal"})
    plan(cohort={"choose": "by_examples"}, aggregation={"weighting": "equal"})
    plan(cohort={"select": 256, "goal": 256}, aggregation={"weight_cap": 2**20})
    plan(task={"learner": "a:b", "time_budget_s": 600})
    plan(
        task={"learner": "a:b", "score_held_out": True},
        finish={"metric": "accuracy", "target": 0.9, "source": "devices"},
    )


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({**MINIMAL, "goal": 5}, "goal: there is no such field"),
        ({**MINIMAL, "cohort": {"gaol": 5}}, r"cohort\.gaol: there is no such field"),
        ({**MINIMAL, "task": {"learner": "a:b", "lr": 0.1}}, r"task\.lr: there is no such field"),
        ({"name": "x"}, "task: is required"),
        ({"task": {"learner": "a:b"}}, "name: is required"),
        ({"name": "x", "task": {}}, r"task\.learner: is required"),
        ([], "should be an object"),
        (None, "should be an object"),
        ("plan", "should be an object"),
    ],
)
def test_unknown_and_missing_fields_are_named(data: object, where: str) -> None:
    with pytest.raises(PlanError, match=where):
        Plan.parse(data)


def test_several_mistakes_are_reported_together() -> None:
    with pytest.raises(PlanError) as refusal:
        plan(cohort={"quorum": 2}, finish={"rounds": 0})
    assert "cohort.quorum" in str(refusal.value)
    assert "finish.rounds" in str(refusal.value)


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        plan().cohort.goal = 5  # type: ignore[misc]


# ---------------------------------------------------------------- TOML

TOML = """
name = "mnist"

[task]
learner = "quorate:mnist-mlp"
epochs = 1
batch_size = 10
learning_rate = 0.1

[cohort]
select = 300
goal = 256

[finish]
rounds = 20
"""


def test_a_plan_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(TOML)
    read = Plan.from_toml(file)
    assert (read.name, read.task.batch_size, read.cohort.goal, read.finish.rounds) == ("mnist", 10, 256, 20)
    assert Plan.from_toml(str(file)) == read


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"name = ", r"plan\.toml is not valid TOML: Invalid value"),
        (b"name = 'x'\nname = 'y'\n", r"is not valid TOML"),
        (b"\xff\xfe\x00", "is in UTF-16: save it as UTF-8"),
        (b"", "name: is required; task: is required"),
        (TOML.replace("goal = 256", "goal = 999").encode(), r"cohort: goal \(999\) is above select \(300\)"),
        (TOML.encode() + b"\nround = 3\n", r"finish\.round: there is no such field"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(content)
    with pytest.raises(PlanError, match=sentence):
        Plan.from_toml(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read the plan .*missing\.toml: No such file or directory"):
        Plan.from_toml(tmp_path / "missing.toml")
    with pytest.raises(PlanError, match=r"cannot read the plan .*: Is a directory"):
        Plan.from_toml(tmp_path)


# ---------------------------------------------------------------- datacenter


CENTER: dict[str, Any] = {"data": "proxy", "patience": 3}


def test_a_datacenter_section_has_defaults_and_comes_back() -> None:
    section = plan(datacenter=CENTER).datacenter
    assert section is not None
    assert (section.lease_s, section.max_s, section.wait_s, section.every) == (60, 3600, 60, None)
    assert (section.steps, section.batch_size, section.nproc, section.optimizer) == (100, 256, 1, "sgd")
    assert section.devices_back(plan().cohort) == 256
    unsaid = {name for name, field in DatacenterTask.model_fields.items() if field.exclude_if is not None}
    assert set(section.work.model_dump()) == set(DatacenterTask.model_fields) - unsaid
    assert Plan.parse(plan(datacenter=CENTER).model_dump(mode="json")) == plan(datacenter=CENTER)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"data": "proxy"}, "datacenter: set patience .* every .* or both"),
        ({"patience": 3}, "datacenter.data: is required"),
        ({**CENTER, "data": "Proxy Data"}, "datacenter.data"),
        (
            {**CENTER, "batch_size": 7, "nproc": 4, "accumulate": 2},
            r"batch_size \(7\) is below nproc times accumulate \(8\)",
        ),
        ({**CENTER, "warmup_steps": 101}, r"warmup_steps \(101\) is above steps \(100\)"),
        ({**CENTER, "max_s": 59}, r"max_s \(59\) is below lease_s \(60\)"),
        ({**CENTER, "return_devices": 217}, r"return_devices \(217\) is below the cohort's quorum \(218\)"),
        ({**CENTER, "optimizer": "adam"}, "datacenter.optimizer"),
        ({**CENTER, "colour": "blue"}, "datacenter.colour: there is no such field"),
        ({**CENTER, "every": 0}, "datacenter.every"),
        ({**CENTER, "learning_rate": INF}, "plan"),
    ],
)
def test_a_datacenter_section_that_contradicts_itself(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence if sentence != "plan" else "learning_rate|finite|plan"):
        plan(datacenter=section)


def test_a_plan_without_a_datacenter_has_no_such_section_where_it_is_written_out() -> None:
    assert set(plan().written_out) == {"name", "task", "cohort", "aggregation", "finish", "retention"}
    assert set(plan(datacenter=CENTER).written_out) == {*plan().written_out, "datacenter"}
    assert plan(datacenter=CENTER).digest != plan().digest
    assert plan(datacenter=CENTER).digest != plan(datacenter={**CENTER, "steps": 7}).digest


# ---------------------------------------------------------------- digest


def test_the_digest_is_the_plans_and_stays() -> None:
    """A golden value: it changes only when the meaning of a plan does, and devices have agreed to the old one."""
    assert plan().digest == Plan.parse(plan().model_dump(mode="json")).digest
    assert plan(cohort={"select": 300}).digest == plan().digest, "a default written out is the same plan"
    assert plan().digest == "c71770c1644e631e919cebe77ff1311251b388498cdce386d13dfe6154178c04"


OTHERS: dict[tuple[str, str], object] = {
    ("task", "learner"): "other:net",
    ("task", "learner_version"): "2",
    ("task", "epochs"): 2,
    ("task", "steps"): 7,
    ("task", "batch_size"): 33,
    ("task", "learning_rate"): 0.2,
    ("task", "mu"): 0.01,
    ("task", "max_grad_norm"): 1.0,
    ("task", "time_budget_s"): 30,
    ("task", "codec"): "float16@1",
    ("task", "averaged"): ["head.*"],
    ("task", "seed"): 1,
    ("task", "score_held_out"): True,
    ("cohort", "select"): 301,
    ("cohort", "goal"): 255,
    ("cohort", "quorum"): 0.86,
    ("cohort", "pool"): 400,
    ("cohort", "select_s"): 61,
    ("cohort", "collect_s"): 601,
    ("task", "drop_last"): True,
    ("cohort", "choose"): "by_examples",
    ("cohort", "devices"): [f"d{number}" for number in range(256)],
    ("cohort", "min_examples"): 2,
    ("cohort", "most_rounds"): 7,
    ("cohort", "apart"): 3,
    ("aggregation", "rule"): "median",
    ("aggregation", "weighting"): "equal",
    ("aggregation", "weight_cap"): 9_999,
    ("aggregation", "partial"): "refuse",
    ("aggregation", "inverse_participation"): 4,
    ("aggregation", "clip_norm"): 1.0,
    ("aggregation", "step_bits"): 8,
    ("aggregation", "statistics_range"): 2.0,
    ("aggregation", "server_optimizer"): "fedadam",
    ("aggregation", "server_learning_rate"): 0.5,
    ("finish", "rounds"): 99,
    ("finish", "metric"): "loss",
    ("finish", "source"): "hospital",
    ("finish", "better"): "lower",
    ("finish", "target"): 0.9,
    ("finish", "patience"): 3,
    ("finish", "min_delta"): 0.1,
    ("finish", "abandoned"): 3,
    ("retention", "rounds"): 1,
}
TOGETHER = {
    (section, f"{what}_{part}")
    for section, what in (("aggregation", "rule"), ("aggregation", "server_optimizer"), ("cohort", "choose"))
    for part in ("version", "parameters")
}
"""Fields that go with a value of another one only: ``test_extensions`` and ``test_selections`` have them."""


def test_the_digest_feels_every_field() -> None:
    base: dict[str, Any] = plan(
        aggregation={"weighting": "equal"}, finish={"metric": "accuracy", "target": 0.8, "patience": 9}
    ).model_dump(mode="json")
    digests = {Plan.parse(base).digest}
    for (section, field), value in OTHERS.items():
        if (section, field) == ("aggregation", "weighting"):
            value = "examples"
        changed = {**base, section: {**base[section], field: value}}
        digests.add(Plan.parse(changed).digest)
    digests.add(Plan.parse({**base, "name": "other"}).digest)
    assert len(digests) == len(OTHERS) + 2
    assert {(section, field) for section, field, _, _ in RANGES} == set(OTHERS) | TOGETHER


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("cohort", "select", "300"), ("cohort", "goal", True), ("task", "epochs", "1"), ("task", "score_held_out", 1)],
)
def test_a_text_or_a_truth_is_no_number(section: str, field: str, value: object) -> None:
    with pytest.raises(PlanError, match=rf"{section}\.{field}: "):
        plan(**{section: {field: value}})
