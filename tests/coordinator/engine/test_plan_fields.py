"""What every field of a plan must do, so that a new one is documented, checked and agreed to.

The fields are those of the sections of ``scripts.plan_page``: one that is added there is tested by that. Where a field
makes sense only beside others, ``PLANS`` must have a plan with them.

A section or field that a plan does not name is absent from its canonical text, and so is one that it names with its
default: a field that a later version adds changes the digest of no plan.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model
from pydantic_core import PydanticUndefined

from client_sdk.protocol.devices import Assignment, CheckpointRef
from client_sdk.protocol.field_docs import field_docs
from client_sdk.protocol.wire import canonical, named
from client_sdk.protocol.workers import Lease
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from coordinator.engine.selection import SELECTIONS
from scripts.plan_page import PAGE, SECTIONS

Body = dict[str, Any]
FIELDS = [
    (section, field)
    for section, model in SECTIONS.items()
    for field in model.model_fields
    if (section, field) != ("task", "strategy")  # the coordinator's, which no plan says
]
EVERY_FIELD = pytest.mark.parametrize(("section", "field"), FIELDS, ids=lambda part: str(part))

TASK = {"task": {"learner": "clinic:risk"}}
SECURE = {"max_norm": 1.0, "max_abs": 0.25}
FAST = {"profile": "fast", "drop": 20, "corrupt": 0.05, "sigma": 64, "eta": 30}
PRIVATE = {"cohort": {"most_rounds": 5}, "aggregation": {"weighting": "equal"}}
MASKED = {"mechanism": "distributed"}
PLANS: list[Body] = [
    TASK,
    {**TASK, "aggregation": {"rule": "clinic:middle", "rule_version": "1", "rule_parameters": {"lean": 0.1}}},
    {**TASK, "aggregation": {"server_optimizer": "clinic:half-way", "server_optimizer_version": "1"}},
    {**TASK, "aggregation": {"server_optimizer": "fedadam"}},
    {**TASK, "cohort": {"choose": "clinic:turn", "choose_version": "1", "choose_parameters": {"lean": 0.1}}},
    {**TASK, "cohort": {"choose": "oort"}},
    {**TASK, "cohort": {"select": 2, "goal": 1}},
    {**TASK, "aggregation": {"weighting": "equal"}},
    {**TASK, "finish": {"metric": "accuracy", "target": 0.9, "patience": 3}},
    {**TASK, "datacenter": {"data": "proxy", "patience": 2}},
    {**TASK, "datacenter": {"data": "proxy", "every": 3}},
    {**TASK, "datacenter": {"data": "proxy", "every": 3, "nproc": 12, "sync_every": 8}},
    {**TASK, "secure": SECURE},
    {**TASK, "secure": {**SECURE, "first_signature": "ab" * 64}},
    {**TASK, "secure": {**SECURE, **FAST}},
    {**TASK, "cohort": {"goal": 200}, "secure": SECURE},
    {**TASK, "aggregation": {"weighting": "examples"}, "secure": SECURE},
    {**TASK, "aggregation": {"weighting": "equal"}, "secure": {**SECURE, "minimum_cohort": 100}},
    {"task": {**TASK["task"], "mu": 0.5}, "schedule": {"server_learning_rate": {"shape": "linear"}}},
    {**TASK, "schedule": {"learning_rate": {"warmup": 3}}},
    {**TASK, "strategy": {"name": "clinic:patient", "version": "1", "parameters": {"warm": 0.1}}},
    {**TASK, "strategy": {"name": "fednova"}},
    {**TASK, "buffered": {"concurrency": 100}},
    {**TASK, **PRIVATE, "privacy": {"clip": 0.5, "noise": 2.0, "delta": 1e-6}},
    {**TASK, **PRIVATE, "privacy": {"clip": 0.5, "epsilon": 2.0, "delta": 1e-6}},
    {
        **TASK,
        **PRIVATE,
        "secure": SECURE,
        "privacy": {"mechanism": "distributed", "clip": 1.0, "noise": 2.0, "delta": 1e-6},
    },
]
"""Plans in which fields make sense: each field can be changed by itself in one of them, at least."""
TEXTS = ("clinic:other", "clinic:other@1", "float16@1", "loss", "other", "1.5")
WRONG: tuple[Any, ...] = ("text", "3", 1.5, 3, True, None, [], ["text"], [3], {}, {"text": "text"}, {"text": True})
"""Of every type that JSON has; each field takes some."""


def parsed(body: Body) -> Plan:
    return Plan.parse({"name": "fields", **body})


def changed(body: Body, section: str, field: str, value: object) -> Body:
    return {**body, section: {**body.get(section, {}), field: value}}


def text(plan: Plan) -> str:
    """The canonical text."""
    return canonical(named(plan)).decode()


def told(plan: Plan, section: str, field: str) -> str:
    """What the canonical text says of the field; empty where it leaves it out."""
    body = json.loads(text(plan)).get(section, {})
    return json.dumps(body[field]) if field in body else ""


def default_of(section: str, field: str) -> Any:
    """As JSON; PydanticUndefined for a field that is required."""
    value = SECTIONS[section].model_fields[field].get_default(call_default_factory=True)
    return list(value) if isinstance(value, tuple) else value


def schema(section: str, field: str) -> list[Body]:
    """What the field may be, each as JSON schema."""
    found = _definitions()[SECTIONS[section].__name__][field]
    choices: list[Body] = found.get("anyOf", [found])
    return [
        {"type": "object", "of": _definitions()[one["$ref"].split("/")[-1]]} if "$ref" in one else one
        for one in choices
    ]


@cache
def _definitions() -> Body:
    definitions: Body = Plan.model_json_schema()["$defs"]
    return {name: one["properties"] for name, one in definitions.items() if "properties" in one}


def row(section: str, field: str) -> tuple[str, str, str]:
    """(range, default, meaning) of the reference of plans."""
    (text,) = (part for part in PAGE.read_text("utf-8").split("\n## ") if part.startswith(f"[{section}]\n"))
    own = text.partition("\n### ")[0]  # then come the tables of its parts
    (line,) = (line for line in own.splitlines() if line.startswith(f"| `{field}` |"))
    _, _, values, default, meaning, _ = re.split(r" ?(?<!\\)\| ?", line)
    return values, default, meaning


def bodies(section: str) -> Iterator[Body]:
    """The plans that can have the section by itself."""
    optional = Plan.model_fields[section].default is None
    return (body for body in PLANS if section in body or not optional)


def bounds(section: str, field: str) -> dict[str, float]:
    """The numbers behind the signs of the documented range."""
    found = re.findall(r"([≥>≤<]) (\S+)", row(section, field)[0])
    return {sign: float(number) for sign, number in found}


def others(section: str, field: str) -> Iterator[object]:
    """Values to be tried, by the field's type."""
    for choice in schema(section, field):
        match choice:
            case {"enum": values}:
                yield from values
            case {"type": "integer" | "number" as kind}:
                low = float(choice.get("minimum") or choice.get("exclusiveMinimum") or 0)
                high = float(choice.get("maximum") or 1000)
                low, high = (int(low), int(high)) if kind == "integer" else (low, high)
                yield from (low, low + 1, low + 2, low + 7, high)
                yield from () if kind == "integer" else (low + 0.25, low + 0.5)
            case {"type": "boolean"}:
                yield from (True, False)
            case {"type": "array", "items": {"type": "integer"}}:
                yield [40]
            case {"type": "array"}:
                yield from (["head.*"], ["d1"])
            case {"type": "object", "of": _}:
                yield from ({}, {"shape": "linear"}, {"last": 0.5, "warmup": 2}, {"lowest": 0.1, "highest": 2.0})
            case {"type": "object"}:
                declared = {name for rule in RULES.values() for name in rule.parameters}
                declared |= {name for optimizer in SERVER_OPTIMIZERS.values() for name in optimizer.parameters}
                declared |= {name for selection in SELECTIONS.values() for name in selection.parameters}
                yield from ({name: 0.25} for name in sorted(declared))
            case {"type": "null"}:
                yield None
            case _:
                yield from (*choice.get("built_in", ()), *TEXTS)


