"""Whole sessions of a device against a coordinator that lies at random, with crashes at random: what the session itself
must hold, whatever it is told. (What the exchanges must hold: ``tests/client_sdk/secagg/test_cheating.py``.)
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from client_sdk.device.actions import Answered, Reply, RequestRefused, Send
from client_sdk.device.secure_round import RoundEnds
from client_sdk.protocol.devices import Noted, Outcome
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import Octets
from client_sdk.secagg.survivors import Survivors
from tests.client_sdk.device.secure_world import SessionPhone, world_with
from tests.coordinator.secure.world import World

REFUSALS = ("late", "stale", "withdrawn", "not-selected", "conflict", "unknown-round", "invalid-update", "busy")
TURNS = 150


class _GaveUp(Exception):
    """The device was told too much that is wrong: it will not end by itself."""


class Liar:
    """Lies to one device: refuses, acknowledges what it has thrown away, sends old answers again, those of another
    exchange, altered ones, and lists without one of the survivors."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.world, (self.phone, _) = world_with(2)
        self._rate = self._chance.choice([0.02, 0.1, 0.3])
        self._heard: list[bytes] = []
        self.phone.interfere, self.phone.change = self._interfere, self._change
        self.phone.crashes = {
            self._chance.randrange(80): self._chance.choice(["before", "after"])
            for _ in range(self._chance.randrange(4))
        }
        self._turns = 0

    def play(self) -> SessionPhone:
        with suppress(_GaveUp, ProblemError):  # a session ends by the problem that its check-in is answered
            self.world.play(self._until)
        return self.phone

    def _until(self, world: World) -> bool:
        self._turns += 1
        if self._turns > TURNS:
            raise _GaveUp
        return self.phone.resting and self._turns > 50

    def _interfere(self, send: Send) -> Reply:
        if self._chance.random() >= self._rate or send.route is Route.CHECK_IN:
            return None
        if send.method == "PUT" and self._chance.random() < 0.3:
            return Answered(Noted(), self.world.at)
        if send.route is Route.OUTCOME and self._chance.random() < 0.5:
            result = self._chance.choice(["pending", "counted", "dropped"])
            number = int(send.path["round"])
            said = Outcome(run="run-1", round=number, device=self.phone.name, result=result)
            return Answered(said, self.world.at)
        return RequestRefused(problem(self._chance.choice(REFUSALS), "a lie", retry_after_s=1).problem, self.world.at)

    def _change(self, found: Octets, send: Send) -> Octets:
        content = found.content
        self._heard.append(content)
        if self._chance.random() >= self._rate:
            return found
        lies = [self._chance.choice(self._heard), b""]
        if content:
            place = self._chance.randrange(len(content))
            lies.append(
                content[:place] + bytes([content[place] ^ 1 << self._chance.randrange(8)]) + content[place + 1 :]
            )
        if send.path.get("stage") == "mask" and content:
            places = Survivors.parse(content, 100).places
            gone = self._chance.choice(places)
            lies.append(Survivors(tuple(place for place in places if place != gone)).encoded)
        return Octets(content=self._chance.choice(lies))


def broken(phone: SessionPhone) -> list[str]:
    """What does not hold of what this device has sent and stored."""
    record, memory = phone.storage.load(), phone.storage.load_secure()
    assert record is not None
    stages = {stage for _, _, stage in phone.sent}
    lists = [sent for (_, _, stage), sent in phone.sent.items() if stage == "survivors"]
    found = [f"{key} was sent in two forms" for key, sent in phone.sent.items() if len(sent) > 1]
    found += ["it has signed lists of two attempts"] if len(lists) > 1 else []
    found += ["it has revealed shares, and signed no list"] if "unmask" in stages and not lists else []
    found += ["it has signed and is not spent"] if lists and not memory.spent else []
    found += ["it has signed, and its clear update is there"] if lists and record.update_digest is not None else []
    found += ["its round is over, and secrets are left"] if record.assignment is None and memory.live else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_whatever_a_session_is_told_it_says_each_thing_once_and_leaves_no_secret(part: int) -> None:
    signed = 0
    for seed in range(15 * part, 15 * part + 15):
        phone = Liar(seed).play()
        assert not broken(phone), (seed, broken(phone))
        signed += any(stage == "survivors" for _, _, stage in phone.sent)
    assert signed >= 2, "the liar lets some get far"


@pytest.mark.slow
def test_the_same_liar_finds_a_session_that_forgets_to_delete_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: RoundEnds, assignment: object) -> object:
        return
        yield

    monkeypatch.setattr(RoundEnds, "_forget", nothing)
    assert any("its round is over, and secrets are left" in broken(Liar(seed).play()) for seed in range(25))
