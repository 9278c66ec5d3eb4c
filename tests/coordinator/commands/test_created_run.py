"""What ``quorate run create`` says of a run whose first checkpoint some devices have signed on already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.operators import RunView
from client_sdk.tensors import to_bytes
from tests.client_sdk.commands.run_cli import quorate
from tests.coordinator.served import RUN, Served

PLAN = '[task]\nlearner = "a:b"\n[cohort]\nselect = 4\ngoal = 3\n[finish]\nrounds = 2\n'


@pytest.fixture
def made() -> RunView:
    world = Served()
    world.secure_run()
    view = world.coordinator.operators.run(RUN)
    world.close()
    return view


@pytest.mark.parametrize("spent", [0, 4])
def test_it_says_how_many_devices_are_spent_and_the_ways_out(
    made: RunView, spent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Client:
        repaired: frozenset[str] = frozenset()

        def __init__(self, *given: Any, **named: Any) -> None: ...

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *error: object) -> None: ...

        def upload_checkpoint(self, content: object, on_bytes: object) -> str:
            return made.checkpoint

        def create_run(self, plan: object, checkpoint: str, origin: str, roles: object) -> RunView:
            return made.changed(devices_spent=spent, devices_registered=6)

    monkeypatch.setattr("client_sdk.http.operator.OperatorClient", Client)
    plan, model = tmp_path / "plan.toml", tmp_path / "model.safetensors"
    plan.write_text(f'name = "secret"\n{PLAN}')
    model.write_bytes(to_bytes({"w": np.zeros(3, np.float32)}))
    assert quorate("run", "create", str(plan), "--init", str(model)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Created run {RUN} from model.safetensors" in shown
    assert "quorate authority sign FILE" not in shown, "its rounds are plain"
    said = (
        "4 of 6 registered devices have signed on this checkpoint, and contribute to it no more. "
        "The ways out: start from another checkpoint, use other devices, or, where devices' owners allow near models, "
        f"advance the run once it is exhausted: quorate run advance {RUN}"
    )
    assert (said in shown) == (spent > 0)
    assert ("ways out" in shown) == (spent > 0)
