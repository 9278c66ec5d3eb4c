"""``quorate report``: figures of a private run's log, signed by its coordinator; no word of it can be changed."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from client_sdk.identity import DeviceKey
from client_sdk.privacy.accounting import epsilon_of, rho_of
from client_sdk.protocol.privacy import AllowSpending, CreateLedger
from client_sdk.protocol.privacy_report import PrivacyReport, PrivateRound, ReportedLedger, SignedReport
from coordinator.cli import app
from coordinator.commands import report as command
from coordinator.commands.report_pages import PAGES, BadReport, read
from coordinator.key_file import pem_of
from coordinator.runtime.insight import privacy_report
from coordinator.runtime.insight.privacy_report import signed_part
from coordinator.store.memory import MemoryStore
from coordinator.verify import verify
from coordinator.verify.chains import parsed
from tests.coordinator.world import World

KEY = DeviceKey(bytes(32))
PRIVATE: dict[str, Any] = {
    "cohort": {"most_rounds": 4},
    "aggregation": {"weighting": "equal"},
    "privacy": {"clip": 1.5, "noise": 2.0, "delta": 1e-5},
}


@pytest.fixture
def world() -> World:
    return World(store=MemoryStore(audit_signer=KEY))


@pytest.fixture
def signed(world: World) -> SignedReport:
    """Of three rounds of a run that goes on, and one update that was late."""
    world.create(**PRIVATE)
    for number in (1, 2, 3):
        world.play_round(number)
    world.check_in()
    return made(world)


def made(world: World, run: str = "marks") -> SignedReport:
    return world.coordinator.insight.privacy_reports.of_run(run)


def quorate(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", *arguments])
    return done.exit_code, done.output


def counts_of(world: World) -> dict[str, list[int]]:
    """Device -> the rounds that have its update, from the store."""
    found: dict[str, list[int]] = {}
    for number in (1, 2, 3):
        for item in world.store.contributions("marks", number):
            found.setdefault(item.device, []).append(number)
    return found


def test_it_has_the_figures_of_the_log(world: World, signed: SignedReport) -> None:
    report, counts = signed.report, counts_of(world)
    most = max(map(len, counts.values()))
    assert sum(times * devices for times, devices in report.rounds_of_a_device.items()) == 9
    assert max(report.rounds_of_a_device) == most
    assert (report.rho, report.epsilon) == (rho_of(2.0, most), epsilon_of(rho_of(2.0, most), 1e-5))
    assert report.epsilon < report.epsilon_planned == epsilon_of(rho_of(2.0, 4), 1e-5)
    gaps = [after - before for rounds in counts.values() for before, after in pairwise(rounds)]
    assert report.least_apart == min(gaps, default=None)
    assert [(one.round, one.status, one.selected, one.counted) for one in report.rounds] == [
        (number, "committed", 4, 3) for number in (1, 2, 3)
    ], "a round under way is left out"
    line = world.store.checkpoints("marks")
    assert [report.first_model, *(one.checkpoint for one in report.rounds)] == [made.digest for made in line]
    assert (report.clips[0].clip, report.noise, report.delta, report.most_rounds) == (1.5, 2.0, 1e-5, 4)
    assert report.plan == world.coordinator.core.log("marks").row.plan_digest


def test_its_view_in_the_run_says_the_same(world: World, signed: SignedReport) -> None:
    shown = world.coordinator.operators.run("marks").privacy
    assert shown is not None
    assert (shown.epsilon, shown.epsilon_planned) == (signed.report.epsilon, signed.report.epsilon_planned)


def test_verify_takes_the_link_that_it_names(world: World, signed: SignedReport) -> None:
    world.play_round(4)
    assert list(verify(world.store, world.blobs, heads=[parsed(signed.report.log)])) == []
    run, seq, link = signed.report.log.split(":")
    forged = f"{run}:{seq}:{'0' * 64 if link[0] != '0' else '1' * 64}"
    assert list(verify(world.store, world.blobs, heads=[parsed(forged)])) != []


def test_it_has_the_ledger_and_owners_words_for_those_who_see_all_runs(world: World) -> None:
    world.coordinator.ledgers.create(CreateLedger(ledger="phones", epsilon=9.0, delta=1e-5), "k1")
    world.create(**{**PRIVATE, "privacy": {**PRIVATE["privacy"], "ledger": "phones"}})
    world.play_round(1)
    world.create(**PRIVATE, name="other")
    allowed = AllowSpending(spent_in="run:other", because="the officer has agreed")
    world.coordinator.ledgers.allow("phones", allowed, "k1")
    found = made(world).report
    cost = rho_of(2.0, 1)
    assert found.ledger == ReportedLedger(
        name="phones", budget=9.0, spent=epsilon_of(cost, 1e-5), devices=3, near=0, runs=1, words=1,
        said=("run:other: the officer has agreed",),
    )  # fmt: skip
    less = world.coordinator.insight.privacy_reports.of_run("marks", everything=False)
    assert less.report == found.model_copy(update={"ledger": found.ledger.model_copy(update={"said": ()})})
    assert read(PAGES[".md"](less)) == less
    assert "1 for devices that have lost something by another ledger" in PAGES[".html"](less)


def test_no_device_is_named(world: World, signed: SignedReport) -> None:
    for write in PAGES.values():
        page = write(signed)
        assert not [row.device for row in world.rows if row.device in page]
    assert not [row.device for row in world.rows if row.device in signed_part(signed.report).decode()]


@pytest.mark.parametrize("ending", PAGES)
def test_a_page_has_the_whole_report_and_nothing_of_it_can_be_changed(ending: str, signed: SignedReport) -> None:
    page = PAGES[ending](signed)
    assert read(page) == signed
    for place in range(0, len(page) - 1, max(1, len(page) // 60)):
        if page[place].isalnum():
            other = "7" if page[place] != "7" else "8"
            with pytest.raises(BadReport):
                read(page[:place] + other + page[place + 1 :])


def test_json_in_another_layout_is_the_same_report_and_more_of_it_is_not(signed: SignedReport) -> None:
    content = signed.model_dump(mode="json")
    assert read(json.dumps(content, sort_keys=True)) == signed
    with pytest.raises(BadReport, match="something else"):
        read(json.dumps({**content, "report": {**content["report"], "epsilon_really": 0.1}}))


@pytest.mark.parametrize("ending", [".md", ".html"])
def test_names_are_text_and_not_markup(ending: str, signed: SignedReport) -> None:
    report = signed.report.model_copy(update={"name": "<script>x</script> | **bold** `code` -->"})
    again = SignedReport(report=report, key=KEY.public_hex, signature=KEY.sign(signed_part(report)).hex())
    page = PAGES[ending](again)
    assert "<script>" not in re.sub(r"\\(.)", "", page)
    assert page.count("-->") == 1
    assert read(page) == again


@pytest.mark.parametrize("ending", [".md", ".html"])
def test_an_owners_word_is_one_line_that_adds_no_paragraph(ending: str, signed: SignedReport) -> None:
    report, lines = signed.report, len(PAGES[ending](signed).splitlines())
    ledger = report.ledger.model_copy(update={"said": ("old: agreed\n\nEpsilon is 0.01.\n===\u202e",)})
    report = report.model_copy(update={"ledger": ledger})
    page = PAGES[ending](SignedReport(report=report, key=KEY.public_hex, signature=KEY.sign(signed_part(report)).hex()))
    assert "\u202e" not in page
    assert [line for line in page.splitlines() if line.startswith(("Epsilon", "="))] == []
    assert len(page.splitlines()) - lines <= (2 if ending == ".md" else 3), "a list of one item"


def test_json_that_says_a_figure_twice_is_refused(signed: SignedReport) -> None:
    page = PAGES[".json"](signed).replace('"epsilon":', '"epsilon": 0.01, "epsilon":', 1)
    assert SignedReport.model_validate(json.loads(page)) == signed, "the later one counts"
    with pytest.raises(BadReport):
        read(page)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_of_more_rounds_than_are_read_at_once_has_them_all(
    at_once: int, world: World, signed: SignedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The updates of 10,000 rounds of 256 devices took 1.3 GB; 200 rounds at a time take 25 MB."""
    monkeypatch.setattr(privacy_report, "_AT_ONCE", at_once)
    assert made(world).report == signed.report.model_copy(update={"made_at": made(world).report.made_at})
    assert len(signed.report.rounds) == 3


