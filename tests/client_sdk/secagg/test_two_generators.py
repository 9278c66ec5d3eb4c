"""Two programs play one device at once, over one storage: between them, they take each step once.

A coordinator that holds all other devices answers both as it likes: with two rosters, two lists, two attempts or two
runs. Whatever order their actions come in, one list is signed on the checkpoint, one vector is masked for each
advertisement, and one kind of share is revealed of each peer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.device.storage import MemoryStorage
from client_sdk.secagg.actions import AttemptAction, AttemptReply, DeviceContribution, Keep, ServerAnswer, Transmit
from client_sdk.secagg.errors import Refusal, SecaggError, Superseded
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Memory, Step
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, Survivors
from tests.client_sdk.secagg.attempt import changed, digest
from tests.client_sdk.secagg.cheater import costly_steps_done_once
from tests.client_sdk.secagg.cheats import Cheat
from tests.client_sdk.secagg.fleet import expected
from tests.client_sdk.secagg.oracle import View, view
from tests.rotating import in_parts

N = 5
MOVES = 11
"""Actions of one generator that plays its attempt to the end."""
TENSORS = digest("the tensors")
ALL, FEWER = (0, 1, 2, 3, 4), (0, 1, 2, 3)


@dataclass
class Script:
    """What the coordinator tells one of the generators."""

    header: AttemptHeader
    roster: tuple[int, ...] = ALL
    listed: tuple[int, ...] = ALL
    at: float = 0.0


@dataclass
class Story:
    """Device 0 of five, twice, and a coordinator that has the others."""

    scripts: tuple[Script, Script]
    snapshots: bool = False
    """Whether each program overwrites the storage with its own copy: what storages did before, as a control."""
    sent: list[tuple[int, Transmit]] = field(default_factory=list)
    errors: dict[int, SecaggError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cheat = Cheat(N, range(1, N))
        self.storage = MemoryStorage()
        self.own: dict[int, Memory] = {}
        self.views: dict[int, View] = {}
        self.newest, self.replaced = b"", False
        self.halves = []
        self.next: dict[int, AttemptAction | None] = {}
        member = self.cheat.members[0]
        put_in = DeviceContribution(values=member.values, weight=10, rounding_secret=digest("rounding"))
        for script in self.scripts:
            wants = replace(expected(script.header), tensors=TENSORS)
            self.halves.append(member.device.attempt(script.header.encoded, wants, put_in, script.at))
        for which in (0, 1):
            self._go_on(which, None)

    def move(self, which: int) -> bool:
        """One generator's next action is performed. False where it has none: it is through, or has raised."""
        action = self.next[which]
        if action is None:
            return False
        if isinstance(action, Keep):
            try:
                reply: AttemptReply = self._keep(which, action)
            except SecaggError as error:
                self.errors[which], self.next[which] = error, None
                return True
        else:
            self.sent.append((which, action))
            reply = ServerAnswer(self.scripts[which].at, self._answer(which, action))
        self._go_on(which, reply)
        return True

    def _go_on(self, which: int, reply: AttemptReply) -> None:
        try:
            self.next[which] = self.halves[which].send(reply)
        except StopIteration:
            self.next[which] = None
        except SecaggError as error:
            self.errors[which], self.next[which] = error, None

    def _keep(self, which: int, action: Keep) -> Memory:
        if not self.snapshots:
            before = self.storage.load_secure()
            after = self.storage.keep(action.change)
            self._watch(before, after)
            return after
        self.own[which] = action.change(self.own.get(which, self.storage.load_secure()))
        return self.storage.keep(lambda _: self.own[which])

    def _watch(self, before: Memory, after: Memory) -> None:
        """Which attempt was begun last, and whether an older one takes a step."""
        live = after.live.get(TENSORS)
        if live is None or live == before.live.get(TENSORS):
            return
        if live.step is Step.ADVERTISED:
            self.newest = live.header
        elif live.header != self.newest:
            self.replaced = True

    def _answer(self, which: int, message: Transmit) -> bytes:
        """What the script says, as far as it can be made of what was sent."""
        cheat, script = self.cheat, self.scripts[which]
        if message.stage == "advertise":
            for other in range(1, N):
                cheat.collude(other, script.header)
            cheat.hear(0, script.header, message)
            self.views[which] = cheat.roster(script.header, script.roster)
            return self.views[which].roster.encoded
        where = self.views.get(which) or self._stored(which)
        if message.stage == "share":
            for other in range(1, len(where.roster)):
                cheat.bundles[where.h][other] = cheat.dealt(where, other)
            return cheat.delivery(where, 0)
        if message.stage == "mask":
            return cheat.listing(where, script.listed[: len(where.roster)])
        if message.stage == "survivors":
            return self._proof(where, message)
        return b""

    def _stored(self, which: int) -> View:
        """The roster that the other one has accepted, with which this one began."""
        live = self.storage.load_secure().live.get(TENSORS)
        if live is not None and live.header == self.scripts[which].header.encoded:
            self.views[which] = view(self.scripts[which].header, live.roster)
        else:
            self.views[which] = self.views[1 - which]
        return self.views[which]

    def _proof(self, where: View, message: Transmit) -> bytes:
        """Everybody on the list has signed it."""
        found = {self.cheat.place(where, 0): message.signature}
        for place in Survivors.parse(message.body, len(where.roster)).places:
            signer = self.cheat.members[int(where.shown[place].device[-4:])].device.signer
            found.setdefault(place, signed(signer, where.h, "survivors", message.body))
        return Proof(tuple(sorted(found.items()))).encoded

    def play(self, schedule: Iterable[int]) -> Story:
        """The moves in this order, then whatever is left of both."""
        for which in schedule:
            self.move(which)
        for which in (0, 1):
            while self.move(which):
                pass
        return self

    def bodies(self, stage: str) -> set[bytes]:
        return {message.body + message.blob for _, message in self.sent if message.stage == stage}

    def broken(self) -> list[str]:
        """Which promises were broken."""
        found = ["an attempt that was replaced took a step"] if self.replaced else []
        if len(self.bodies("survivors")) > 1:
            found.append("two lists were signed on one checkpoint")
        if len(self.bodies("unmask")) > 1:
            found.append("two kinds of share were revealed")
        shown: dict[bytes, dict[str, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        for which, message in self.sent:
            if message.stage in ("share", "mask"):
                advertised = self.cheat.shown(self.views[which], 0).encoded
                shown[advertised][message.stage].add(message.body + message.blob)
        for stages in shown.values():
            found += [f"two messages of {stage} under one advertisement" for stage in stages if len(stages[stage]) > 1]
        by_header = defaultdict(set)
        for which, message in self.sent:
            if message.stage == "advertise":
                by_header[self.scripts[which].header.encoded].add(message.body)
        found += ["two advertisements under one header" for shows in by_header.values() if len(shows) > 1]
        return found


def same(**changes: Any) -> tuple[Script, Script]:
    """Both play one attempt; the second is told otherwise."""
    head = Cheat(N).head
    return Script(head), replace(Script(head), **changes)


def apart(**changes: Any) -> tuple[Script, Script]:
    """The second plays another attempt, in another run perhaps, which begins when the pause is over."""
    head = Cheat(N).head
    return Script(head), Script(changed(head, **changes), listed=FEWER, at=30.0)


STORIES: dict[str, tuple[Script, Script]] = {
    "one attempt, told the same": same(),
    "one attempt, two lists": same(listed=FEWER),
    "one attempt, two rosters": same(roster=FEWER),
    "two attempts": apart(attempt=1),
    "two rounds": apart(round=10),
    "two runs": apart(run="run-2"),
    "two runs, two files of one model": apart(run="run-2", model=digest("another file")),
}

EXPECTED = (Superseded, Refusal)


def judged(story: Story) -> None:
    assert story.broken() == []
    assert all(isinstance(error, EXPECTED) for error in story.errors.values()), story.errors
    assert story.bodies("unmask"), "at least one of them comes to its end"
    if story.scripts[0].header == story.scripts[1].header:
        spoke = {which for which, _ in story.sent}
        assert all(isinstance(story.errors[which], Superseded) for which in spoke & story.errors.keys())
    assert story.storage.load_secure().live == {}
    assert list(story.storage.load_secure().spent) == [TENSORS]


def overtaken(name: str, ones: Iterable[int], others: Iterable[int]) -> None:
    """One goes as far as it goes, then the other as far as that goes, then the first to its end."""
    with costly_steps_done_once():
        for one, other in product(ones, others):
            judged(Story(STORIES[name]).play([0] * one + [1] * other))


@pytest.mark.parametrize("name", STORIES)
def test_repro_one_may_overtake_the_other_at_every_second_action(name: str) -> None:
    overtaken(name, range(0, MOVES + 1, 2), (2, 5, MOVES))


@pytest.mark.slow
@pytest.mark.parametrize("name", in_parts(STORIES, of=2))
def test_one_may_overtake_the_other_at_any_action(name: str) -> None:
    overtaken(name, range(MOVES + 1), range(1, MOVES + 1))


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(STORIES)), schedule=st.lists(st.integers(0, 1), max_size=2 * MOVES))
def test_whatever_the_order_of_their_actions(name: str, schedule: list[int]) -> None:
    judged(Story(STORIES[name]).play(schedule))


@pytest.mark.parametrize("name", [name for name in STORIES if name != "one attempt, told the same"])
def test_a_storage_that_each_overwrites_with_its_own_copy_is_seen_to_break_this(name: str) -> None:
    """The control: the same stories on storages as they were before changes had a lock."""
    found = set()
    for one, other in product((2, 5, 8), (8, MOVES)):
        found |= set(Story(STORIES[name], snapshots=True).play([0] * one + [1] * other).broken())
    assert "two lists were signed on one checkpoint" in found


def test_who_was_overtaken_ends_and_reports_nothing() -> None:
    story = Story(STORIES["one attempt, told the same"]).play([0] * 3 + [1] * MOVES)
    assert isinstance(story.errors[0], Superseded)
    assert not isinstance(story.errors[0], Refusal)
    assert 1 not in story.errors


@pytest.mark.parametrize("name", ["one attempt, told the same", "two attempts", "two runs"])
def test_who_is_overtaken_before_it_begins_is_not_told_of_a_replay_or_a_pause(name: str) -> None:
    """Both have found no attempt; one begins. The other one's refusal would end the round for both."""
    story = Story(STORIES[name]).play([1, *[0] * 3, 1])
    assert isinstance(story.errors[1], Superseded)
    assert 0 not in story.errors
