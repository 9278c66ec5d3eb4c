"""``quorate devices``: what devices say of themselves, in a column each and added up."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from client_sdk.protocol.operators import DeviceView
from coordinator.commands import watch


def test_states_that_devices_left_out_are_added_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"label": "", "examples_cap": 1, "enrolled_at": 0.0, "last_seen_at": None, "state": "away"}
    said = [{"sdk": "1", "states_left_out": 2}, {}, {"states_left_out": 1}]
    found = [DeviceView(device=f"d{number}", facts=facts, **base) for number, facts in enumerate(said)]  # type: ignore[arg-type]
    monkeypatch.setattr(watch, "asking", lambda *_: nullcontext())
    monkeypatch.setattr(watch, "every_page", lambda _: found)
    asked = {"state": None, "device_class": "", "match": "", "run": "", "coordinator": "", "key_file": None}
    watch.devices(**asked, as_json=False)  # type: ignore[arg-type]
    assert capsys.readouterr().out.endswith("2 of these devices left out 3 states of a strategy.\n")
    del found[0], found[-1]
    watch.devices(**asked, as_json=False)  # type: ignore[arg-type]
    assert "left out" not in capsys.readouterr().out