def settings(section: str, field: str) -> Iterator[tuple[Plan, Plan]]:
    """Plans that make sense, and each with another value of the field; or, as the profile of secure rounds decides what
    else is set, two of the plans as they are."""
    found = list(_alone(section, field))
    yield from found or itertools.combinations(map(parsed, bodies(section)), 2)


def _alone(section: str, field: str) -> Iterator[tuple[Plan, Plan]]:
    for body in bodies(section):
        plan = parsed(body)
        for value in others(section, field):
            try:
                other = parsed(changed(body, section, field, value))
            except PlanError:
                continue
            if getattr(getattr(other, section), field) != getattr(getattr(plan, section), field):
                yield plan, other


def test_every_section_is_one_of_the_page() -> None:
    assert set(Plan.model_fields) == {"name", *SECTIONS}


@EVERY_FIELD
def test_a_field_is_described_with_its_range_and_its_default(section: str, field: str) -> None:
    values, default, meaning = row(section, field)
    description = " ".join(field_docs(SECTIONS[section])[field].split())
    assert len(description) > 10
    assert description[-1] in ".)`"
    assert meaning == description.replace("``", "`").replace("|", "\\|")
    assert values
    info = SECTIONS[section].model_fields[field]
    if info.is_required():
        assert default == "required"
    else:
        expected = info.get_default(call_default_factory=True)
        shown = None if default == "none" else json.loads(default.strip("`"))
        assert shown == (list(expected) if isinstance(expected, tuple) else expected)


