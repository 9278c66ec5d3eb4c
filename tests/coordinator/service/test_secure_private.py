"""Private secure rounds over HTTP: the noise of the devices is in the model, and a list that was shown counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from client_sdk.privacy.accounting import epsilon_of, rho_of
from client_sdk.secagg import device as secure_device
from client_sdk.secagg.clip_bit import beta_of, next_clip
from client_sdk.secagg.header import AttemptHeader
from coordinator.engine.privacy import Privacy
from coordinator.store.port import LedgerRow, SpendingRow
from coordinator.verify import verify
from tests.coordinator.served import RUN, SECTION, Served

pytestmark = pytest.mark.whole

DEVICES, VALUES, CLIP, NOISE = 6, 3000, 0.8, 2.0
"""Of 6 devices 5 must sign and 3 may collude, so 2 honest ones have all of the noise."""
PRIVATE: dict[str, Any] = {
    "cohort": {"select": DEVICES, "goal": DEVICES, "quorum": 0.5, "select_s": 10, "collect_s": 60, "most_rounds": 1},
    "aggregation": {"weighting": "equal", "partial": "refuse"},
    "secure": {**SECTION, "weight_cap": None, "max_norm": CLIP, "max_abs": 0.1},
    "privacy": {"mechanism": "distributed", "clip": CLIP, "noise": NOISE, "delta": 1e-6},
}


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served(DEVICES, dimension=VALUES)
    for phone in made.phones:
        phone.member.weight = 1
        phone.member.values = (phone.member.values / 10).astype(np.float32)
    made.secure_run(**PRIVATE)
    made.begin()
    yield made
    made.close()


def test_the_model_is_the_clipped_sum_with_all_noise_over_the_goal(world: Served) -> None:
    world.play()
    view = world.coordinator.operators.run(RUN)
    assert (view.status, view.version) == ("finished", 1)
    assert view.privacy is not None
    assert (view.privacy.rounds, view.privacy.rounds_planned) == (1, 1)
    assert view.privacy.epsilon == view.privacy.epsilon_planned == epsilon_of(rho_of(NOISE, 1), 1e-6)
    (row,) = world.coordinator.operators.rounds(RUN)
    assert row.secure is not None
    assert row.secure.noise == NOISE
    values = np.array([phone.member.values.astype(np.float64) for phone in world.phones])
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    mean = (values * np.minimum(1.0, CLIP / np.maximum(lengths, 1e-9))).sum(axis=0) / DEVICES
    noise = world.checkpoint(RUN)["w"] - world.model()["w"] - mean
    assert float(noise.std()) == pytest.approx(NOISE * CLIP * math.sqrt(DEVICES / 2) / DEVICES, rel=0.06)
    assert [row.rho for row in world.store.privacy_spending_in(f"run:{RUN}")] == [rho_of(NOISE, 1)] * DEVICES
    assert list(verify(world.store, world.blobs)) == []
    header = AttemptHeader.parse(bytes.fromhex(next(e.body["header"] for e in events(world) if e.kind == "Announced")))
    assert (header.noise, header.divisor, header.max_norm) == (NOISE, DEVICES, CLIP)


def test_a_round_that_fails_after_its_list_was_shown_counts_once(world: Served) -> None:
    for phone in world.phones[:3]:
        phone.stops = "survivors"
    world.play(lambda: world.state.phase == "agreeing")
    assert {counted for _, counted in world.state.participation.values()} == {1}, "durable before anybody has the list"
    (debit,) = world.store.privacy_debits(RUN)
    assert (debit.round, debit.devices, debit.rho) == (1, DEVICES, rho_of(NOISE, 1))
    for _ in range(4):
        world.play()
        world.pass_time(21)
    view = world.coordinator.operators.run(RUN)
    assert (view.version, view.privacy.rounds if view.privacy else 0) == (0, 1)
    assert all(world.state.has_done_all(row.device) for row in world.rows)
    assert [row.times for row in world.store.privacy_spending_in(f"run:{RUN}")] == [1] * DEVICES
    assert list(verify(world.store, world.blobs)) == []


def events(world: Served) -> list[Any]:
    return list(world.store.events(RUN, 0))


def test_a_group_that_falls_after_its_list_was_shown_has_cost_its_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = secure_device.masked_vector

    def of(cohort: Any, place: int, *rest: Any) -> bytes:
        vector = masked(cohort, place, *rest)
        return bytes(len(vector)) if cohort.device(place) == liar else vector

    monkeypatch.setattr(secure_device, "masked_vector", of)
    world = Served(9, dimension=VALUES)
    liar = world.rows[4].device
    for phone in world.phones:
        phone.member.weight = 1
        phone.member.values = (phone.member.values / 10).astype(np.float32)
    cohort = {**PRIVATE["cohort"], "select": 9, "goal": 9}
    world.secure_run(**{**PRIVATE, "cohort": cohort, "secure": {**PRIVATE["secure"], "groups": 3}})
    world.begin()
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1
    assert len(list(world.store.contributions(RUN, 1))) == 6
    (debit,) = world.store.privacy_debits(RUN)
    assert debit.devices == 9
    assert len(world.store.privacy_spending_in(f"run:{RUN}")) == 9
    step = world.checkpoint(RUN)["w"] - world.model()["w"]
    assert float(step.std()) == pytest.approx(NOISE * CLIP * math.sqrt(6 / 1) / 9, rel=0.06), (
        "of groups of 3 one has all"
    )
    assert list(verify(world.store, world.blobs)) == []
    world.close()


@pytest.mark.parametrize("late", [[4], [9], [0, 9], list(range(10))])
def test_no_list_is_shown_with_a_device_that_has_spent_the_rest_elsewhere_meanwhile(late: list[int]) -> None:
    """It is drawn while it has room, and a plain round of another run, that it has answered, is debited before the
    list. It is out of the round with its vector; so its loss is at most the ledger's."""
    world, one = Served(10, dimension=5), rho_of(NOISE, 1)
    for phone in world.phones:
        phone.member.weight = 1
        phone.member.values = (phone.member.values / 10).astype(np.float32)
    with world.store.transaction() as tx:
        most = epsilon_of(one, 1e-6)
        tx.insert_privacy_ledger(LedgerRow(ledger="phones", epsilon=most, delta=1e-6, created_at=1.0, created_by="k"))
    cohort = {**PRIVATE["cohort"], "select": 10, "goal": 10}
    world.secure_run(**{**PRIVATE, "cohort": cohort, "privacy": {**PRIVATE["privacy"], "ledger": "phones"}})
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    names = [world.rows[number].device for number in late]
    with world.store.transaction() as tx:
        rows = [SpendingRow(ledger="phones", run=RUN, device=name, rho=one, times=1) for name in names]
        tx.put_rows(RUN, {SpendingRow: {(row.ledger, row.run, row.device): row for row in rows}})
    world.play()
    assert world.state.version == (len(late) < 10)
    assert set(world.store.privacy_totals("phones").values()) == {one}
    assert {item.device for item in world.store.contributions(RUN, 1)}.isdisjoint(names)
    left_out = [event.body for event in events(world) if event.kind == "Faulted"]
    found = {event["device"] for event in left_out}
    assert found == set(names) or (not world.state.version and found < set(names))
    assert all("it has no room for another round in the ledger phones" in event["reason"] for event in left_out)
    world.close()


