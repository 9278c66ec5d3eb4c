"""What a coordinator keeps in memory of an attempt: each signature is read once, and what is over is freed, also where
another replica has ended it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from client_sdk.secagg.survivors import Proof
from coordinator.secure.attempt import Attempts
from tests.coordinator.served import RUN, Served
from tests.coordinator.service.wire import Wire


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    made.secure_run()
    made.begin()
    yield made
    made.close()


def test_repro_each_signature_is_read_once_however_often_the_proof_grows(
    world: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.play(lambda: world.state.phase == "unmasking")
    attempts, secure = Attempts(world.blobs, world.coordinator.core.log(RUN).messages), world.state.secure
    (group,) = attempts.groups(secure)
    places = group.places
    read: Counter[str] = Counter()
    messages = Attempts.messages

    def counted(self: Attempts, digests: Iterable[str]) -> Iterator[bytes]:
        wanted = list(digests)
        read.update(wanted)
        return messages(self, wanted)

    monkeypatch.setattr(Attempts, "messages", counted)
    arrived: dict[str, str] = {}
    for device, digest in secure.signed.items():
        arrived[device] = digest
        found = Proof.parse(attempts.proof(replace(secure, signed=dict(arrived)), group), 6)
        assert dict(found.signatures) == {places[one]: next(messages(attempts, [arrived[one]])) for one in arrived}
    assert len(arrived) > 3
    assert read == Counter(secure.signed.values())


def test_a_replica_that_opens_nothing_frees_the_shares_at_the_end(world: Served) -> None:
    """Devices fetch their shares from one replica; another one goes on with the round and opens the sum."""
    here, there = (world.coordinator, world.wire), world.replica()
    world.play(lambda: world.state.phase == "masking")
    for phone in world.phones:
        assert world.turn(phone)
    attempts = here[0].secure.of(RUN)._attempts
    assert attempts._dealt[1]
    here[0].tick()
    assert attempts._dealt[1], "devices may ask again"
    world.coordinator, world.wire = there, Wire(there)
    world.wires.append(world.wire)
    world.play(lambda: world.state.phase == "unmasking")
    here[0].secure.of(RUN).requests.header(world.rows[0].device, 1)
    assert here[0].core.log(RUN).catch_up().phase == "unmasking"
    here[0].tick()
    assert attempts._dealt[1], "what devices reveal is compared with them"
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1
    assert here[0].core.log(RUN).catch_up().version == 1
    here[0].tick()
    assert (attempts._dealt, attempts._last) == (("", {}), None)
