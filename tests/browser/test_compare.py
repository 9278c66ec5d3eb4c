"""Runs compared in the browser: the address keeps the view, and the chart's values and files are those of the API."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_rounds import until
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
ROUNDS = 2
SCORES = {"seeds-1": (0.1, 0.5, 0.7), "seeds-2": (0.3, 0.6, 0.9), "slower": (0.1, 0.2, 0.4)}
TASKS = {"seeds-1": {"seed": 1}, "seeds-2": {"seed": 2}, "slower": {"seed": 1, "learning_rate": 0.01}}


@on_day(1, of=2)
def test_without_runs_it_says_the_next_command(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/compare")
    page.get_by_text("There are no runs yet.").wait_for()
    assert page.get_by_text("quorate run create examples/mnist-small.toml").count()


@pytest.fixture(scope="module")
def runs(server: Server) -> list[str]:
    """Three runs of two rounds, two of which differ in the seed only; each checkpoint is scored."""
    device = server.device("compared")
    for name, scores in SCORES.items():
        task = {"learner": "tests:compared", **TASKS[name]}
        run = server.create_run(name, task=task, finish={"rounds": ROUNDS}, cohort={"select_s": 600})
        for _ in range(ROUNDS):
            work = device.wait_for_work()
            device.started(work).raise_for_status()
            device.put(work, device.body(work)).raise_for_status()
        line = Route.RUN_CHECKPOINTS.format(run=run)
        until(lambda line=line: len(server.http.get(line).json()) == ROUNDS + 1)
        for row in server.http.get(line).json():
            score = {"examples": 50, "metrics": {"accuracy": scores[row["version"]]}}
            report = {"version": row["version"], "digest": row["digest"], "source": "test", "score": score}
            server.http.post(Route.METRICS.format(run=run), json=report).raise_for_status()
    return list(SCORES)


@pytest.fixture(scope="module", params=["dark", "light"])
def visitor(request: pytest.FixtureRequest, chromium: Any, server: Server, runs: list[str]) -> Iterator[Visitor]:
    found = Visitor(chromium, server.url, color_scheme=request.param, reduced_motion="reduce")
    found.log_in(server.key)
    yield found
    found.close()


def address(runs: list[str], *more: str) -> str:
    return "#/compare?" + "&".join([f"runs={','.join(runs)}", *more])


def cells(page: Any, region: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=region).locator("tbody tr").all()
    return [[str(text) for text in row.locator("td").all_inner_texts()] for row in rows]


def test_all_runs_are_shown_at_first_and_the_table_is_that_of_the_api(
    visit: Visit, server: Server, runs: list[str]
) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.page
    page.get_by_role("link", name="Compare runs").click()
    page.get_by_role("img", name="accuracy of 3 runs against round").wait_for()
    assert all(name in page.url for name in runs), "the address names them"
    page.get_by_text("A band is the range of runs that differ in the seed only").wait_for()
    page.get_by_role("button", name="Show the table").click()
    shown = cells(page, "accuracy of 3 runs against round")
    told = {run: server.http.get(Route.METRICS.format(run=run)).json() for run in runs}
    expected = {(run, str(row["version"]), f"{row['value']:g}") for run, rows in told.items() for row in rows}
    assert {tuple(row[:3]) for row in shown} == expected
    assert len(shown) == len(expected) == 9
    assert {tuple(row[:3]) for row in cells(page, "Fields of the plans that differ")} >= {
        ("task.learning_rate", "0.01", "0.1"),
    }  # fmt: skip
    assert {"task.seed", "name"} <= {row[0] for row in cells(page, "Fields of the plans that differ")}
    assert {row[0]: row[3] for row in cells(page, "Where each run stands")} == {
        run: f"{scores[-1]:g}" for run, scores in SCORES.items()
    }


def untick(page: Any, name: str) -> None:
    """The box changes with the address, a moment after the click: Playwright's own ``uncheck`` does not wait for it."""
    box = page.get_by_role("checkbox", name=name)
    box.click()
    page.wait_for_function("box => !box.checked", arg=box.element_handle())


