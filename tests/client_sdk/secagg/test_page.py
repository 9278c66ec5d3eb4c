"""The pages on secure rounds and SECURITY.md say what the code says: tables are computed again, named tests exist."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg.consent import SecurePolicy
from client_sdk.secagg.header import GraphRule, hidden_among, withstood
from client_sdk.secagg.parameters import colluding_of_all, fast, require_faults, strict
from client_sdk.secagg.shares import DIGESTS_BYTES, SEALED_BYTES, Bundle
from coordinator.engine.aggregation.rules import Median

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "secure-aggregation-design.md").read_text()
OWNERS = (ROOT / "docs" / "secure-aggregation.md").read_text()
SECURITY = " ".join((ROOT / "SECURITY.md").read_text().split())
PROMISES = " ".join((ROOT / "docs" / "secure-promises.md").read_text().split())
PROOFS = (ROOT / "docs" / "secure-aggregation-proofs.md").read_text()


def table(heading: str) -> list[list[float]]:
    """The rows of numbers under the table whose first line begins so."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([float(cell) for cell in line.strip("| ").split("|")])
    return rows


def test_the_table_of_strict() -> None:
    rows = table("| devices | shares that rebuild | may vanish | may collude |")
    assert len(rows) == 4
    for n, threshold, vanish, collude in rows:
        assert strict(int(n)).threshold == threshold
        assert vanish == n - threshold
        assert collude == 2 * threshold - n - 1


def test_the_table_of_fast() -> None:
    rows = table("| devices | may vanish | neighbours |")
    assert len(rows) == 8
    for n, drop, *wanted in rows:
        found = fast(int(n), int(drop), Fraction(1, 10), 80, 40)
        assert [found.neighbours, found.threshold, found.sigma, found.eta] == wanted


def test_the_bytes_of_the_shares() -> None:
    cells = next(line for line in PAGE.splitlines() if line.startswith("| share |")).strip("| ").split(" | ")

    def kilobytes(peers: int, own: bytes) -> str:
        rows = tuple((place, bytes(SEALED_BYTES), bytes(DIGESTS_BYTES)) for place in range(peers))
        return f"{len(Bundle(peers, rows, own).encoded) / 1000:.0f} kB"

    strict, digests = cells[1].split(", of which digests are ")
    assert [strict, cells[2], cells[3], cells[4]] == [
        kilobytes(299, bytes(DIGESTS_BYTES)),
        kilobytes(110, b""),
        kilobytes(299, b""),
        kilobytes(110, b""),
    ]
    assert digests == f"{300 * DIGESTS_BYTES / 1000:.0f} kB"


