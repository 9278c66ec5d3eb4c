"""A content is uploaded once, and again where the coordinator may have dropped it since."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from client_sdk.flower.records import Encoded
from coordinator.flower.grid import STORED_S, OutgoingContents
from coordinator.runtime.flower.retention import UNNEEDED_S


def test_a_content_is_uploaded_again_before_the_coordinator_can_have_dropped_it() -> None:
    uploaded: list[Encoded] = []
    now = [1000.0]
    contents = OutgoingContents(uploaded.append, lambda: now[0])
    records = RecordDict({"question": ConfigRecord({"of": "loss"})})
    digest = contents.store(records)
    now[0] += STORED_S - 1
    assert contents.store(records) == digest
    assert len(uploaded) == 1
    now[0] += 1
    assert contents.store(records) == digest
    assert [content.digest for content in uploaded] == [digest, digest]
    now[0] -= 10.0  # a clock that was set back tells nothing
    contents.store(records)
    assert len(uploaded) == 3
    assert UNNEEDED_S / 2 >= STORED_S, "a push follows its upload within the time that is left"