def test_the_address_shows_the_same_after_a_reload_and_to_somebody_else(
    visit: Visit, server: Server, runs: list[str]
) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(address(runs))
    untick(page, "slower")
    page.get_by_role("combobox", name="Against").select_option("bytes received")
    page.get_by_role("combobox", name="Smoothing").select_option("0.8")
    page.get_by_role("combobox", name="Scale").select_option("log")
    untick(page, "Seeds as a band")
    label = "accuracy of 2 runs against bytes received"
    page.get_by_role("img", name=label).wait_for()
    page.get_by_role("button", name="Show the table").click()
    shown, kept = cells(page, label), page.evaluate("location.hash")
    assert {row[0] for row in shown} == {"seeds-1", "seeds-2"}
    page.reload()
    other = visit()
    other.log_in(server.key)
    other.go(kept)
    for seen in (page, other.page):
        seen.get_by_role("img", name=label).wait_for()
        assert not seen.get_by_role("checkbox", name="slower").is_checked()
        assert not seen.get_by_role("checkbox", name="Seeds as a band").is_checked()
        chosen = [seen.get_by_role("combobox", name=name).input_value() for name in ("Against", "Smoothing", "Scale")]
        assert chosen == ["bytes", "0.8", "log"]
        seen.get_by_role("button", name="Show the table").click()
        assert cells(seen, label) == shown


def test_repro_changes_that_come_faster_than_the_page_is_drawn_are_all_in_the_address(
    visitor: Visitor, runs: list[str]
) -> None:
    """Each was made from what was drawn, and took back the one before."""
    page = visitor.go(address(runs))
    page.get_by_role("img", name="accuracy of 3 runs against round").wait_for()
    page.evaluate(
        """names => [...document.querySelectorAll('.compare label')]
            .filter(label => names.includes(label.innerText.trim()))
            .forEach(label => label.querySelector('input').click())""",
        ["slower", "seeds-1", "Seeds as a band"],
    )
    assert page.evaluate("location.hash") == "#/compare?runs=seeds-2&bands=off"
    page.get_by_role("img", name="accuracy of 1 run against round").wait_for()


def test_the_values_and_the_picture_are_saved_as_files(visitor: Visitor, server: Server, runs: list[str]) -> None:
    page = visitor.go(address(runs, "x=bytes"))
    page.get_by_role("img", name="accuracy of 3 runs against bytes received").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save CSV").click()
    assert saved.value.suggested_filename == "accuracy-against-bytes-received.csv"
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    received = [row["bytes_in"] for row in server.http.get(Route.ROUNDS.format(run="slower")).json()]
    mine = [
        (row["round"], float(row["accuracy"]), int(row["bytes_received"])) for row in rows if row["run"] == "slower"
    ]
    assert mine == [("0", 0.1, 0), ("1", 0.2, received[0]), ("2", 0.4, received[0] + received[1])]
    assert len(rows) == 9
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save PNG").click()
    picture = saved.value.path().read_bytes()
    assert saved.value.suggested_filename == "accuracy-against-bytes-received.png"
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(picture[16:20], "big")
    assert width == 2 * page.locator(".canvas").evaluate("box => box.clientWidth"), "twice as fine as the screen"
    assert len(picture) > 5000, "it is not empty"


def test_what_cannot_be_shown_is_said(visit: Visit, server: Server, runs: list[str]) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(address([*runs, "gone"], "x=virtual"))
    page.get_by_text("1 run of this address is not in your scope: gone.").wait_for()
    page.get_by_text("Only simulated runs have virtual time").wait_for()
    page.get_by_role("combobox", name="Against").select_option("wall time")
    page.get_by_role("img", name="accuracy of 3 runs against wall time").wait_for()
    page.get_by_role("button", name="Choose none").click()
    page.get_by_text("Choose the runs to compare.").wait_for()
    page.get_by_role("checkbox", name="slower").press("Space")
    page.get_by_text("Choose another run.").wait_for()
    page.get_by_label("Name contains").fill("seeds")
    assert page.get_by_role("checkbox", name="slower").count() == 0


def test_axe_finds_nothing_and_a_phone_shows_all_of_it(visitor: Visitor, runs: list[str]) -> None:
    page = visitor.go(address(runs))
    page.get_by_role("img", name="accuracy of 3 runs against round").wait_for()
    assert visitor.violations() == []
    page.get_by_role("button", name="Show the table").click()
    assert visitor.violations() == []
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        visitor.fits()
    finally:
        page.set_viewport_size({"width": 1400, "height": 900})
        page.get_by_role("button", name="Show the chart").click()