def test_another_key_signs_another_report(signed: SignedReport) -> None:
    other = DeviceKey(bytes([1]) * 32)
    with pytest.raises(BadReport, match="signature"):
        read(PAGES[".json"](signed.model_copy(update={"key": other.public_hex})))


def test_a_run_without_privacy_and_one_that_does_not_exist_have_none(world: World) -> None:
    world.create()
    with world.refuses("conflict", r"has no section \[privacy\]"):
        made(world)
    with world.refuses("unknown-run", "there is no run 'other'"):
        made(world, "other")


def test_a_run_in_which_nobody_has_counted_has_lost_nothing(world: World) -> None:
    world.create(**PRIVATE)
    report = made(world).report
    assert (report.epsilon, report.rounds_of_a_device, report.least_apart, report.rounds) == (0.0, {}, None, ())
    assert read(PAGES[".md"](made(world))).report.epsilon == 0.0


def test_the_command_writes_pages_and_verifies_them(
    tmp_path: Path, signed: SignedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SimpleNamespace(privacy_report=lambda run: signed)
    monkeypatch.setattr(command, "asking", lambda *_: nullcontext(client))
    (tmp_path / "key.pem").write_bytes(pem_of(KEY))
    (tmp_path / "other.pem").write_bytes(pem_of(DeviceKey(bytes([1]) * 32)))
    for ending in PAGES:
        file = str(tmp_path / f"report{ending}")
        code, said = quorate("marks", "--out", file)
        assert (code, said) == (0, f"Wrote {file}. Whoever gets it checks it by: quorate report verify {file}\n")
        code, said = quorate("verify", file)
        assert code == 0
        assert "is unaltered: the report on run marks" in said
        assert "Whose key that is" in said
        code, said = quorate("verify", file, "--key", str(tmp_path / "key.pem"))
        assert code == 0
        assert "Whose key" not in said
        code, said = quorate("verify", file, "--key", str(tmp_path / "other.pem"))
        assert code == 1
        assert "signed by another key" in said
        altered = Path(file).read_text().replace("zero-out", "zero-oat", 1)
        Path(file).write_text(altered)
        code, said = quorate("verify", file)
        assert code == 1
        assert "altered" in said
    code, said = quorate("marks")
    assert (code, said) == (0, PAGES[".md"](signed))
    code, said = quorate("marks", "--out", str(tmp_path / "report.pdf"))
    assert code == 1
    assert "ends with .md, .html, .json" in said
    (tmp_path / "empty.md").write_text("nothing")
    code, said = quorate("verify", str(tmp_path / "empty.md"))
    assert code == 1
    assert "It is no privacy report" in said


def strange(signed: SignedReport) -> Iterator[str]:
    """Files of somebody who signs with a key of his own whatever he likes, where it can be signed."""
    whole = signed.model_dump(mode="json")
    values = [1e300, -1e300, 10**400, 2**63, -1, math.nan, math.inf, "1e999", None, [], {}, True, "\ud800", "\x00"]
    places = [(name, value) for name in PrivacyReport.model_fields for value in values]
    places += [("rounds_of_a_device", {"9" * 400: 1}), ("rounds_of_a_device", {"1": 10**400}), ("clips", [[]] * 9)]
    places += [("clips", [{"round": 10**400, "clip": 1e308}]), ("rounds", [{}]), ("rounds", [whole["report"]])]
    texts = ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, '"' + "\\ud800" * 9 + '"', "\x00", "", "null", "[]"]
    for name, value in places:
        content = {**whole["report"], name: value}
        with suppress(ValueError, OverflowError):
            whole["signature"] = KEY.sign(signed_part(PrivacyReport.model_validate(content))).hex()
        texts.append(json.dumps({**whole, "report": content}))
    for text in texts:
        yield text
        yield f"<!-- quorate privacy report {b64encode(text.encode()).decode()} -->"
    yield f"<!-- quorate privacy report {'A' * 100_001} -->"
    yield f"<!-- quorate privacy report {b64encode(bytes(range(256))).decode()} -->"


