"""What a device remembers, as bytes: read back as it was written, or not at all; and what it leaves in buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.errors import BadMessage, SecaggError, Superseded
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.memory import FORMAT, LEAST_BYTES, Advertisements, Memory, Step
from client_sdk.secagg.roster import AttemptSecrets
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.statement import WireWriter
from tests.client_sdk.secagg.attempt import changed, digest, entropy, header
from tests.client_sdk.secagg.fleet import Coordinator, Member, finished, fleet, tensors_of, until_masked

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
    model = tensors_of(coordinator.header.model)
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


# Steps.


def test_each_step_is_named_and_holds_what_it_needs_and_no_more() -> None:
    steps = {step: next(iter(Memory.parse(DISKS[step]).live.values())) for step in STEPS[1:-1]}
    assert [live.step.name.lower() for live in steps.values()] == list(STEPS[1:-1])
    names = ("secrets", "certificate", "revocations", "roster", "bundle", "held", "vector", "survivors", "revealed")
    assert {step: {name for name in names if getattr(live, name)} for step, live in steps.items()} == {
        "advertised": {"secrets", "certificate", "revocations"},
        "shared": {"secrets", "roster", "bundle", "held"},
        "masked": {"secrets", "roster", "bundle", "held", "vector"},
        "signed": {"roster", "survivors", "revealed"},
    }


@pytest.mark.parametrize("step", STEPS[1:-1])
def test_fields_that_do_not_fit_the_step_are_no_attempt(step: str) -> None:
    """Whichever field is missing or too many, and whichever other step is said: also in bytes whose checksum is
    right."""
    live = next(iter(Memory.parse(DISKS[step]).live.values()))
    other: dict[str, Any] = {
        "secrets": AttemptSecrets.draw(entropy("another")),
        "held": {0: SharePair(bytes(33), bytes(33))},
        **dict.fromkeys(("certificate", "revocations", "roster", "bundle", "vector", "survivors", "revealed"), b"x"),
    }
    changes: list[dict[str, Any]] = [{"step": wrong} for wrong in Step if wrong != live.step]
    for name, value in other.items():
        if not getattr(live, name):
            changes.append({name: value})
        elif (name, step) != ("held", "shared"):  # on a ring, a device that has shared holds no share yet
            changes.append({name: type(value)() if not isinstance(value, AttemptSecrets) else None})
    for change in [*changes, {"header": b""}, {"advertised": b""}]:
        with pytest.raises(BadMessage, match=f"the step {change.get('step', live.step).name} holds"):
            replace(live, **change)


def test_a_step_that_is_none_is_refused_when_it_is_read() -> None:
    out = WireWriter(64).number(FORMAT, 2).number(0, 8).number(0, 1)
    for _ in range(5):
        out.number(0, 4)
    out.number(0, 1).number(0, 4)
    out.number(1, 4).fixed(bytes(32), 32).number(5, 1).fixed(bytes(LEAST_BYTES - 1), LEAST_BYTES - 1)
    with pytest.raises(BadMessage, match="an attempt is at no step"):
        Memory.parse(out.checked())


def test_a_step_is_stored_only_in_place_of_the_one_from_which_it_was_made() -> None:
    memories = {step: Memory.parse(DISKS[step]) for step in STEPS}
    (tensors,) = memories["shared"].live
    lives = [memory.live.get(tensors) for memory in memories.values()]
    after = memories["signed"].live[tensors]
    lives += [replace(live, header=changed(header(dimension=5), attempt=1).encoded) for live in lives if live]
    for memory in memories.values():
        for seen in lives:
            if memory.live.get(tensors) == seen:
                assert memory.moved(tensors, seen, after).live == {tensors: after}
            else:
                with pytest.raises(Superseded):
                    memory.moved(tensors, seen, after)
    other = bytes(32)
    assert memories["shared"].moved(other, None, after).live == {**memories["shared"].live, other: after}


def test_the_tries_of_a_spent_checkpoint_go() -> None:
    tried = Advertisements(count=3, last_at=0.0)
    tensors, other = digest("tensors"), digest("other")
    memory = Memory(advertisements={tensors: tried, other: tried}).signed_on(tensors)
    assert (memory.spent, memory.advertisements) == ({tensors}, {other: tried})
    assert Memory.parse(memory.encoded) == memory


@pytest.mark.parametrize("other", [0, 1, FORMAT - 1, FORMAT + 1, 65535])
def test_a_memory_of_an_unknown_format_is_refused(other: int) -> None:
    with pytest.raises(BadMessage, match="another version of this package"):
        Memory.parse(WireWriter(64).number(other, 2).fixed(bytes(64), 64).checked())


def test_names_in_clear_are_kept_and_those_of_a_device_without_secure_rounds_are_damage() -> None:
    for plain in (None, frozenset[str](), frozenset({"a:b", "c/d"})):
        assert Memory.parse(Memory(plain=plain).encoded).plain == plain
    for joined, names in ((0, ("a:b",)), (2, ())):
        out = WireWriter(64).number(FORMAT, 2).number(0, 8).number(joined, 1).number(len(names), 4)
        for name in names:
            out.text(name)
        for _ in range(6):
            out.number(0, 4)
        with pytest.raises(BadMessage, match="whether data may go in clear"):
            Memory.parse(out.checked())


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
