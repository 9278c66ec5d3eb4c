"""What a device remembers, as bytes: read back as it was written, or not at all; and what it leaves in buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.secagg.device import Primitives
from client_sdk.secagg.errors import BadMessage, SecaggError
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.memory import Memory
from tests.client_sdk.secagg.attempt import changed, header
from tests.client_sdk.secagg.fleet import Coordinator, Member, finished, fleet, until_masked

STEPS = ("nothing", "advertised", "shared", "masked", "signed", "over")


def disks() -> dict[str, bytes]:
    """What the first of four devices has on its disk after each step of a round."""
    members, authority = fleet(4)
    coordinator = Coordinator(header(dimension=5), authority, members)
    first = members[0]
    found = {"nothing": first.disk}
    roster = coordinator.open()
    found["advertised"] = first.disk
    for place, member in enumerate(members):
        member.tell(roster)
        coordinator.hear_share(place)
    found["shared"] = first.disk
    for place, member in enumerate(members):
        member.tell(coordinator.delivery(place))
        coordinator.hear_mask(place)
    found["masked"] = first.disk
    survivors = coordinator.survivors()
    for place, member in enumerate(members):
        member.tell(survivors.encoded)
        coordinator.hear_survivors(place)
    found["signed"] = first.disk
    finished(coordinator, survivors)
    found["over"] = first.disk
    return found


DISKS = disks()


@pytest.mark.parametrize("step", STEPS)
def test_memory_is_read_back_at_every_step(step: str) -> None:
    assert Memory.parse(DISKS[step]).encoded == DISKS[step]


@pytest.mark.parametrize("step", STEPS)
def test_a_memory_with_one_wrong_bit_is_no_memory(step: str) -> None:
    """In a spent checkpoint's digest it would be leave to sign there once more; in a masked vector a wrong sum."""
    disk = DISKS[step]
    rng = np.random.default_rng(0)
    bits = range(len(disk) * 8) if len(disk) < 200 else rng.choice(len(disk) * 8, 500, replace=False)
    for bit in bits:
        wrong = bytearray(disk)
        wrong[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(BadMessage):
            Memory.parse(bytes(wrong))


@pytest.mark.parametrize("step", STEPS)
def test_a_memory_that_is_cut_longer_or_empty_is_no_memory(step: str) -> None:
    disk = DISKS[step]
    for wrong in (b"", disk[:-1], disk[:-32], disk[:31], disk[1:], disk + b"\0", disk + disk, bytes(len(disk))):
        with pytest.raises(BadMessage):
            Memory.parse(wrong)


def test_a_damaged_memory_lets_no_spent_checkpoint_be_signed_again() -> None:
    members, authority = fleet(4)
    coordinator = Coordinator(header(dimension=5), authority, members)
    survivors = until_masked(coordinator)
    member: Member = members[0]
    member.tell(survivors.encoded)
    model = coordinator.header.model
    assert model in member.memory.spent
    at = member.disk.index(model)
    member.disk = member.disk.replace(model, bytes([model[0] ^ 1]) + model[1:])
    assert member.disk[at] == model[0] ^ 1
    message = list(member.log)
    with pytest.raises(SecaggError, match="damaged"):
        member.start(changed(coordinator.header, attempt=1), at=100.0)
    assert member.log == message


@pytest.mark.parametrize("step", STEPS)
def test_when_a_round_is_over_nothing_secret_of_it_is_left_at_any_step(step: str) -> None:
    """Whatever became of it: an abandoned one ends without an answer to the last message."""
    before, head = Memory.parse(DISKS[step]), header(dimension=5)
    after = before.ended(head.encoded)
    assert after.live == {}
    assert replace(after, live=before.live).encoded == before.encoded, "what is spent stays spent"
    assert before.ended(changed(head, attempt=1).encoded) is before
    assert after.ended(head.encoded) is after


# What is in memory while a vector is masked.


class Watched(Masker):
    """Remembers the vector and its own buffer, and may fail at the second mask."""

    fails = False
    vectors: ClassVar[list[Any]] = []
    streams: ClassVar[list[Any]] = []

    def apply(self, vector: Any, *given: Any) -> None:
        if any(one is vector for one in self.vectors) and self.fails:
            raise RuntimeError("the device fell down the stairs")
        self.vectors.append(vector)
        self.streams.append(self._stream.buffer)
        super().apply(vector, *given)
        assert self._stream.buffer.any()


@pytest.mark.parametrize("fails", [False, True])
def test_no_key_stream_and_no_half_masked_vector_is_left_in_a_buffer(fails: bool) -> None:
    class Here(Watched):
        vectors: ClassVar[list[Any]] = []
        streams: ClassVar[list[Any]] = []

    Here.fails = fails
    members, authority = fleet(4)
    first = members[0]
    first.device = replace(first.device, primitives=Primitives(masker=Here))
    coordinator = Coordinator(header(dimension=5), authority, members)
    roster = coordinator.open()
    for place, member in enumerate(members):
        member.tell(roster)
        coordinator.hear_share(place)
    if fails:
        with pytest.raises(RuntimeError):
            first.tell(coordinator.delivery(0))
        assert not Here.vectors[0].any()
    else:
        assert first.tell(coordinator.delivery(0)) is not None
    assert Here.streams
    assert not any(stream.any() for stream in Here.streams)
