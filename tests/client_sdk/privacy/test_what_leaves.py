"""Every field that a device sends in a private run: it is inside the noised sum, does not hang on data, or is not sent.
A new field fails here until somebody has said which of these it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import BaseModel

from client_sdk.device.contribution import weight_of
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
    SecureBounds,
    Started,
    Task,
    UpdateReport,
    Withdrawal,
    Work,
)
from client_sdk.protocol.secure import SecureRefusal, SecureSigned, SecureTask, SecureWait, Stage
from client_sdk.secagg.actions import DeviceContribution
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.quantize import Quantizer, StatisticRange
from client_sdk.tensors import read_header
from client_sdk.tensors.safetensors_file import from_bytes
from client_sdk.update import Update, decode_report
from coordinator.requests import devices, secure

INDEPENDENT, ABSENT, OUTSIDE = "independent of data", "absent", "said whatever the run"
"""OUTSIDE: how many examples a device has, which it says before it knows of any run: docs/privacy.md names it."""
MASKED, NOISED = "the masked vector", "inside the noised sum"
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
    SecureBounds: {
        "smallest_cohort": INDEPENDENT,
        "most_colluding": INDEPENDENT,
        "largest_norm": INDEPENDENT,
        "smallest_norm": INDEPENDENT,
        "largest_range": INDEPENDENT,
        "largest_weight_cap": INDEPENDENT,
        "smallest_sigma": INDEPENDENT,
        "strict_only": INDEPENDENT,
        "fewest_examples": INDEPENDENT,
        "whole_passes": INDEPENDENT,
        "fewest_steps": INDEPENDENT,
        "largest_batch": INDEPENDENT,
        "sums_a_day": INDEPENDENT,
        "sums_made": INDEPENDENT,  # of what the device took part in
        "nearest_model": INDEPENDENT,
        "near_repeats": INDEPENDENT,
        "origins": INDEPENDENT,
        "model_keys": INDEPENDENT,
        "largest_move": INDEPENDENT,
        "late_moves": INDEPENDENT,
    },
    SecureWait: {"hold_s": INDEPENDENT},
    SecureSigned: {"signature": MASKED, "certificate": INDEPENDENT, "body": MASKED},
    SecureRefusal: {"spent": INDEPENDENT, "reason": ABSENT},
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
UNDER_MASKS = {
    "values": NOISED,  # and the bit of a clip that adapts, which is made of them
    "weight": INDEPENDENT,  # each device weighs the cap
    "rounding_secret": ABSENT,
    "statistics": ABSENT,
    "tensors": ABSENT,
}
"""What a device puts into its lanes. The last of them is the canary, which is 1."""


STAGES: dict[str, str] = {
    "advertise": INDEPENDENT,
    "share": INDEPENDENT,
    "mask": MASKED,
    "survivors": INDEPENDENT,
    "unmask": INDEPENDENT,
    "complain": INDEPENDENT,
    "open": INDEPENDENT,
}
"""What the bytes of a secure round's messages tell."""


@pytest.mark.parametrize("message", FIELDS, ids=lambda message: message.__name__)
def test_each_field_is_accounted_for(message: type[BaseModel]) -> None:
    assert set(message.model_fields) == set(FIELDS[message]), "say of each field what it tells of data"


def messages_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The messages that a type of a field consists of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from messages_in(inner)


def test_each_message_that_a_device_may_send_is_accounted_for() -> None:
    """By the coordinator's table of requests, and what is in these messages."""
    entries = (*devices.ENTRIES, *secure.ENTRIES)
    found = {entry.message for entry in entries if entry.message is not None} | {UpdateReport}
    while (
        more := {
            inner
            for message in found
            for name, field in message.model_fields.items()
            if FIELDS[message][name] != ABSENT
            for inner in messages_in(field.annotation)
        }
        - found
    ):
        found |= more
    assert found == set(FIELDS)
    assert set(get_args(Stage)) == set(STAGES)


def test_each_lane_of_a_masked_vector_is_accounted_for() -> None:
    """All devices have the same lanes, but for those of the values; statistics and noise do not go together."""
    assert {field.name for field in fields(DeviceContribution)} == set(UNDER_MASKS)
    quantizer = Quantizer(q=16, max_norm=1.0, max_abs=1.0, weight_cap=1, noise=1.0, divisor=2)
    secure = SecureTask(
        q=16, max_norm=1.0, max_abs=1.0, weight_cap=1, weighting="equal", profile="strict", minimum_cohort=3
    )
    found = []
    for value, examples in ((0.25, 7), (0.5, 1000)):
        lanes = quantizer.lanes(np.full(4, value, np.float32), weight_of(examples, secure), 20, bytes(32))
        found.append(lanes[4:].tolist())
    assert found == [[1, 1]] * 2, "weight and canary"
    adapts = replace(quantizer, clip=0.7)
    assert adapts.bit_lanes == 1, "the lane behind the values has noise, as they have: AttemptHeader.noised"
    bits = [adapts.lanes(np.full(4, value, np.float32), 1, 20, bytes(32))[4:].tolist() for value in (0.25, 0.5)]
    assert bits == [[2 * adapts.bit, 1, 1], [0, 1, 1]], "it is all that differs"
    with pytest.raises(BadParameters, match="covers no statistics"):
        replace(quantizer, statistics=(StatisticRange(1, 1.0, False),))


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
