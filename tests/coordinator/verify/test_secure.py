"""``verify`` and secure rounds: an honest history is clean, and what somebody changes in one is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.datafolder import BLOBS_FOLDER
from coordinator.store.rows import EventRow
from coordinator.verify.secure import LoggedSecure, against_secure
from tests.coordinator.served import RUN
from tests.coordinator.verify.history import Doctor, doctored, violations
from tests.coordinator.verify.secure_history import play


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    play(folder)
    return folder


def test_an_honest_history_is_clean(history: Path) -> None:
    assert violations(history) == []


def a_signature_is_lost(d: Doctor) -> None:
    d.sql("UPDATE events SET kind = 'Tick' WHERE seq = ?", d.event("Signed", 1))


def a_survivor_does_not_count(d: Doctor) -> None:
    d.sql("DELETE FROM contributions WHERE device = (SELECT min(device) FROM contributions)")


def a_stranger_counts(d: Doctor) -> None:
    d.sql("UPDATE contributions SET device = 'stranger' WHERE device = (SELECT min(device) FROM contributions)")


def left_behind(d: Doctor, kind: str) -> None:
    """A message of the round is on the disk."""
    digest = d.body_of(d.event(kind, 1))["digest"]
    path = d.folder / BLOBS_FOLDER / digest[:2] / digest
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"what the device sent")


def a_masked_vector_is_left(d: Doctor) -> None:
    left_behind(d, "Masked")


def a_bundle_of_shares_is_left(d: Doctor) -> None:
    left_behind(d, "Shared")


def more_signatures_were_needed(d: Doctor) -> None:
    d.set_in("events", "body", "groups[0].signers", 6, "seq = ?", d.event("Rostered", 1))


def it_was_made_of_another_sum(d: Doctor) -> None:
    d.set_in("events", "body", "evidence.updates", "0" * 64, "seq = ?", d.event("Committed", 1))


def another_header_was_announced(d: Doctor) -> None:
    d.set_in("events", "body", "header", "00", "seq = ?", d.event("Announced", 1))


@pytest.mark.parametrize(
    "doctoring",
    [
        it_was_made_of_another_sum,
        another_header_was_announced,
        a_signature_is_lost,
        a_survivor_does_not_count,
        a_stranger_counts,
        a_masked_vector_is_left,
        a_bundle_of_shares_is_left,
        more_signatures_were_needed,
    ],
    ids=lambda function: function.__name__,
)
def test_a_doctoring_of_a_secure_round_is_named(
    history: Path, tmp_path: Path, doctoring: Callable[[Doctor], None]
) -> None:
    folder = Path(shutil.copytree(history, tmp_path / "data"))
    with doctored(folder) as doctor:
        doctoring(doctor)
    found = violations(folder)
    assert (RUN, 1) in {(wrong.run, wrong.round) for wrong in found}, found
    if doctoring in (a_masked_vector_is_left, a_bundle_of_shares_is_left, more_signatures_were_needed):
        assert "secure" in {wrong.invariant for wrong in found}
    if doctoring in (it_was_made_of_another_sum, another_header_was_announced, a_survivor_does_not_count):
        assert "evidence" in {wrong.invariant for wrong in found}


# ------------------------------------------------------------ what the account alone finds

FIVE = {"a", "b", "c", "d", "e"}


def logged(**changes: Any) -> LoggedSecure:
    usual: dict[str, Any] = {
        "signed": set(FIVE),
        "revealed": set(FIVE),
        "opened": {0: "0" * 64},
        "openings": 1,
    }
    group = {"order": sorted({*FIVE, "f"}), "threshold": 5, "signers": 5}
    mine = {name: changes.pop(name) for name in list(changes) if name in group}
    return LoggedSecure(**{**usual, "groups": [group | mine], **changes})


def test_a_round_as_it_should_be_has_no_findings() -> None:
    assert list(against_secure(3, logged(), set(FIVE))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": ["a", "b", "c", "d"]}, "e count, and are not in its roster"),
        ({"signed": {*FIVE, "f"}}, "f signed the list of survivors, and are not on it"),
        (
            {"signed": {"a", "b", "c", "d"}, "revealed": {"a"}, "threshold": 1},
            "4 survivors signed the list, and it takes 5",
        ),
        (
            {"signed": set(), "signers": 0, "revealed": set(), "threshold": 0},
            "0 survivors signed the list, and it takes 1",
        ),
        ({"signed": {"a", "b", "c", "d"}, "signers": 4}, "revealed shares that had not signed"),
        ({"revealed": {"a", "b", "c", "d"}}, "4 devices revealed shares, and it takes 5"),
        ({"opened": {}, "openings": 0}, "the log opens 0 sums"),
        ({"openings": 2}, "the log opens 2 sums"),
    ],
)
def test_each_departure_is_named(changes: dict[str, Any], words: str) -> None:
    found = list(against_secure(3, logged(**changes), set(FIVE)))
    assert [(wrong.invariant, wrong.round) for wrong in found] == [("secure", 3)]
    assert words in found[0].what


def test_what_an_older_attempt_had_says_nothing_of_the_last_one() -> None:
    """The roster, the signatures and the shares that a sum needs are those of the attempt in which it was opened."""
    rostered = {"digest": "", "groups": [{"order": sorted(FIVE), "threshold": 5, "signers": 5}]}
    older: list[tuple[str, dict[str, Any]]] = [
        ("Announced", {"attempt": 0}),
        ("Rostered", rostered),
        *(("Signed", {"digest": "", "device": device}) for device in sorted(FIVE)),
        *(("Revealed", {"digest": "", "device": device}) for device in sorted(FIVE)),
    ]
    opened: list[tuple[str, dict[str, Any]]] = [("Opened", {"digest": "0" * 64})]
    restarted: list[tuple[str, dict[str, Any]]] = [("Announced", {"attempt": 1})]

    def words(events: list[tuple[str, dict[str, Any]]]) -> str:
        account = LoggedSecure()
        for seq, (kind, body) in enumerate(events):
            account.add(EventRow(seq=seq, at=0.0, kind=kind, body=body))
        return "; ".join(wrong.what for wrong in against_secure(3, account, set(FIVE)))

    assert words([*older, *opened]) == ""
    assert words([*older, *restarted, *opened]) == "a, b, c, d, e count, and are not in its roster"
    again = words([*older, *restarted, ("Rostered", rostered), *opened])
    assert "0 survivors signed the list" in again
    assert "0 devices revealed shares, and it takes 5" in again


def test_of_several_groups_each_has_its_own_list_and_sum() -> None:
    one, other = sorted(FIVE), ["v", "w", "x", "y", "z"]
    groups = [{"order": order, "threshold": 4, "signers": 4} for order in (one, other, ["p", "q", "r", "s", "t"])]
    both = {*one, *other}

    def found(survivors: set[str] = both, **changes: Any) -> str:
        usual: dict[str, Any] = {"signed": both, "revealed": both, "opened": {0: "0" * 64, 1: "1" * 64}, "openings": 2}
        account = LoggedSecure(**{**usual, "groups": groups, **changes})
        return "; ".join(wrong.what for wrong in against_secure(3, account, survivors))

    assert found() == ""
    assert found(opened={0: "0" * 64}, openings=1) == "it was committed, and the log opens 1 sums"
    assert "p count, and no sum of their group was opened" in found({*both, "p"})
    assert "3 survivors signed the list, and it takes 4" in found(signed=both - {"y", "z"}, revealed=both - {"y", "z"})
    assert "y signed the list of survivors, and are not on it" in found(both - {"y"})
