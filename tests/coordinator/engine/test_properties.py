"""For any events in any order, the invariants of a run hold, and its log gives its whole state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from tests.coordinator.engine.story import FALLBACK, Story, digest_of, every
from tests.coordinator.engine.transitions import arrows, transitions

DEVICES = ("a", "b", "c", "d", "e")
KINDS = (
    ["Drawn"] * 4
    + ["Reported"] * 10
    + ["Committed"] * 3
    + ["Tick"] * 3
    + [
        "Started",
        "Withdrew",
        "Withdrew",
        "UpdateRefused",
        "UpdateLost",
        "Scored",
        "Scored",
        "CommitFailed",
        "ClockFell",
        "Recovered",
        "Created",
    ]
    + ["Paused", "Resumed", "Resumed", "Stopped"]
    + ["Leased"] * 4
    + ["Delivered"] * 2
    + ["Heartbeat", "LeaseEnded", "FleetReturned"]
)
HAPPENINGS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(KINDS),
            "device": st.sampled_from(DEVICES),
            "devices": st.sets(st.sampled_from(DEVICES), min_size=0, max_size=5),
            "ahead": st.sampled_from([0] * 12 + [-1, 1]),
            "attempt": st.sampled_from([0] * 12 + [-1, 1]),
            "after_s": st.sampled_from([0.0, 0.0, 0.0, 0.5, 11.0, 61.0]),
            "draft": st.sampled_from([0] * 8 + [1]),
            "examples": st.sampled_from([0, 1, 10, 2**31]),
            "complete": st.booleans(),
            "value": st.floats(0, 1),
        }
    ),
    min_size=10,
    max_size=60,
)
PLANS = st.sampled_from(
    [
        {},
        {"aggregation": {"partial": "refuse"}, "retention": {"rounds": 1}},
        {"finish": {"rounds": 2, "metric": "accuracy", "patience": 2}},
        {"datacenter": FALLBACK},
        {"datacenter": FALLBACK, "finish": {"abandoned": 2}},
        {
            "datacenter": {"data": "proxy", "every": 2, "lease_s": 40, "max_s": 100, "wait_s": 10},
            "finish": {"rounds": 3},
        },
        {"cohort": {"quorum": 1.0}, "finish": {"metric": "accuracy", "target": 0.95}},
        {"task": {"score_held_out": True}, "finish": {"metric": "accuracy", "source": "devices", "patience": 1}},
    ]
)


def event_of(story: Story, word: dict[str, Any]) -> ev.Event:
    at, number = story.at, story.state.round_number + word["ahead"]
    of_device = {"at": at, "round": number, "attempt": word["attempt"], "device": word["device"]}
    match word["kind"]:
        case "Created" | "Tick" | "Paused" | "Resumed" | "Stopped":
            return {"Created": ev.Created, "Tick": ev.Tick, "Paused": ev.Paused, "Resumed": ev.Resumed}.get(
                word["kind"], ev.Stopped
            )(at=at)
        case "Recovered":
            return ev.Recovered(at=at)
        case "ClockFell":
            return ev.ClockFell(at=at, by_s=word["after_s"])
        case "Drawn":
            cohort = tuple((device, 10) for device in sorted(word["devices"]))
            return ev.Drawn(at=at, round=number, cohort=cohort, waiting=len(cohort))
        case "Started":
            return ev.TrainingStarted(**of_device)
        case "UpdateRefused":
            digest = digest_of(word["device"], number, "invalid")
            return ev.UpdateRefused(**of_device, digest=digest, reason="delta holds NaN")
        case "UpdateLost":
            return ev.UpdateLost(**of_device, digest=digest_of(word["device"], number, word["draft"]))
        case "Withdrew":
            return ev.Withdrew(**of_device, reason="")
        case "Reported":
            return ev.Reported(
                **of_device,
                digest=digest_of(word["device"], number, word["draft"]),
                bytes=9,
                examples=word["examples"],
                steps=1,
                steps_planned=2,
                complete=word["complete"],
                held_out={"accuracy": word["value"]},
                held_out_examples=word["draft"],
            )
        case "Leased":
            under = {
                "round": number,
                "attempt": story.attempt + 1,
                "fence": story.state.fence + 1 + word["ahead"],
            }
            worker = {"worker": word["device"], "instance": str(word["draft"])}
            return ev.Leased(at=at, **under, **worker, waiting=len(word["devices"]))
        case "Heartbeat" | "LeaseEnded" | "Delivered":
            lease = None if story.state.round is None else story.state.round.lease
            under = {
                "round": number,
                "attempt": story.attempt + word["attempt"],
                "fence": story.state.fence,
                "worker": lease.worker if lease and not word["draft"] else word["device"],
            }
            if word["kind"] == "Heartbeat":
                return ev.WorkerHeartbeat(at=at, **under, step=word["examples"])
            if word["kind"] == "LeaseEnded":
                return ev.LeaseEnded(at=at, **under, failed=word["complete"], reason="")
            digest = digest_of("result", number, story.state.fence)
            return ev.Delivered(at=at, **under, digest=digest, bytes=9, steps=1, examples=1)
        case "FleetReturned":
            return ev.FleetReturned(at=at, round=number, waiting=len(word["devices"]))
        case "Committed":
            return ev.Committed(at=at, round=number, digest=digest_of("model", number), bytes=9)
        case "CommitFailed":
            return ev.CommitFailed(at=at, round=number, reason="not finite")
        case _:
            return ev.Scored(
                at=at,
                version=story.state.version + word["ahead"],
                source="evaluator",
                examples=1,
                metrics={"accuracy": word["value"]},
            )


class Ledger:
    """What the store would hold if it wrote the effects of a story, and what must be true of it."""

    def __init__(self) -> None:
        self.claims: dict[str, int] = {}
        self.acknowledged: set[tuple[int, str, str]] = set()
        self.settled: Counter[tuple[int, str, str]] = Counter()
        self.ended: Counter[int] = Counter()
        self.line: list[int] = [0]

    def write(self, story: Story, event: ev.Event, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Claim():
                    for device in effect.devices:
                        assert device not in self.claims, "a device has one live assignment"
                        self.claims[device] = effect.round
                case fx.Release():
                    gone = list(self.claims) if effect.devices is None else effect.devices
                    for device in gone:
                        self.claims.pop(device, None)
                case fx.Accepted():
                    assert isinstance(event, ev.Reported)
                    self.acknowledged.add((event.round, effect.device, effect.digest))
                case fx.RecordRound() if effect.status != "open":
                    self.ended[effect.round] += 1
                case fx.RecordCheckpoint():
                    assert effect.parent == self.line[-1]
                    self.line.append(effect.version)
                    devices = [item.device for item in effect.contributions]
                    assert len(set(devices)) == len(devices), "a device counts at most once in a round"
                    self.settled.update((effect.round, item.device, item.digest) for item in effect.contributions)
                case fx.RecordRefusal(kind="abandoned"):
                    assert effect.digest is not None
                    self.settled[effect.round, effect.device, effect.digest] += 1
                case _:  # the other effects change none of these accounts
                    pass
        self.check(story)

    def check(self, story: Story) -> None:
        state, number = story.state, story.state.round_number
        members = {} if state.round is None else state.round.members
        acknowledged = () if state.round is None else rounds.kind_of(state.round).contributions(state.round)
        assert self.line == list(range(state.version + 1)), "the versions are a line without gap or fork"
        assert all(count == 1 for count in self.ended.values()), "a round ends once"
        assert set(self.ended) == set(range(1, number + (state.phase == "idle"))), "each round but the open one"
        pending = {(number, item.device, item.digest) for item in acknowledged}
        assert set(self.settled) | pending == self.acknowledged, "acknowledged is counted, refused or still to come"
        assert not set(self.settled) & pending
        assert all(count == 1 for count in self.settled.values()), "settled once"
        done = ("reported", "withdrawn", "refused")
        free = {device for device, member in members.items() if member.status in done}
        wanted = set(members) - free if state.phase == "collecting" else set()
        assert set(self.claims) == wanted, "who works has a claim, nobody else"


def check_state(before: states.RunState, event: ev.Event, story: Story, effects: list[fx.Effect]) -> None:
    after = story.state
    if any(isinstance(effect, fx.Refused) for effect in effects):
        assert after is before
    assert after.version - before.version == isinstance(event, ev.Committed | ev.Delivered) * (after is not before)
    assert after.fence - before.fence == isinstance(event, ev.Leased) * any(
        isinstance(effect, fx.RecordRound) for effect in effects
    ), "every grant raises the fence, and nothing else does"
    secret = (after.spent, after.barred, after.exhausted, after.leftovers)
    assert secret == ((), {}, "", {}), "a plain plan knows nothing of secure rounds"
    if after.round is not None:
        check_round(after, after.round)
    assert after.round_number - before.round_number in (0, 1)
    if before.over:
        assert (after.status, after.phase, after.version) == (before.status, "idle", before.version)
    if after.over:
        assert after.phase == "idle"
    if after.status == "running" and after.round_number:
        assert after.phase != "idle", "a running run always has a round under way"


def check_round(state: states.RunState, round: states.Round) -> None:
    assert round.number == state.round_number
    assert (round.kind == "datacenter") >= (round.phase in ("leasing", "training"))
    if state.plan.datacenter is None:
        assert (round.kind, state.fence, round.lease) == ("federated", 0, None)
    assert (round.secure, round.excluded, round.advancing) == (None, {}, ""), "nor does any of its rounds"
    if round.phase == "training":
        assert round.lease is not None
        assert round.lease.fence == state.fence
        assert round.attempt >= 1
    assert (round.deadline is None) == (round.phase == "committing")
    assert (round.members == {}) == (round.phase in ("selecting", "leasing", "training"))
    counted = rounds.kind_of(round).contributions(round)
    assert len(counted) <= state.plan.cohort.goal
    if round.phase == "committing":
        assert len(counted) >= state.plan.cohort.quorum_count
        assert rounds.pending(state)[-1] == fx.Commit(
            round=round.number,
            parent=state.checkpoint,
            contributions=counted,
            settings=state.plan.settings_at(state.version),
        )


@pytest.fixture(scope="module")
def ways() -> set[tuple[str, str]]:
    """Every arrow of the map."""
    return arrows(transitions())


@pytest.mark.slow
@given(happenings=HAPPENINGS, plan=PLANS)
@settings(max_examples=150)
def test_whatever_happens_the_invariants_hold(
    ways: set[tuple[str, str]], happenings: list[dict[str, Any]], plan: dict[str, Any]
) -> None:
    story, ledger = Story(**plan), Ledger()
    story.created()
    ledger.write(story, story.log[-1], story.effects)
    for word in happenings:
        story.at += word["after_s"]
        before, event = story.state, event_of(story, word)
        effects = story.happens(event)
        check_state(before, event, story, effects)
        ledger.write(story, event, effects)
    assert arrows(story.steps) <= ways, "the map shows every way from phase to phase"


@pytest.mark.slow
@given(happenings=HAPPENINGS, plan=PLANS)
def test_the_log_folded_from_the_start_gives_the_same_state(
    happenings: list[dict[str, Any]], plan: dict[str, Any]
) -> None:
    """Through JSON, as from a database; and whatever was in flight is in flight again."""
    story = Story(**plan)
    story.created()
    for word in happenings:
        story.at += word["after_s"]
        story.happens(event_of(story, word))
    state = story.start
    for event in story.log:
        state, _ = rounds.step(state, ev.from_json(event.kind, event.at, ev.to_json(event)))
    assert state == story.state
    if state.phase == "committing":
        assert rounds.pending(state)[-1] == every(story.effects, fx.Commit)[-1], "the very commit that was handed out"
    assert rounds.pending(state) == rounds.pending(story.state)
    assert states.from_json(states.to_json(state)) == state


@given(order=st.permutations(["a", "b", "c"]), again=st.lists(st.sampled_from(["a", "b", "c"]), max_size=4))
def test_the_order_of_reports_and_sending_them_again_does_not_change_the_commit(
    order: list[str], again: list[str]
) -> None:
    story = Story().collecting()
    for device in [*order, *again]:
        story.reported(device)
    plain = Story().committing()
    assert every(story.effects, fx.Commit) == every(plain.effects, fx.Commit)
    assert story.state.current.members == plain.state.current.members
