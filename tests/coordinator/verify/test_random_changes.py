"""A random change of any stored field of the tables that ``verify`` covers is found, or the field means nothing."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinator.store.tables import metadata
from tests.coordinator.verify import secure_history
from tests.coordinator.verify.history import Doctor, doctored, play, violations
from tests.rotating import DAY

NOT_COVERED = {
    "devices": "registering is in no log: only what runs need of a device is held against it (registered, its cap)",
    "workers": "registering is in no log; test_identities.py changes rows of one that the audit has",
    "pool_changes": "who came and left is gone with the next thousands: the draw of a cohort has its tree's root",
    "waiting": "who waits is gone within a minute; the list of a draw is a blob, which is covered",
    "api_keys": "the history has none; test_identities.py changes what the audit says of one",
    "logins": "the history has none; test_identities.py adds one of which the audit has no login",
    "hours": "how many devices checked in is in no log: it is for people, and nothing comes of it",
    "device_hours": "in which hours a device was seen is in no log: it is for people, and nothing comes of it",
    **dict.fromkeys(
        ("flower_runs", "flower_contents", "flower_messages"),
        "the history has no Flower run, which has no log; test_flower.py changes each field of one",
    ),
    "replicas": "which processes serve is in no log: it is for people, and nothing comes of it",
    "authorities": "which authority was trusted is in no log: rounds are shown with it, and no model comes of it",
    "revocation_lists": "signed by the authority, so whoever takes the list checks it",
    "messages": "the histories have no round under way; secure/test_stores.py changes rows of one",
    **dict.fromkeys(
        ("privacy_debits", "privacy_spending", "privacy_ledgers", "privacy_allowances"),
        "the histories have no private run; test_ledger.py changes each field of one",
    ),
    "audit": "the history has no row in it; test_audit.py changes each field of one",
}
MEANS_NOTHING = {
    ("runs", "fence"): "it only has to be no lower than the number of commits: each attempt to commit raises it",
    ("refusals", "number"): "only the order of the numbers counts",
}
OF_SECURE_ROUNDS = {"secure_marks"}
FIELDS = [
    (table.name, column.name)
    for table in metadata.sorted_tables
    if table.name not in NOT_COVERED
    for column in table.columns
    if (table.name, column.name) not in MEANS_NOTHING
]
BODIES = {("runs", "plan"), ("runs", "snapshot"), ("events", "body"), ("rounds", "body")}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    play(folder, retention=1)
    return folder


@pytest.fixture(scope="module")
def played_in_secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    secure_history.play(folder)
    return folder


def other(value: Any, chance: random.Random) -> Any:
    """A value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int():
            return value + chance.choice([-1, 1, 1000])
        case float():
            return value + chance.choice([-0.5, 0.25, 1e6])
        case str():
            return value + chance.choice(["x", "0", " "])
        case None:
            return chance.choice([1, 2])
        case _:
            raise AssertionError(value)


def leaves(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a body that hold no others."""
    if isinstance(body, dict):
        return [leaf for name, item in body.items() for leaf in leaves(item, (*path, name))]
    if isinstance(body, list):
        return [leaf for place, item in enumerate(body) for leaf in leaves(item, (*path, place))]
    return [path]


def with_another_leaf(text: str, chance: random.Random) -> str:
    body = json.loads(text)
    path = chance.choice(leaves(body))
    inside = body
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = other(inside[path[-1]], chance)
    return json.dumps(body)


def change(doctor: Doctor, table: str, column: str, chance: random.Random) -> str:
    """Changes one field of one row. Returns what was changed, for people."""
    doctor.lift(table)
    found = doctor.database.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall()
    if (table, column) in BODIES:
        found = [(number, text) for number, text in found if text is not None and leaves(json.loads(text))]
    number, value = chance.choice(found)
    if column == "named_tensors":  # a map that may be empty; a space more in its text changes nothing that is read
        changed: Any = json.dumps(
            {**json.loads(value), f"tensor-{chance.randrange(9)}": f"{chance.getrandbits(256):064x}"}
        )
    else:
        changed = with_another_leaf(value, chance) if (table, column) in BODIES else other(value, chance)
    doctor.sql(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', changed, number)
    return f"{table}.{column} of row {number}: {value!r} -> {changed!r}"


def test_every_exception_names_a_field() -> None:
    named = {(table.name, column.name) for table in metadata.sorted_tables for column in table.columns}
    assert set(MEANS_NOTHING) <= named
    assert set(NOT_COVERED) <= {table for table, _ in named}


def test_lifted_keys_alone_are_no_violation(played: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        for table in sorted({table for table, _ in FIELDS}):
            doctor.lift(table)
    assert violations(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), FIELDS)
def test_a_random_change_of_a_field_is_found(
    played: Path, played_in_secret: Path, table: str, column: str, tmp_path: Path
) -> None:
    history = played_in_secret if table in OF_SECURE_ROUNDS else played
    for seed in range(DAY % 3, 8 if (table, column) in BODIES else 3, 3):  # a third a day
        folder = Path(shutil.copytree(history, tmp_path / str(seed)))
        with doctored(folder) as doctor:
            what = change(doctor, table, column, random.Random(f"{table}.{column} {seed}"))
        assert violations(folder), what