def test_the_command_prints_what_the_page_shows() -> None:
    shown = re.search(r"\$ quorate (secagg parameters [^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    found = CliRunner().invoke(app, shown.group(1).split())
    assert found.exit_code == 0
    assert found.stdout.splitlines() == shown.group(2).splitlines()


def test_the_devices_policy_is_the_pages() -> None:
    policy = SecurePolicy()
    assert "no rule below 80 bits or below 10 % colluding, and advertises 8 times at most" in PROMISES
    found = (policy.smallest_sigma, policy.smallest_corrupt_millionths, policy.most_fast_tries)
    assert found == (80, 100_000, 8)
    assert policy.smallest_cohort == 64


def test_what_holds_without_an_owners_word_is_the_owners_page() -> None:
    bounds = SecureBounds()
    for option, without in (
        ("--smallest-cohort 100", f"{bounds.smallest_cohort} devices, in each group"),
        (
            "--fewest-examples 200`, `--fewest-steps 10`, `--largest-batch 0.1",
            (
                f"{bounds.fewest_examples} examples, {bounds.fewest_steps} steps, batches of at most half of the data, "
                "whole passes"
            ),
        ),
        ("--sums-a-day 10", f"{bounds.sums_a_day} a day, counted over all of your devices with this data"),
        (
            "--largest-move 1`, `--late-moves 1",
            (
                f"{bounds.largest_move:g} clips a round, from the last model known or a signed one; "
                f"{bounds.late_moves} moves for a run that your device has not seen before"
            ),
        ),
    ):
        assert f"| `{option}` | {without} |" in OWNERS
    assert (bounds.largest_batch, bounds.whole_passes, bounds.most_colluding, bounds.near_repeats) == (
        0.5,
        True,
        None,
        0,
    )
    assert f"puts at most {bounds.sums_a_day} updates a day into sums" in OWNERS
    options = CliRunner().invoke(app, ["device", "--help"], env={"COLUMNS": "200"}).stdout
    for option in re.findall(r"`(--[a-z-]+)", OWNERS):
        assert option in options, option


def test_the_figures_of_the_owners_page() -> None:
    of_300 = strict(300)
    withstands = {n: withstood(GraphRule(profile="strict"), n) for n in (300, 64, 75)}
    assert f"up to {withstands[300]} accomplices of 300 devices, or {withstands[64]} of 64" in OWNERS
    assert f"No piece alone says anything; {of_300.threshold} of 300 do." in OWNERS
    hidden, in_group = (hidden_among(GraphRule(profile="strict"), n) for n in (300, 75))
    assert f"among {in_group} honest devices in one of 4 groups of 75, in place of {hidden} of 300" in OWNERS


def test_among_how_many_combined_sums_hide_a_device() -> None:
    """The signatures that a list takes, less those who collude: as SECURITY.md, the promises and the proofs say."""
    assert "100 honest ones in *strict* and 226 in *fast*, of rosters of 300; of 64, among 22" in SECURITY
    found = fast(300, 44, Fraction(1, 10), 80)
    ring = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)
    assert hidden_among(ring, 300) == 226
    for signers, colluding, hidden in (
        (strict(300).signers, withstood(GraphRule(profile="strict"), 300), 100),
        (strict(64).signers, withstood(GraphRule(profile="strict"), 64), 22),
        (found.signers, require_faults(300, 44, Fraction(1, 10)), 226),
    ):
        assert signers - colluding == hidden
        assert f"{signers} - {colluding} = {hidden}" in PROMISES
        assert f"{signers} - {colluding} = {hidden}" in PROOFS


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_what_groups_withstand(groups: int) -> None:
    size = 300 // groups
    found, within = strict(size), withstood(GraphRule(profile="strict"), size)
    of_all = colluding_of_all(300, groups, within, 80)
    hides = hidden_among(GraphRule(profile="strict"), size)
    lying = "-" if groups == 1 else Median().withstands({}, groups)
    row = [f"{groups} x {size}", found.threshold, size - found.threshold, within, of_all, hides, lying]
    assert f"| {' | '.join(map(str, row))} |" in PAGE
    assert (within == 26 and hides == 25) or groups != 4  # as SECURITY.md says
    assert "Each of 4 groups of 75 withstands 26." in SECURITY
    assert "of 4 groups of 75, among 25." in SECURITY


@pytest.mark.parametrize(
    "page", [PAGE, OWNERS, SECURITY, PROMISES, PROOFS], ids=["page", "owners", "security", "promises", "proofs"]
)
def test_every_test_that_is_named_exists(page: str) -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {file.name for file in files}
    for file in files:
        there |= set(re.findall(r"^\s*def (test_\w+)", file.read_text(), re.MULTILINE))
    named = set(re.findall(r"\btest_\w+(?:\.py)?", page))
    assert named <= there, named - there


def test_paths_on_the_pages_exist() -> None:
    for folder, page in (
        (ROOT / "docs", PAGE),
        (ROOT / "docs", OWNERS),
        (ROOT, SECURITY),
        (ROOT / "docs", PROMISES),
        (ROOT / "docs", PROOFS),
    ):
        for link in re.findall(r"\]\(([^)#:]+)", page):
            assert (folder / link).exists(), link
        for path in re.findall(r"`((?:client_sdk|coordinator|tests|docs)/[\w./]*)`", page):
            assert (ROOT / path).exists(), path
