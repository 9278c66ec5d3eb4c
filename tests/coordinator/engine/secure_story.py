"""A secure run as a sequence of events. After each of them the state survives JSON, ``pending`` names exactly what is
in flight, and only devices that work have claims.

Strict unless a plan says otherwise: select 8, goal 6, so a full roster has 6 devices, t = 5, and lives with one gone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from coordinator.engine.event_fields import Group
from coordinator.engine.secure.state import SecureRound
from tests.coordinator.engine.story import Story, attempt_of, digest_of

SECURE: dict[str, Any] = {
    "max_norm": 1.0,
    "max_abs": 0.5,
    "minimum_cohort": 3,
    "reserve": 0,
    "exchange_s": 20,
    "quiet_s": 20,
    "expires_s": 1000,
    "attempts": 3,
}
COHORT: dict[str, Any] = {"select": 8, "goal": 6, "quorum": 0.6, "pool": 8}
POOL = ("a", "b", "c", "d", "e", "f", "g", "h")
SIX = POOL[:6]
_ANSWERS: dict[type, type] = {
    ev.Announced: fx.Announce,
    ev.Rostered: fx.Gather,
    ev.Opened: fx.Open,
    ev.OpeningFailed: fx.Open,
}
"""Event -> the action that it is the answer to."""
_ACTIONS = (fx.Announce, fx.Gather, fx.Open, fx.CommitSum, fx.Advance)


class SecureStory(Story):
    """``in_flight`` follows the actions by what was handed out and answered, never by the state."""

    def __init__(self, **sections: Any) -> None:
        secure = {**SECURE, **sections.pop("secure", {})}
        cohort = {**COHORT, **sections.pop("cohort", {})}
        super().__init__(cohort=cohort, secure=secure, **sections)
        self.in_flight: dict[type, fx.Effect] = {}
        self.unopened: set[int] = set()
        """Groups whose sum is being opened."""
        self.to_delete: dict[int, tuple[str, ...]] = {}
        self.claims: dict[str, tuple[int, int]] = {}

    @property
    def secure(self) -> SecureRound:
        found = self.state.secure
        assert found is not None
        return found

    def happens(self, event: ev.Event) -> list[fx.Effect]:
        before = self.state
        effects = super().happens(event)
        refused = any(isinstance(effect, fx.Refused) for effect in effects)
        assert not refused or self.state is before, "a refused event changes nothing"
        self._follow(before, event, effects)
        body = json.loads(json.dumps(states.to_json(self.state), allow_nan=False))
        assert states.from_json(body) == self.state
        return effects

    def _follow(self, before: states.RunState, event: ev.Event, effects: list[fx.Effect]) -> None:
        answered = _ANSWERS.get(type(event))
        if answered is not None and self.state is not before:
            if isinstance(event, ev.Opened | ev.OpeningFailed):
                self.unopened.discard(event.group)
            if answered is not fx.Open or not self.unopened:
                self.in_flight.pop(answered, None)
        moved = place_of(self.state) != place_of(before)
        if moved and self.state.phase != "sharing":
            self.in_flight.clear()
        if isinstance(event, ev.Discarded):
            self.to_delete.pop(event.round, None)
        for effect in effects:
            if isinstance(effect, _ACTIONS):
                self.in_flight[type(effect)] = effect
            if isinstance(effect, fx.Open):
                self.unopened = set(self.secure.standing)
            if isinstance(effect, fx.Discard) and effect.blobs:
                self.to_delete[effect.round] = effect.blobs
            if isinstance(effect, fx.Claim):
                assert not set(effect.devices) & self.claims.keys(), "a device has one live assignment"
                self.claims.update(dict.fromkeys(effect.devices, (effect.round, effect.attempt)))
            if isinstance(effect, fx.Release):
                for device in list(self.claims) if effect.devices is None else effect.devices:
                    self.claims.pop(device, None)
        pending = rounds.pending(self.state)
        named = {type(action): action for action in pending if isinstance(action, _ACTIONS)}
        assert named == self.in_flight, "what is pending is what is in flight"
        leftovers = {
            action.round: action.blobs for action in pending if isinstance(action, fx.Discard) and action.blobs
        }
        assert leftovers == self.to_delete
        assert set(self.claims) == self._at_work(), "the devices that work have claims, and no others"
        assert set(self.claims.values()) <= {(self.state.round_number, self.attempt)}

    def _at_work(self) -> set[str]:
        state = self.state
        if state.secure is None or state.phase in ("idle", "committing"):
            return set()
        free = {device for device, member in state.current.members.items() if member.status == "withdrawn"}
        free |= state.current.excluded.keys() | state.secure.revealed.keys()
        listed = (
            state.secure.masked.keys() if state.phase in ("agreeing", "unmasking") else state.current.members.keys()
        )
        return set(listed) - free

    # ------------------------------------------------------------ happenings

    def _of(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"at": self.at, "round": self.state.round_number, "attempt": self.attempt, **more}

    def _says(self, cls: type, device: str, more: dict[str, Any]) -> list[fx.Effect]:
        message = self._of({"device": device, "bytes": 10, **more})
        usual = digest_of(cls.__name__, device, message["round"], message["attempt"])
        event: ev.Event = cls(**{"digest": usual, **message})
        return self.happens(event)

    def drawn_from(self, *devices: str, unspendable: int = 0, **more: Any) -> list[fx.Effect]:
        usual = {"at": self.at, "round": self.state.round_number, "waiting": len(devices), "unspendable": unspendable}
        return self.happens(ev.Drawn(**{**usual, "cohort": tuple((device, 10) for device in devices), **more}))

    def announced(self, **more: Any) -> list[fx.Effect]:
        header = digest_of("header", self.state.round_number, self.attempt)
        return self.happens(ev.Announced(**self._of({"header": header, "expires_at": int(self.at) + 1000, **more})))

    def advertised(self, device: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Advertised, device, more)

    def rostered(self, **more: Any) -> list[fx.Effect]:
        order = tuple(sorted(self.secure.advertised))
        threshold = 2 * len(order) // 3 + 1
        usual = {"order": order, "threshold": threshold, "signers": threshold, "fewest": max(3, threshold)}
        named = {"digest": digest_of("roster", self.state.round_number, self.attempt, order), **more}
        group = Group(
            **{key: named.pop(key, usual.get(key)) for key in ("order", "threshold", "signers", "fewest")},
            **{key: named.pop(key) for key in ("ring", "neighbours") if key in named},
        )
        return self.happens(ev.Rostered(**self._of({"groups": (group,), **named})))

    def shared(self, device: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Shared, device, more)

    def masked(self, device: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Masked, device, more)

    def complained(self, device: str, *dealers: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Complained, device, {"dealers": dealers, **more})

    def pairs_opened(self, device: str, *holders: str, **more: Any) -> list[fx.Effect]:
        """The digest tells these pairs from those for other holders."""
        attempt = more.get("attempt", self.attempt)
        digest = digest_of("PairsOpened", device, self.state.round_number, attempt, holders)
        return self._says(ev.PairsOpened, device, {"digest": digest, "holders": holders, **more})

    def faulted(self, device: str, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.Faulted(**self._of({"device": device, "reason": "its message is too short", **more})))

    def spent(self, device: str, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.Spent(**self._of({"device": device, **more})))

    def declined(self, device: str, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.Declined(**self._of({"device": device, "reason": "it advertised 8 times", **more})))

    def unbarred(self, device: str, by: str = "olga") -> list[fx.Effect]:
        return self.happens(ev.Unbarred(at=self.at, device=device, by=by))

    def signed(self, device: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Signed, device, more)

    def revealed(self, device: str, **more: Any) -> list[fx.Effect]:
        return self._says(ev.Revealed, device, more)

    def opened(self, **more: Any) -> list[fx.Effect]:
        usual = {"digest": digest_of("sum", self.state.round_number), "bytes": 99, "weight": 50}
        return self.happens(ev.Opened(**self._of({**usual, **more})))

    def opening_failed(self, *lost: str, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.OpeningFailed(**self._of({"lost": lost, "reason": "their shares fit nothing", **more})))

    def withdraws(self, device: str) -> list[fx.Effect]:
        return self.withdrew(device, attempt=self.attempt)

    def discarded(self, number: int) -> list[fx.Effect]:
        return self.happens(ev.Discarded(at=self.at, round=number))

    def advanced(self, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.Advanced(**{"at": self.at, "round": self.state.round_number, "by": "olga", **more}))

    # ------------------------------------------------------------ chapters

    def cohort(self, *devices: str) -> SecureStory:
        """Drawn, and the header announced."""
        if self.state.phase == "idle":
            self.created()
        self.drawn_from(*(devices or POOL))
        self.announced()
        return self

    def gathering(self, *devices: str) -> SecureStory:
        """These have advertised, and the roster is being made."""
        if self.state.phase in ("idle", "selecting"):
            self.cohort()
        for device in devices or SIX:
            self.advertised(device)
        return self

    def sharing(self, *devices: str, **roster: Any) -> SecureStory:
        self.gathering(*devices)
        self.rostered(**roster)
        return self

    def masking(self, *devices: str, **roster: Any) -> SecureStory:
        self.sharing(*devices, **roster)
        for device in self.secure.group_of:
            self.shared(device)
        return self

    def agreeing(self, *devices: str, **roster: Any) -> SecureStory:
        self.masking(*devices, **roster)
        for device in self.secure.group_of:
            self.masked(device)
        return self

    def unmasking(self, *devices: str, **roster: Any) -> SecureStory:
        self.agreeing(*devices, **roster)
        for device in self.secure.group_of:
            self.signed(device)
        return self

    def opening(self, *devices: str, **roster: Any) -> SecureStory:
        """As many as it takes have revealed their shares."""
        self.unmasking(*devices, **roster)
        for device in tuple(self.secure.group_of)[: self.secure.groups[0].threshold]:
            self.revealed(device)
        return self

    def summed(self) -> SecureStory:
        self.opening()
        self.opened()
        return self

    def whole_round(self) -> SecureStory:
        self.summed()
        self.committed()
        return self

    def exhausted(self) -> SecureStory:
        """All six have signed, and only two revealed: the round is abandoned, two unspent devices wait."""
        self.unmasking()
        self.revealed("a")
        self.tick(20)
        self.drawn_from("g", "h", unspendable=6)
        return self


def ring_of(order: tuple[str, ...], neighbours: int, threshold: int) -> dict[str, Any]:
    """A roster's fields where neighbours stand beside each other in the order of ids."""
    return {"ring": tuple(range(len(order))), "neighbours": neighbours, "threshold": threshold}


def place_of(state: states.RunState) -> tuple[int, int, str]:
    return state.round_number, attempt_of(state), state.phase


def forgotten(state: states.RunState) -> states.RunState:
    """The state without fields that are only kept for reports or for deletion."""
    current = None if state.round is None else replace(state.round, pool=None)
    return replace(state, leftovers={}, round=current)