# ------------------------------------------------------------ a clip that adapts


def adaptive(groups: int = 1, devices: int = DEVICES) -> Served:
    made = Served(devices, dimension=VALUES)
    for number, phone in enumerate(made.phones):
        phone.member.weight = 1
        length = float(np.linalg.norm(phone.member.values))
        phone.member.values = (phone.member.values * (0.4 if number % 2 else 4.0) / length).astype(np.float32)
    adapt = {"rate": 0.5, "lowest": 0.2, "highest": 3.0}
    made.secure_run(
        **{
            **PRIVATE,
            "cohort": {**PRIVATE["cohort"], "select": devices, "goal": devices, "most_rounds": 2},
            "finish": {"rounds": 2},
            "secure": {**PRIVATE["secure"], "groups": groups},
            "privacy": {**PRIVATE["privacy"], "noise": 0.05, "adapt": adapt},
        }
    )
    return made


def one_round(world: Served) -> None:
    for phone in world.phones:
        phone.head, phone.sent, phone.through = None, False, False
    world.begin()
    world.play()


@pytest.mark.parametrize(("groups", "devices"), [(1, DEVICES), (2, 10)])
def test_a_clip_follows_bits_under_masks_and_each_header_names_it(groups: int, devices: int) -> None:
    world, clip, headers = adaptive(groups, devices), CLIP, list[AttemptHeader]()
    try:
        for number in (1, 2):
            before = world.checkpoint(RUN)["w"].astype(np.float64)
            one_round(world)
            shown = [e.body["header"] for e in events(world) if e.kind == "Announced"]
            headers = [AttemptHeader.parse(bytes.fromhex(header)) for header in shown]
            assert headers[-1].clip == clip
            assert (headers[-1].lowest, headers[-1].highest, headers[-1].max_norm) == (0.2, 3.0, CLIP)
            (small,) = [e.body["small"] for e in events(world) if e.kind == "Committed" and e.body["round"] == number]
            honest = groups * 2
            spread = 0.05 * math.sqrt(groups * devices / honest) / (2 * beta_of(0.05, devices) * devices)
            assert abs(small["within"] - 0.5) < 5 * spread, "every second update was within the clip"
            values = np.array([phone.member.values.astype(np.float64) for phone in world.phones])
            lengths = np.linalg.norm(values, axis=1, keepdims=True)
            mean = (values * np.minimum(1.0, clip / lengths)).mean(axis=0)
            step = world.checkpoint(RUN)["w"] - before
            along = float(step @ mean / (mean @ mean))
            assert along == pytest.approx(1.0, abs=0.35), "in units of the model, whatever the clip"
            wanted = next_clip(clip, small["within"], quantile=0.5, rate=0.5, lowest=0.2, highest=3.0)
            assert small["clip"] == wanted != clip
            clip = wanted
        assert list(verify(world.store, world.blobs)) == []
    finally:
        world.close()
    assert len({header.clip for header in headers}) == 2


def test_a_header_with_the_clip_of_another_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: the first clip in each header, to which devices then scale their updates."""
    monkeypatch.setattr(Privacy, "clip_after", lambda self, small: self.clip)
    world = adaptive()
    try:
        for _ in range(2):
            one_round(world)
        monkeypatch.undo()
        said = [str(one) for one in verify(world.store, world.blobs)]
    finally:
        world.close()
    assert any("its header has the clip 0.8, and it is" in one for one in said)