@EVERY_FIELD
def test_a_value_beyond_the_documented_range_is_refused(section: str, field: str) -> None:
    body, whole = next(bodies(section)), {choice.get("type") for choice in schema(section, field)} & {"integer"}
    step: float = 1 if whole else 1e-6
    beyond: list[object] = []
    for sign, number in bounds(section, field).items():
        outside = {"≥": number - step, ">": number, "≤": number + max(step, number * 1e-9), "<": number}[sign]
        beyond.append(math.ceil(outside) if whole else outside)
    if "number" in {choice.get("type") for choice in schema(section, field)}:
        beyond += [math.inf, -math.inf, math.nan]
    values = row(section, field)[0]
    if values.startswith("`"):
        beyond += ["none of them", ""]
    for value in beyond:
        with pytest.raises(PlanError, match=rf"^{section}(\.{field})?: "):
            parsed(changed(body, section, field, value))


@EVERY_FIELD
def test_a_value_of_a_wrong_type_is_refused_in_one_sentence_that_names_the_field(section: str, field: str) -> None:
    body, choices = next(bodies(section)), schema(section, field)
    model: type[BaseModel] = SECTIONS[section]
    allowed = {_of_items(choice) for choice in choices}
    refused = [value for value in WRONG if not any(_is(value, kind) for kind in allowed)]
    assert len(refused) >= 5
    assert field in model.model_fields
    for value in refused:
        with pytest.raises(PlanError, match=rf"^{section}\.{field}(\.\w+)?: \S") as refusal:
            parsed(changed(body, section, field, value))
        sentence = str(refusal.value)
        assert "; " not in sentence
        assert "\n" not in sentence


def _of_items(choice: Body) -> str:
    whole = choice.get("items", {}).get("type") == "integer"
    return "integers" if whole else str(choice.get("type"))


def _is(value: object, kind: str) -> bool:
    """Whether this may be a value of the type; a whole number is a number too."""
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
    }
    if kind == "integers":
        return value in ([], [3])
    if kind == "array":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if kind == "object":
        return value == {}
    return isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))


