"""The benchmark of secure aggregation: what it times is right, rows are complete, and wrong results end it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import _secagg_floor as floor
from benchmarks import secagg
from benchmarks._secagg_bytes import around_the_vector, beside_float32, vector_bytes
from benchmarks._secagg_crowd import FAST, STRICT, Crowd, OneDevice, header_of
from benchmarks._secagg_server import Server
from benchmarks.harness import interleaved, main
from client_sdk.credentials.certificate import Certificate
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.lanes import pack
from tests.rotating import on_day

N = 64
GONE = (1, 20, 40)


@pytest.fixture(scope="module")
def crowd() -> Crowd:
    found = Crowd(N, header_of(STRICT, 500))
    found.share()
    return found


def test_a_device_plays_its_whole_attempt(crowd: Crowd) -> None:
    device = OneDevice(crowd, 7)
    messages = device.play()
    assert list(messages) == ["advertise", "share", "mask", "survivors", "unmask"]
    device.require_right(messages)


def test_a_wrong_vector_is_never_measured(crowd: Crowd) -> None:
    device = OneDevice(crowd, 7)
    messages = device.play()
    lanes, bits = crowd.header.lanes, crowd.cohort.roster.lane_bits
    other = replace(messages["mask"], blob=pack(np.zeros(lanes, np.uint32), bits))
    with pytest.raises(SystemExit, match="wrong results"):
        device.require_right({**messages, "mask": other})


def test_the_server_opens_the_integer_sum(crowd: Crowd) -> None:
    with Server(crowd, GONE) as server:
        server.open()
        server.require_right()
        assert server.wanted[-1] == N - len(GONE)
        server.wanted[3] += 1
        with pytest.raises(SystemExit, match="wrong results"):
            server.require_right()


def test_a_floor_masks_as_devices_do(crowd: Crowd) -> None:
    from tests.client_sdk.secagg.attempt import expand

    masks = floor.Masks(1000)
    masks.vector[:] = 0
    masks.apply(bytes(range(32)))
    assert np.array_equal(masks.vector & np.uint32((1 << 25) - 1), expand(bytes(range(32)), 1000, 25))
    floor.device(crowd, 7)()
    floor.unmask(crowd, GONE)()


def test_nobody_masked_with_who_never_shared(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of the floor: one of each survivor, and one of each pair of a survivor and one that is gone."""
    combined: list[int] = []
    applied: list[bytes] = []
    monkeypatch.setattr(floor, "combine", lambda pieces, threshold: combined.append(len(pieces)))
    monkeypatch.setattr(floor.Masks, "apply", lambda self, key: applied.append(key))
    unmask = floor.unmask(crowd, (1, 20), (40, 41, 42))
    applied.clear()
    unmask()
    survivors = N - 5
    assert combined == [crowd.cohort.parameters.threshold] * (survivors + 2)
    assert len(applied) == survivors + 2 * survivors


@pytest.mark.parametrize(
    ("rule", "neighbours", "signers"), [(STRICT, 79, 54), (replace(FAST, drop=4), 18, 76)], ids=["strict", "fast"]
)
def test_a_floor_has_the_checks_that_a_device_needs(
    monkeypatch: pytest.MonkeyPatch, rule: GraphRule, neighbours: int, signers: int
) -> None:
    """Of each neighbour its advertisement, of the list as many signatures as a device asks for; cold, of each other
    device its certificate."""
    crowd = Crowd(80, header_of(rule, 10))
    crowd.share()
    parameters = crowd.cohort.parameters
    assert (parameters.neighbours, parameters.signers) == (neighbours, signers)
    checked = []
    honest = floor.Ed25519PublicKey.from_public_bytes
    monkeypatch.setattr(floor, "Ed25519PublicKey", type("Counted", (), {}))
    monkeypatch.setattr(
        floor.Ed25519PublicKey, "from_public_bytes", lambda key: checked.append(key) or honest(key), raising=False
    )
    floor.device(crowd, 7)()
    assert len(checked) == neighbours + signers
    checked.clear()
    floor.device(crowd, 7, cold=True)()
    assert len(checked) == neighbours + signers + 79


def test_in_its_first_round_a_device_checks_every_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(64, header_of(STRICT, 10))
    crowd.share()
    device = OneDevice(crowd, 7)
    checked = []
    honest = Certificate.require_signed
    monkeypatch.setattr(Certificate, "require_signed", lambda *given: checked.append(given[0].id) or honest(*given))
    device.play()
    checked.clear()
    device.play()
    assert checked == []
    device.play_cold()
    assert len(set(checked)) == 64


def test_bytes_are_those_of_every_message(crowd: Crowd) -> None:
    """The vector of this crowd has the length that is computed, and nothing else depends on the model."""
    device, other = OneDevice(crowd, 7), Crowd(N, header_of(STRICT, 9))
    other.share()
    vector = device.play()["mask"].blob
    assert vector_bytes(N, 500, 16, "float32@1") == len(vector)
    assert around_the_vector(device) == around_the_vector(OneDevice(other, 7))
    rows = {row.name: row for row in beside_float32(N)}
    found = around_the_vector(device) + vector_bytes(N, 10**6, 16, "float32@1")
    assert rows["bytes_1m_q16_vs_float32"].value == found / 4e6
    assert all(row.met for row in rows.values())


@on_day(2, of=4)
def test_rows_are_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(secagg, "N", 150)
    monkeypatch.setattr(secagg, "QUICK", 100)
    monkeypatch.setattr(secagg, "interleaved", lambda ours, other, pairs: interleaved(ours, other, 2))
    main("secagg", secagg.measure, ["--quick", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["results"]}
    for name in ("device_100k_n300_vs_floor", "unmask_100k_9_gone_vs_floor", "unmask_100k_44_gone_vs_floor"):
        assert rows[name]["aim"] == (1.35 if name.startswith("device") else 1.3)
        assert rows[f"{name}_q1"]["value"] <= rows[name]["value"] <= rows[f"{name}_q3"]["value"]
    assert rows["device_100k_n300_cold_vs_floor"]["aim"] is None
    assert rows["upload_vs_float32"]["met"] is True
    assert rows["client_shares_vs_flower"]["value"] is None


def test_who_is_gone_is_spread_and_counted() -> None:
    for count in (9, 44):
        assert len(set(secagg.gone_of(count))) == count
        assert max(secagg.gone_of(count)) < 300
