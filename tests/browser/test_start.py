"""A run is started from the page: its plan as a form and as text, from a file and from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
HTML = "<img src=x onerror=alert(1)>"


def text_of(page: Any) -> Any:
    return page.get_by_label("The plan as TOML")


def field(page: Any, name: str) -> Any:
    return page.get_by_role("group", name="Common fields of the plan").get_by_label(name, exact=True)


def begin(page: Any) -> Any:
    return page.get_by_role("button", name="Start the run")


def line(page: Any) -> int:
    """On which line of the plan's text the cursor is."""
    return int(text_of(page).evaluate("box => box.value.slice(0, box.selectionStart).split('\\n').length"))


@on_day(1, of=2)
def test_the_form_and_the_text_are_one_plan(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/start")
    field(page, "goal").fill("2")
    assert "goal = 2\n" in text_of(page).input_value()
    assert "# select 4, close at 3" in text_of(page).input_value(), "comments stay"
    text_of(page).fill('name = "typed"\n[task]\nlearner = "tests:typed"\n[cohort]\nselect = 7\ngoal = 5\n')
    assert [field(page, name).input_value() for name in ("name", "learner", "select", "goal")] == [
        "typed", "tests:typed", "7", "5",
    ]  # fmt: skip
    page.locator("[data-cost=round_longest_s]", has_text="11 min").wait_for()
    field(page, "mu").fill("0.01")
    field(page, "weighting").select_option("equal")
    field(page, "goal").fill("")
    assert text_of(page).input_value() == (
        'name = "typed"\n[task]\nlearner = "tests:typed"\nmu = 0.01\n[cohort]\nselect = 7\n'
        '\n[aggregation]\nweighting = "equal"\n'
    )
    text_of(page).fill("name = ")
    page.get_by_role("button", name="line 1").wait_for()
    assert field(page, "name").is_disabled()
    assert begin(page).is_disabled()


def test_mistakes_are_said_at_their_field_and_line_as_somebody_types(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/start")
    field(page, "name").fill(HTML)
    field(page, "select").fill("-1")
    named, selected = (page.get_by_role("list").get_by_text(f"{name}: ") for name in ("name", "cohort.select"))
    named.wait_for()
    selected.wait_for()
    assert (
        "greater than or equal to 1"
        in page.locator(".plan-field", has=page.get_by_label("select", exact=True)).inner_text()
    )
    assert field(page, "select").get_attribute("aria-invalid") == "true"
    assert page.locator("main img").count() == 0
    page.locator(".mistakes li", has_text="cohort.select").get_by_role("button").click()
    assert text_of(page).input_value().split("\n")[line(page) - 1].startswith("select = -1")
    assert visitor.violations() == []
    field(page, "name").fill("fine")
    field(page, "select").fill("2")
    page.get_by_text("goal (3) is above select (2)").first.wait_for()
    field(page, "goal").fill("2")
    page.locator(".mistakes li").wait_for(state="detached")
    visitor.expect("422")


def test_a_run_is_started_from_a_file_and_shown_live(visit: Visit, server: Server, tmp_path: Path) -> None:
    body, digest = model_bytes()
    file = tmp_path / f"{HTML.replace('/', '')}.safetensors"
    file.write_bytes(body)
    visitor = visit()
    page = visitor.log_in(server.key)
    page.get_by_role("link", name="Start a run").click()
    text_of(page).fill('name = "from-file"\n[task]\nlearner = "tests:from-file"\n[cohort]\nselect = 1\ngoal = 1\n')
    page.get_by_text("Choose its first model.").wait_for()
    page.get_by_label("Start from").select_option("a file of yours")
    page.get_by_label("Checkpoint file").set_input_files(file)
    page.get_by_text("It will be named from-file.").wait_for()
    cost = server.http.post(
        Route.CHECK_PLAN,
        json={
            "plan": {"name": "from-file", "task": {"learner": "a:b"}, "cohort": {"select": 1, "goal": 1}},
            "init": digest,
        },
    ).json()["cost"]
    assert page.locator("[data-cost]").count() == len(cost) == 9
    begin(page).click()
    page.get_by_role("heading", name="from-file", exact=True).wait_for()
    assert page.evaluate("location.hash") == "#/runs/from-file"
    (first,) = server.http.get(Route.RUN_CHECKPOINTS.format(run="from-file")).json()
    assert (first["digest"], first["origin"]) == (digest, file.name)
    done = [row["action"] for row in server.http.get(Route.AUDIT, params={"limit": 10_000}).json()]
    assert {"checkpoint.put", "run.create", "run.create done"} <= set(done)
    visitor.go("#/runs/from-file/checkpoints")
    page.get_by_text(file.name).wait_for()
    assert page.locator("main img").count() == 0


@on_day(0, of=2)
def test_the_statistics_of_a_first_model_are_typed_as_run_create_takes_them(
    visit: Visit, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(model_bytes({"w": np.zeros(3, np.float32), "m": np.zeros(3, np.float32)})[0])
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/start")
    text_of(page).fill('name = "stated"\n[task]\nlearner = "tests:stated"\n[cohort]\nselect = 1\ngoal = 1\n')
    page.get_by_label("Start from").select_option("a file of yours")
    page.get_by_label("Checkpoint file").set_input_files(file)
    page.get_by_label("statistics").fill("v >= 0")
    page.get_by_text("no tensor of the model matches 'v'").wait_for()
    assert begin(page).is_disabled()
    visitor.expect("422")
    page.get_by_label("statistics").fill("m>=0")
    page.get_by_text("It will be named stated.").wait_for()
    assert visitor.violations() == []
    begin(page).click()
    page.get_by_role("heading", name="stated", exact=True).wait_for()
    visitor.go("#/runs/stated/checkpoints")
    page.get_by_role("link", name="Start a new run from here, version 0").first.click()
    page.get_by_text("these tensors are statistics, not parameters: m (never below 0)").wait_for()


def test_a_broken_file_is_refused_in_a_sentence(visit: Visit, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"not a model")
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/start")
    page.get_by_label("Start from").select_option("a file of yours")
    page.get_by_label("Checkpoint file").set_input_files(file)
    page.get_by_text("This is not a checkpoint").wait_for()
    assert begin(page).is_disabled()
    visitor.expect("422")


def test_a_run_is_started_from_a_checkpoint_whose_line_stays(visit: Visit, server: Server) -> None:
    run = server.create_run("older", finish={"rounds": 1})
    device = server.device(run)
    work = device.wait_for_work()
    device.started(work).raise_for_status()
    device.put(work, device.body(work)).raise_for_status()
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(f"#/runs/{run}/checkpoints")
    page.get_by_role("link", name="Start a new run from here, version 1").wait_for()
    before = server.http.get(Route.RUN_CHECKPOINTS.format(run=run)).json()
    page.get_by_role("link", name="Start a new run from here, version 1").click()
    page.get_by_text("a line never forks").wait_for()
    assert text_of(page).input_value().startswith('name = "older"\n')
    assert "null" not in text_of(page).input_value()
    field(page, "rounds").fill("3")
    page.get_by_text("It will be named older-2.").wait_for()
    begin(page).click()
    page.get_by_role("heading", name="older-2", exact=True).wait_for()
    (first,) = server.http.get(Route.RUN_CHECKPOINTS.format(run="older-2")).json()
    assert first["digest"] == before[1]["digest"]
    assert first["origin"] == "older, version 1"
    assert server.http.get(Route.RUN.format(run="older-2")).json()["rounds_wanted"] == 3
    assert server.http.get(Route.RUN_CHECKPOINTS.format(run=run)).json() == before


def test_a_viewer_starts_nothing_and_is_told_why(visit: Visit, server: Server) -> None:
    run = server.create_run("only-seen")
    key = server.http.post(Route.KEYS, json={"role": "viewer"}).raise_for_status().json()
    visitor = visit()
    page = visitor.log_in(key["text"])
    page.get_by_text("To start a run you need the role operator.").wait_for()
    assert page.get_by_role("link", name="Start a run").count() == 0
    visitor.go(f"#/runs/{run}/checkpoints").get_by_text("To start a new run from one of them").wait_for()
    assert page.get_by_role("link", name="Start a new run").count() == 0
    visitor.go("#/start").get_by_text("To start a run you need the role operator or owner.").wait_for()
    assert visitor.violations() == []


def test_an_operator_of_some_runs_is_told_that_a_name_is_outside(visit: Visit, server: Server) -> None:
    key = server.http.post(Route.KEYS, json={"role": "operator", "scope": "ward-*"}).raise_for_status().json()
    visitor = visit()
    visitor.log_in(key["text"])
    page = visitor.go("#/start")
    field(page, "name").fill("other")
    page.get_by_text("The run would be named other, which is outside of your scope.").wait_for()
    field(page, "name").fill("ward-7")
    page.get_by_text("outside of your scope").wait_for(state="detached")
    visitor.expect("403")
