"""A secure run with random events in random order against ``step``, and the properties that hold after each.

Most events are near to those that the phase waits for, or a run would never leave the cohort; the rest are stale, early
or late, sent twice, or sent by unknown devices. After each of them ``SecureStory`` checks that the state survives JSON,
that pending is what is in flight, and that the devices that work have claims.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from coordinator.engine.event_fields import Group
from tests.coordinator.engine.secure_story import POOL, SecureStory, place_of, ring_of
from tests.coordinator.engine.story import FALLBACK, attempt_of, digest_of, every
from tests.coordinator.engine.transitions import arrows, transitions

pytestmark = pytest.mark.slow

BEFORE_SIGNING = ("selecting", "collecting", "sharing", "masking")
FROM_THE_LIST = ("agreeing", "unmasking", "committing")
PLANS: list[dict[str, Any]] = [
    {},
    {"secure": {"attempts": 2, "barred_rounds": 2}, "cohort": {"quorum": 0.5}},
    {"secure": {"reserve": 2, "minimum_cohort": 5}},
    {"datacenter": {**FALLBACK, "patience": 2}},
]
DEVICES = st.sampled_from(POOL)
SHIFT = st.sampled_from([0] * 15 + [-1, 1])
DRAFT = st.sampled_from([0] * 9 + [1])


class SecureRun(RuleBasedStateMachine):
    """One run; each rule is one happening, and ``_happens`` holds what it did against the promises."""

    @initialize(plan=st.sampled_from(PLANS), ring=st.booleans(), groups=st.sampled_from([1, 1, 2, 3]))
    def begin(self, plan: dict[str, Any], ring: bool, groups: int = 1) -> None:
        self.story = SecureStory(**plan)
        self.ring, self.groups = ring, groups
        self.ended: Counter[int] = Counter()
        self.line = [0]
        self.counted: Counter[tuple[int, str]] = Counter()
        self.acknowledged: set[tuple[int, str]] = set()
        self.settled: set[tuple[int, str]] = set()
        self.digests: set[str] = set()
        self.marks: set[tuple[str, str]] = set()
        self._happens(self.story.created)

    # ------------------------------------------------------------ happenings

    @rule(chosen=st.sets(DEVICES, min_size=3), unspendable=st.integers(0, 6), shift=SHIFT)
    def drawn(self, chosen: set[str], unspendable: int, shift: int) -> None:
        number = self.story.state.round_number + shift
        cohort = sorted(chosen - set(self.story.state.spent)) if unspendable else sorted(chosen)
        self._happens(lambda: self.story.drawn_from(*cohort, unspendable=unspendable, round=number))

    @rule(draft=DRAFT, shift=SHIFT, lives_s=st.sampled_from([1000, 1000, 30]))
    def announced(self, draft: int, shift: int, lives_s: int) -> None:
        state = self.story.state
        header = digest_of("header", state.round_number, self.story.attempt, draft)
        expires_at, attempt = int(self.story.at) + lives_s, self.story.attempt + shift
        self._happens(lambda: self.story.announced(header=header, expires_at=expires_at, attempt=attempt))

    @rule(device=DEVICES, draft=DRAFT, shift=SHIFT, kind=st.integers(0, 4))
    def says(self, device: str, draft: int, shift: int, kind: int) -> None:
        """Any message of any device, in time or not."""
        answer = ("advertised", "shared", "masked", "signed", "revealed")[kind]
        self._says(answer, device, draft, shift)

    @rule(count=st.integers(1, 6), skip=st.sets(DEVICES, max_size=2))
    def most_go_on(self, count: int, skip: set[str]) -> None:
        """Several devices say what the phase waits for."""
        answer = {"collecting": "advertised", "sharing": "shared", "masking": "masked", "agreeing": "signed"}
        for device in [device for device in POOL if device not in skip][-count:]:
            self._says(answer.get(self.story.state.phase, "revealed"), device, 0, 0)

    @rule(
        steps=st.integers(1, 8),
        skip=st.sets(DEVICES, max_size=2),
        silent_from=st.integers(0, 6),
        after_s=st.sampled_from([0.0, 20.0]),
    )
    def goes_on(self, steps: int, skip: set[str], silent_from: int, after_s: float) -> None:
        """All do their part in the round, but for these from some moment on; perhaps the time is up then."""
        for number in range(steps):
            self.all_go_on(skip if number >= silent_from else set())
        self.time_passes(after_s)

    @rule(device=DEVICES, draft=DRAFT)
    def says_everything(self, device: str, draft: int) -> None:
        """One device says all that there is to say, whatever the phase."""
        for message in ("advertised", "shared", "masked", "signed", "revealed"):
            self._says(message, device, draft, 0)

    @rule(skip=st.sets(DEVICES, max_size=1))
    def all_go_on(self, skip: set[str]) -> None:
        """What the server does by itself, and what all but these say next."""
        state = self.story.state
        match state.phase:
            case "collecting" if state.secure is not None and not state.secure.header:
                self.announced(0, 0, 1000)
            case "sharing" if state.secure is not None and not state.secure.roster:
                self.rostered(0, 0, 0)
            case "selecting":
                self.drawn(set(POOL), 0, 0)
            case "committing":
                self.committed()
            case "unmasking" if state.secure is not None and state.secure.opening:
                self.opened(0, 0)
            case _:
                self.most_go_on(8, skip)

    @rule(shift=SHIFT, draft=DRAFT, without=st.sampled_from([0, 0, 1]))
    def rostered(self, shift: int, draft: int, without: int) -> None:
        state = self.story.state
        advertised = sorted(state.secure.advertised) if state.secure is not None else ["a", "b", "c", "d"]
        order = tuple(advertised[without:])
        if len(order) < 3:
            return
        digest = digest_of("roster", state.round_number, self.story.attempt, order, draft)
        groups = tuple(self._group(order[number :: self.groups]) for number in range(self.groups))
        found = {"groups": groups, "digest": digest, "attempt": self.story.attempt + shift}
        self._happens(lambda: self.story.happens(ev.Rostered(at=self.story.at, round=state.round_number, **found)))

    def _group(self, order: tuple[str, ...]) -> Group:
        threshold = 2 * len(order) // 3 + 1
        numbers: dict[str, Any] = {"threshold": threshold, "signers": threshold, "fewest": threshold}
        if self.groups == 1:
            numbers["fewest"] = max(3, threshold)
        if self.ring and len(order) > 5:
            numbers = {**ring_of(order, 4, 3), "signers": threshold, "fewest": max(3, threshold - 1)}
        return Group(order=order, **numbers)

    def _unopened(self) -> int:
        secure = self.story.state.secure
        return 0 if secure is None else min(secure.standing.keys() - secure.sums.keys(), default=0)

    @rule(device=DEVICES, dealers=st.sets(DEVICES, max_size=3), shift=SHIFT)
    def complained(self, device: str, dealers: set[str], shift: int) -> None:
        attempt = self.story.attempt + shift
        self._happens(lambda: self.story.complained(device, *sorted(dealers), attempt=attempt))
        self._says("masked", device, 0, 0)

    @rule(device=DEVICES, holders=st.sets(DEVICES, max_size=3), shift=SHIFT)
    def pairs_opened(self, device: str, holders: set[str], shift: int) -> None:
        secure, attempt = self.story.state.secure, self.story.attempt + shift
        asking = {} if secure is None else secure.complaints
        found = sorted(holders) or [holder for holder, dealers in sorted(asking.items()) if device in dealers]
        self._happens(lambda: self.story.pairs_opened(device, *found, attempt=attempt))
        for holder in found:
            self._says("masked", holder, 0, 0)

    @rule(device=DEVICES, shift=SHIFT)
    def faulted(self, device: str, shift: int) -> None:
        attempt = self.story.attempt + shift
        self._happens(lambda: self.story.faulted(device, attempt=attempt))

    @rule(device=DEVICES, shift=SHIFT, which=st.sampled_from(["spent", "declined"]))
    def says_that_it_is_final(self, device: str, shift: int, which: str) -> None:
        attempt = self.story.attempt + shift
        self._happens(lambda: getattr(self.story, which)(device, attempt=attempt))

    @rule(device=DEVICES)
    def unbarred(self, device: str) -> None:
        barred = self.story.state.barred
        self._happens(lambda: self.story.unbarred(min(barred, default=device)))

    @rule(device=DEVICES)
    def withdrew(self, device: str) -> None:
        self._happens(lambda: self.story.withdraws(device))

    @rule(draft=DRAFT, shift=SHIFT)
    def opened(self, draft: int, shift: int) -> None:
        state = self.story.state
        number = self._unopened()
        found = {"digest": digest_of("sum", state.round_number, number, draft), "attempt": self.story.attempt + shift}
        self._happens(lambda: self.story.opened(group=number, **found))

    @rule(lost=st.sets(DEVICES, max_size=2))
    def opening_failed(self, lost: set[str]) -> None:
        self.goes_on(7, set(), 7, 0.0)
        number, secure = self._unopened(), self.story.state.secure
        lost &= set(secure.groups[number].order) if secure is not None and secure.groups else lost
        self._happens(lambda: self.story.opening_failed(*sorted(lost), group=number))

    @rule(after_s=st.sampled_from([0.0, 1.0, 5.0, 20.0, 61.0]))
    def time_passes(self, after_s: float) -> None:
        self._happens(lambda: self.story.tick(after_s))

    @rule(by_s=st.sampled_from([0.5, 30.0]))
    def the_clock_falls(self, by_s: float) -> None:
        self.story.at -= by_s
        self._happens(lambda: self.story.happens(ev.ClockFell(at=self.story.at, by_s=by_s)))

    @rule()
    def a_coordinator_is_there_again(self) -> None:
        self._happens(lambda: self.story.happens(ev.Recovered(at=self.story.at)))

    @rule(failed=st.sampled_from([False, False, False, True]))
    def committed(self, failed: bool = False) -> None:
        self._happens(self.story.commit_failed if failed else self.story.committed)

    @rule()
    def advanced(self) -> None:
        self._happens(self.story.advanced)

    @rule(number=st.integers(1, 6))
    def discarded(self, number: int) -> None:
        self._happens(lambda: self.story.discarded(number))

    @rule(which=st.sampled_from(["paused", "resumed", "resumed", "resumed"]))
    def the_operator_acts(self, which: str) -> None:
        self._happens(getattr(self.story, which))

    @rule(which=st.sampled_from(["leased", "delivered", "reported", "started"]), device=DEVICES)
    def something_of_other_rounds(self, which: str, device: str) -> None:
        message = (device,) if which in ("reported", "started") else ()
        self._happens(lambda: getattr(self.story, which)(*message))

    # ------------------------------------------------------------ promises

    def _says(self, verb: str, device: str, draft: int, shift: int) -> None:
        state = self.story.state
        attempt = self.story.attempt
        digest = digest_of(verb, device, state.round_number, attempt, draft)
        self._happens(lambda: getattr(self.story, verb)(device, digest=digest, attempt=attempt + shift))

    def _happens(self, happening: Callable[[], list[fx.Effect]]) -> None:
        before, found = self.story.state, len(self.story.log)
        effects = happening()
        self.digests |= {effect.digest for effect in every(effects, fx.Accepted)}
        self._keeps_the_line(before, effects)
        self._keeps_the_list(before, self.story.state)
        event = self.story.log[-1] if len(self.story.log) > found else None
        self._keeps_who_is_barred(before, self.story.state, event)
        self._keeps_who_is_suspected(before, self.story.state, event)
        self._keeps_marks(before, effects)
        self._keeps_count_of_attempts(before, self.story.state)
        self._settles_what_was_acknowledged(before, effects)
        for event in self.story.log[found:]:
            body = json.loads(json.dumps(ev.to_json(event)))
            assert ev.from_json(event.kind, event.at, body) == event
            if "attempt" in body and not isinstance(event, ev.Leased):
                of = (body["round"], body["attempt"])
                assert of == (before.round_number, attempt_of(before)), "what is of another attempt changes nothing"

    def _keeps_the_line(self, before: states.RunState, effects: list[fx.Effect]) -> None:
        for row in every(effects, fx.RecordRound):
            self.ended[row.round] += row.status != "open"
        for made in every(effects, fx.RecordCheckpoint):
            assert made.parent == self.line[-1]
            self.line.append(made.version)
            after = self.story.state
            assert (after.spent, after.declined) == ((), {}), "a commit of any kind clears who is spent or has declined"
            if before.current.kind == "secure" and not before.current.advancing:
                assert before.secure is not None
                assert {item.device for item in made.contributions} == before.secure.masked.keys()
            else:
                assert made.contributions == ()

    def _keeps_marks(self, before: states.RunState, effects: list[fx.Effect]) -> None:
        """Who becomes spent is marked on the model's tensors, and nobody else is."""
        after = self.story.state
        for mark in every(effects, fx.RecordMark):
            assert (mark.tensors, mark.round) == (before.marked_on, before.round_number)
            assert mark.device in after.spent or after.version
            self.marks.add((mark.tensors, mark.device))
        assert {(after.marked_on, device) for device in after.spent} <= self.marks

    def _keeps_the_list(self, before: states.RunState, after: states.RunState) -> None:
        """Survivors have masked, and are the same from agreeing on; only they sign; a device that signs is spent."""
        if after.secure is None:
            return
        secure = after.secure
        assert secure.shared.keys() <= set(secure.group_of)
        assert secure.masked.keys() <= secure.shared.keys()
        assert secure.signed.keys() <= secure.masked.keys()
        assert secure.revealed.keys() <= secure.signed.keys()
        assert secure.signed.keys() <= set(after.spent)
        assert not {one for group in secure.standing.values() for one in group.order} & after.barred.keys()
        out = after.current.excluded.keys()
        assert all(set(secure.lacks.get(device, ())) <= out for device in secure.masked), (
            "it masks once that is settled"
        )
        if after.phase in FROM_THE_LIST:
            unheld = {dealer for dealers in secure.lacks.values() for dealer in dealers}
            assert unheld <= out - secure.masked.keys(), "complaints settle before the list is shown"
        if before.phase == "selecting":
            left_out = {*after.spent, *after.declined, *after.barred}
            assert not set(after.current.members) & left_out, "who is spent, has declined or is barred is not drawn"
        if secure.roster:
            assert sorted(secure.group_of) == sorted(secure.advertised)
        for number, group in enumerate(secure.groups):
            sent = [getattr(secure, name).keys() & set(group.order) for name in ("shared", "masked", "signed")]
            if number in secure.fallen:
                assert not any(sent), "nothing of a group that fell counts"
                assert number not in secure.sums
            elif after.phase in ("unmasking", "committing"):
                assert len(sent[2]) >= group.signers
                assert len(sent[1]) >= max(group.fewest, group.threshold)
        if after.phase in FROM_THE_LIST:
            assert len(secure.masked) >= after.plan.cohort.quorum_count
            assert 2 * len(secure.standing) > len(secure.groups)
        if secure.sums.keys() == secure.standing.keys():
            assert not secure.opening
        if attempt_of(after) > attempt_of(before):
            assert before.secure is not None
            assert set(secure.older) >= set(before.secure.blobs), "nothing is forgotten before it is deleted"
        if after.phase not in FROM_THE_LIST:
            assert not secure.signed
            assert not secure.masked.keys() & after.current.excluded.keys()
        same = before.secure is not None and place_of(before)[:2] == place_of(after)[:2]
        if same and before.phase in FROM_THE_LIST:
            assert before.secure is not None
            fell = {device for number in secure.fallen for device in secure.groups[number].order}
            left = {device: digest for device, digest in before.secure.masked.items() if device not in fell}
            assert (secure.masked, secure.roster, secure.header) == (left, before.secure.roster, before.secure.header)
            assert set(before.secure.fallen) <= set(secure.fallen)
        if after.round_number == before.round_number:
            assert set(before.spent) <= set(after.spent)
            assert before.declined.items() <= after.declined.items()

    def _keeps_who_is_barred(self, before: states.RunState, after: states.RunState, event: ev.Event | None) -> None:
        """Only a proof bars, for as many rounds as the plan says; only time and an owner end it."""
        plan = after.plan.secure
        assert plan is not None
        lost = set(event.lost) if isinstance(event, ev.OpeningFailed) else set()
        assert after.barred.keys() - before.barred.keys() <= lost
        for device, found in after.barred.items():
            assert after.round_number < found.until_round <= after.round_number + plan.barred_rounds + 1
            if device not in before.barred or device in lost:
                assert found.until_round == before.round_number + plan.barred_rounds + 1
        for device in before.barred.keys() - after.barred.keys():
            freed = isinstance(event, ev.Unbarred) and event.device == device
            assert freed or before.barred[device].until_round == after.round_number

    def _keeps_who_is_suspected(self, before: states.RunState, after: states.RunState, event: ev.Event | None) -> None:
        """An impossible sum alone raises it, for those on its list; a good one alone lowers it."""
        held = before.suspicion
        if after.suspicion == held:
            return
        assert isinstance(event, ev.Opened | ev.OpeningFailed)
        assert before.secure is not None
        listed = before.secure.masked.keys() & set(before.secure.groups[event.group].order)
        assert isinstance(event, ev.Opened) or not event.lost
        for device in held.keys() | after.suspicion.keys() | listed:
            was = held.get(device, 0)
            wanted = was if device not in listed else was // 2 if isinstance(event, ev.Opened) else min(48, was + 8)
            assert after.suspicion.get(device, 0) == wanted

    def _keeps_count_of_attempts(self, before: states.RunState, after: states.RunState) -> None:
        if before.round_number != after.round_number:
            assert after.round_number == before.round_number + 1
            assert attempt_of(after) == 0
            return
        if after.round is None or before.round is None:
            return
        assert after.round.attempt - before.round.attempt in (0, 1)
        if after.round.kind == "secure" and after.plan.secure is not None:
            assert after.round.attempt < after.plan.secure.attempts
            if before.phase in FROM_THE_LIST:
                assert after.round.attempt == before.round.attempt, "nothing is keyed anew once anybody could sign"
                assert after.phase not in BEFORE_SIGNING

    def _settles_what_was_acknowledged(self, before: states.RunState, effects: list[fx.Effect]) -> None:
        """A masked vector that was taken counts in the commit, or has its refusal recorded."""
        for event in self.story.log[-1:]:
            taken = {item.digest for item in every(effects, fx.Accepted)}
            if isinstance(event, ev.Masked) and event.digest in taken:
                self.acknowledged.add((event.round, event.digest))
        for refusal in every(effects, fx.RecordRefusal):
            if refusal.kind in ("abandoned", "invalid-update") and refusal.digest is not None:
                self.settled.add((refusal.round, refusal.digest))
        for made in every(effects, fx.RecordCheckpoint):
            self.settled |= {(made.round, item.digest) for item in made.contributions}
        state = self.story.state
        open_ = {(state.round_number, digest) for digest in (state.secure.masked.values() if state.secure else ())}
        assert self.settled | open_ == self.acknowledged
        assert not self.settled & open_

    @invariant()
    def a_round_ends_once(self) -> None:
        if hasattr(self, "story"):
            state = self.story.state
            assert all(count == 1 for count in self.ended.values() if count)
            done = {number for number, count in self.ended.items() if count}
            assert done == set(range(1, state.round_number + (state.phase == "idle")))
            assert self.line == list(range(state.version + 1))

    @invariant()
    def nothing_is_held_but_names_digests_and_counts(self) -> None:
        """No field has room for a key, a share or a vector: every word is an id, a digest that an event brought, or a
        sentence of the engine's own."""
        if not hasattr(self, "story") or self.story.state.secure is None:
            return
        secure = self.story.state.secure
        words: set[str] = {secure.header, secure.roster, *secure.sums.values(), *secure.older}
        for message in (secure.advertised, secure.shared, secure.masked, secure.signed, secure.revealed):
            assert message.keys() <= set(POOL)
            assert set(message.values()) <= self.digests
            words |= set(message.values())
        assert all(len(word) in (0, 64) for word in words)
        assert set(secure.blobs) <= words

    @invariant()
    def the_phase_fits_the_rest(self) -> None:
        if not hasattr(self, "story"):
            return
        state = self.story.state
        secure, advancing = state.secure, "" if state.round is None else state.round.advancing
        inside = state.phase in ("collecting", "sharing", "masking", "agreeing", "unmasking")
        assert (secure is not None) == (inside or (state.phase == "committing" and not advancing))
        assert bool(advancing) <= (state.phase == "committing")
        if secure is not None:
            all_there = bool(secure.sums) and secure.sums.keys() == secure.standing.keys()
            assert all_there == (state.phase == "committing")
            assert bool(secure.sums) <= (state.phase == "committing" or secure.opening)
            assert bool(secure.roster) >= (state.phase not in ("collecting", "sharing"))
            assert (state.deadline is None) <= (state.phase == "committing" or secure.opening)
        if state.status == "running":
            assert state.phase != "idle"
        assert all(blobs for blobs in state.leftovers.values())

    def teardown(self) -> None:
        """The log folded from the start, through JSON, is the state; and what is pending is pending again."""
        if not hasattr(self, "story"):
            return
        state = self.story.start
        for event in self.story.log:
            state, _ = rounds.step(state, ev.from_json(event.kind, event.at, ev.to_json(event)))
        assert state == self.story.state
        assert rounds.pending(state) == rounds.pending(self.story.state)
        assert arrows(self.story.steps) <= arrows(transitions()), "the map shows every way"


SecureRun.TestCase.settings = settings(
    max_examples=max(30, settings().max_examples // 3), stateful_step_count=40, deadline=None
)
TestSecureRun = SecureRun.TestCase


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_machine_gets_to_every_phase_by_its_own_rules(groups: int) -> None:
    """A control: the rules above commit rounds, so the promises are held against whole ones."""
    machine = SecureRun()
    machine.begin(PLANS[0], ring=False, groups=groups)
    seen = set()
    for _ in range(58 + 10 * groups):
        machine.all_go_on(set())
        seen.add(machine.story.state.phase)
    assert seen >= {"selecting", "collecting", "sharing", "masking", "agreeing", "unmasking", "committing"}
    assert machine.story.state.version >= 5
    machine.teardown()