@EVERY_FIELD
def test_a_plan_that_sets_it_reads_back_alike_and_has_another_digest(section: str, field: str) -> None:
    pairs = [pair for pair in settings(section, field) if len({told(plan, section, field) for plan in pair}) == 2]
    assert pairs, f"no plan of PLANS takes another value of {section}.{field}: add one in which it makes sense"
    for plan, other in pairs:
        assert other.digest != plan.digest
        assert hashlib.sha256(text(other).encode()).hexdigest() == other.digest
        for body in (json.loads(text(other)), other.written_out):
            assert Plan.parse(body) == other
            assert text(Plan.parse(body)) == text(other)


@EVERY_FIELD
def test_a_field_that_a_plan_does_not_name_is_absent_and_so_is_its_default(section: str, field: str) -> None:
    default, checked = default_of(section, field), 0
    for body in bodies(section):
        if field in body.get(section, {}):
            assert told(parsed(body), section, field), "it is named, with another value than its default"
            continue
        checked += 1
        assert told(parsed(body), section, field) == ""
        explicit = parsed(changed(body, section, field, default))
        assert text(explicit) == text(parsed(body))
        assert explicit.digest == parsed(body).digest
    assert checked or default is PydanticUndefined


def test_the_canonical_text_has_what_is_named_and_nothing_else() -> None:
    for body in PLANS:
        assert json.loads(text(parsed(body))) == {"name": "fields", **body}
    empty = {section: {} for section, model in SECTIONS.items() if Plan.model_fields[section].default is not None}
    assert json.loads(text(parsed({**empty, **TASK}))) == {"name": "fields", **TASK}


def test_a_section_and_fields_of_a_later_version_change_no_digest() -> None:
    """Of every kind of default, in every section."""
    more: Body = {
        "later": (int, 7),
        "table": (dict[str, float], Field(default_factory=dict)),
        "none": (str | None, None),
    }
    sections: Body = {}
    for section, model in SECTIONS.items():
        later, info = create_model(model.__name__, __base__=model, **more), Plan.model_fields[section]
        if info.is_required():
            sections[section] = (later, ...)
        else:
            sections[section] = (later | None, None) if info.default is None else (later, later())
    added = create_model("Added", **more)
    version = create_model("Plan", __base__=Plan, **sections, added=(added, added()), other=(added | None, None))
    for body in PLANS:
        assert version.parse({"name": "fields", **body}).digest == parsed(body).digest
    used = {**TASK, "cohort": {"later": 8}}, {**TASK, "added": {"later": 8}}, {**TASK, "other": {}}
    assert len({version.parse({"name": "fields", **body}).digest for body in (TASK, *used)}) == 4


def test_a_task_is_sent_as_it_is_named() -> None:
    """A device refuses fields that it does not know, and may be older than its coordinator."""
    plan = parsed({**TASK, "datacenter": {"data": "proxy", "every": 2, "steps": 7}})
    assert plan.datacenter is not None
    checkpoint = CheckpointRef(version=0, digest="0" * 64, bytes=1)
    given: Body = {"run": "r", "round": 1, "attempt": 1, "checkpoint": checkpoint, "plan_digest": plan.digest}
    assignment = Assignment(**given, device="d", task=plan.task, report_within_s=1, max_update_bytes=1)
    work = Lease(
        **given, fence=1, worker="w", task=plan.task, datacenter=plan.datacenter.work, lease_s=1, heartbeat_s=1,
        within_s=1, max_result_bytes=1,
    )  # fmt: skip
    for message in (assignment, work):
        sent = json.loads(message.model_dump_json())
        assert sent["task"] == TASK["task"]
        assert sent.get("datacenter", {"data": "proxy", "steps": 7}) == {"data": "proxy", "steps": 7}
        assert type(message).model_validate(sent) == message
