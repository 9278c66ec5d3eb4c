"""The look at a machine before it trains: what the process that loads everything finds, and how it may end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_sdk.terminal import Failure
from coordinator.datacenter.preflight import PreflightRequest, look
from tests.coordinator.datacenter.agents import write_data
from tests.rotating import in_parts

pytestmark = [pytest.mark.slow, pytest.mark.datacenter]

SLOW = "tests.coordinator.datacenter.models:slow"


def test_what_is_there_is_found_and_what_a_learner_prints_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "chatty.py").write_text(
        "print('hello', end='')\nfrom tests.coordinator.datacenter.models import slow\n"
    )
    write_data(tmp_path / "proxy.npz", 20, seed=1)
    ready = look(PreflightRequest(learners=("chatty:slow",), data={"proxy": str(tmp_path / "proxy.npz")}, device="cpu"))
    assert ready.examples == {"proxy": 20}
    assert set(ready.learners) == {"chatty:slow"}
    with pytest.raises(Failure, match="There is no data 'nowhere'"):
        look(PreflightRequest(learners=(SLOW,), data={"proxy": "nowhere"}, device="cpu"))


@pytest.mark.parametrize(
    ("end", "sentence"),
    in_parts(
        [
            ("os.kill(os.getpid(), 9)", "This machine could not be checked: the process was killed by SIGKILL."),
            ("os.write(2, b'no room\\n\\n')\nos._exit(5)", r"the process ended with code 5 \(no room\)."),
        ],
        of=2,
    ),
)
def test_a_process_that_ends_without_an_answer_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, sentence: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "mortal.py").write_text(f"import os\n{end}\n")
    with pytest.raises(Failure, match=sentence):
        look(PreflightRequest(learners=("mortal:learner",), data={}, device="cpu"))
