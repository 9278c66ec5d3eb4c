"""``quorate secagg parameters``: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.client_sdk.commands.run_cli import quorate


def parameters(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert quorate("secagg", "parameters", *options, "--json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


BASE = ("--n", "300", "--drop", "44", "--corrupt", "0.1")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert parameters(capsys, *BASE) == {
        "n": 300,
        "drop": 44,
        "colluding": 30,
        "neighbours": 106,
        "threshold": 68,
        "signers": 256,
        "sigma": 41.04,
        "eta": 40.02,
        "complete": False,
    }


def test_what_is_asked_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    found = parameters(capsys, *BASE, "--sigma", "80", "--eta", "40")
    assert (found["neighbours"], found["threshold"]) == (110, 71)
    assert parameters(capsys, "--n", "300", "--drop", "44", "--corrupt", "1/10")["neighbours"] == 106


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--n", "300", "--drop", "200", "--corrupt", "0.1"), "withstands both"),
        (("--n", "300", "--drop", "300", "--corrupt", "0.1"), "may vanish"),
        (("--n", "300", "--drop", "44", "--corrupt", "ten"), "--corrupt"),
        (("--n", "300", "--drop", "44", "--corrupt", "1e9"), "--corrupt"),
        (("--n", "300", "--drop", "44", "--corrupt", "1/0"), "--corrupt"),
        (("--n", "300", "--drop", "44", "--corrupt", "1.5"), "fraction"),
        (("--n", "30000", "--drop", "44", "--corrupt", "0.1"), "10000"),
    ],
)
def test_bad_input_gets_one_sentence(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str) -> None:
    assert quorate("secagg", "parameters", *options) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Error: ")
    assert words in output.err
    assert output.err.count("\n") == 1


def test_options_out_of_range_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("secagg", "parameters", *BASE, "--sigma", "0") == 2
    assert "--sigma" in capsys.readouterr().err
