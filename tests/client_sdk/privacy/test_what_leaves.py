"""Every field that a device sends in a private run: it is inside the noised sum, does not hang on data, or is not sent.
A new field fails here until somebody has said which of these it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from client_sdk.http.client import _encoded
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    DeviceFacts,
    Policy,
    PrivacyBounds,
    PrivacyTerms,
    Registration,
    Score,
    Started,
    Task,
    UpdateReport,
    Withdrawal,
    Work,
)
from client_sdk.tensors import read_header
from client_sdk.tensors.safetensors_file import from_bytes
from client_sdk.update import Update, decode_report

INDEPENDENT, ABSENT, OUTSIDE = "independent of data", "absent", "said whatever the run"
"""OUTSIDE: how many examples a device has, which it says before it knows of any run: docs/privacy.md names it."""
FIELDS: dict[type[BaseModel], dict[str, str]] = {
    Registration: {"certificate": INDEPENDENT, "examples": OUTSIDE, "label": INDEPENDENT},
    CheckIn: {
        "examples": OUTSIDE,
        "learners": INDEPENDENT,
        "strategies": INDEPENDENT,
        "policy": INDEPENDENT,
        "secure": INDEPENDENT,
        "process": INDEPENDENT,
        "facts": INDEPENDENT,
        "hold_s": INDEPENDENT,
    },
    DeviceFacts: {"sdk": INDEPENDENT, "states_left_out": INDEPENDENT},
    Policy: {  # the owner's word
        "learners": INDEPENDENT,
        "secure_only": INDEPENDENT,
        "max_epochs": INDEPENDENT,
        "secure": INDEPENDENT,
        "plain": INDEPENDENT,
        "max_state_bytes": INDEPENDENT,
        "privacy": INDEPENDENT,
        "rests": INDEPENDENT,  # of what the device took part in
    },
    PrivacyBounds: {
        "most_epsilon": INDEPENDENT,
        "delta": INDEPENDENT,
        "apart": INDEPENDENT,
        "private_only": INDEPENDENT,
    },
    Started: {"attempt": INDEPENDENT},
    Withdrawal: {"attempt": INDEPENDENT, "reason": ABSENT},
    UpdateReport: {
        "run": INDEPENDENT,
        "round": INDEPENDENT,
        "attempt": INDEPENDENT,
        "codec": INDEPENDENT,
        "examples": ABSENT,
        "work": ABSENT,
        "fetch_s": ABSENT,
        "train_s": ABSENT,
        "encode_s": ABSENT,
        "metrics": ABSENT,
        "held_out": ABSENT,
    },
}


@pytest.mark.parametrize("message", FIELDS, ids=lambda message: message.__name__)
def test_each_field_is_accounted_for(message: type[BaseModel]) -> None:
    assert set(message.model_fields) == set(FIELDS[message]), "say of each field what it tells of data"


def assignment(**more: Any) -> Assignment:
    return Assignment(
        run="r",
        round=3,
        device="d",
        checkpoint=CheckpointRef(version=2, digest="a" * 64, bytes=100),
        plan_digest="b" * 64,
        task=Task(learner="a:b"),
        report_within_s=60,
        max_update_bytes=1000,
        **more,
    )


def update(value: float, examples: int) -> Update:
    return Update(
        {"w": np.full(4, value, np.float32)},
        examples,
        work=Work(steps=examples, steps_planned=2 * examples, epochs=0.5, examples_seen=examples, complete=False),
        metrics={"loss": value},
        held_out=Score(examples=examples, metrics={"accuracy": value}),
    )


def test_two_devices_with_other_data_differ_in_their_tensors_alone() -> None:
    private = assignment(privacy=PrivacyTerms(noise=1.0, most_rounds=3))
    one, other = (
        _encoded(private, update(value, examples), b"", seconds, 2 * seconds)
        for value, examples, seconds in ((0.25, 7, 1.5), (0.5, 1000, 90.0))
    )
    assert read_header(one).metadata == read_header(other).metadata
    report = decode_report(read_header(one))
    for field, what in FIELDS[UpdateReport].items():
        if what == ABSENT and field != "examples":
            assert getattr(report, field) == UpdateReport.model_fields[field].get_default(call_default_factory=True)
    assert report.examples == 1
    assert from_bytes(one)["w"].tolist() == [0.25] * 4
    open_one = _encoded(assignment(), update(0.25, 7), b"", 1.5, 3.0)
    assert decode_report(read_header(open_one)).metrics == {"loss": 0.25}, "in any other run they are sent"