@pytest.mark.slow
def test_whatever_a_file_holds_it_is_a_report_or_none_in_one_sentence(tmp_path: Path, signed: SignedReport) -> None:
    taken, refused = 0, list[str]()
    for text in strange(signed):
        try:
            read(text)
            taken += 1
        except BadReport as error:
            refused.append(str(error))
    assert (len(refused) > 600, taken > 20) == (True, True)
    assert not [said for said in refused if len(said) > 250 or "\n" in said]
    for content in (b"\xff\xfe\x00", b"[" * 100_000, "x".encode("utf-16"), b"\x80" * 10):
        (tmp_path / "strange.md").write_bytes(content)
        code, said = quorate("verify", str(tmp_path / "strange.md"))
        assert (code, said.count("\n"), "bug" in said) == (1, 1, False), said


def test_every_field_of_the_report_is_on_its_page(signed: SignedReport) -> None:
    """A field that is signed and not shown is one that nobody reads."""
    shown = PAGES[".md"](signed).split("<!--", maxsplit=1)[0].replace("\\", "")
    report = signed.report
    told: dict[str, str] = {
        "run": "marks", "name": "marks", "status": "running", "made_at": "UTC", "log": report.log, "unit": "device",
        "simulated": "simulation" if report.simulated else "# Privacy report", "adjacency": "zero-out",
        "mechanism": report.mechanism, "clips": "1.5 from round 1", "noise": "2 x clip", "delta": "1e-05",
        "epsilon": f"{report.epsilon:.4g}", "rho": f"{report.rho:.4g}", "plan": report.plan, "code": report.code,
        "epsilon_planned": f"{report.epsilon_planned:.4g}", "most_rounds": "counts in 4 rounds",
        "rounds_of_a_device": "devices have counted", "least_apart": "a device counted again after",
        "trusted": report.trusted[0], "not_covered": report.not_covered[0], "rounds": "3 rounds have ended",
        "refusals": "Rounds",
        "ledger": f"| ledger | {report.ledger.name} |", "version": report.version, "first_model": report.first_model,
    }  # fmt: skip
    assert told.keys() == PrivacyReport.model_fields.keys()
    assert [name for name, text in told.items() if text not in shown] == []
    assert len(PrivateRound.model_fields) == shown.split("| round | kind")[1].split("\n")[0].count("|") + 1
