"""Who takes part in a run of a coordinator: all registered devices, those of the run for who sees no more."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_sdk.protocol.insight import DeviceParticipation, RunParticipation
from coordinator.runtime.insight import participation as module
from coordinator.store.port import Reader
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


def shown(world: World, *, fleet: bool = True, after: str = "", limit: int = 100) -> RunParticipation:
    return world.coordinator.insight.participation.of_run("marks", after, limit, fleet=fleet)


def play(world: World, round: int) -> list[int]:
    """A round of four: three report, and the last one comes late. Returns their numbers."""
    world.check_in()
    cohort = world.cohort()
    for number in cohort[:3]:
        world.report(number, round=round)
    world.settle()
    with world.refuses("late", "."):
        world.send(cohort[3], world.body(cohort[3], round), round)
    return cohort


def test_each_device_is_told_from_the_log_and_again_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world()
    world.create()
    world.clock.at += 5
    cohort = play(world, 1)
    found = shown(world)
    assert (found.devices, found.never_counted, found.from_round, found.lateness) == (8, 5, 1, "")
    told = {world.index(one.device): (one.selected, one.reported, one.counted, one.late) for one in found.page}
    expected = dict.fromkeys(range(8), (0, 0, 0, 0)) | dict.fromkeys(cohort[:3], (1, 1, 1, 0))
    assert told == expected | {cohort[3]: (1, 0, 0, 1)}
    (one,) = found.by_class
    assert (one.device_class, one.devices, one.never_counted, one.missed) == ("no class", 8, 5, 1)
    world.boot()
    assert shown(world) == found
    play(world, 2)
    assert sum(one.selected for one in shown(world).page) == 8, "a round more is read"
    world.check_in()
    assert sum(one.selected for one in shown(world).page) == 8, "a round under way is left out"


def test_pages_and_who_does_not_see_the_fleet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = play(world, 1)
    whole = shown(world)
    assert [one.counted for one in whole.page] == [0] * 5 + [1] * 3, "the least counted first"
    assert whole.page[0].late == 1
    assert [one.selected for one in whole.page[:5]] == [1, 0, 0, 0, 0], "the most often selected first"
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    for limit in (1, 3):
        pages = [shown(world, limit=limit)]
        while pages[-1].next:
            pages.append(shown(world, after=pages[-1].next, limit=limit))
            assert pages[-1].changed(page=[], next="") == whole.changed(page=[], next="")
        assert [one for page in pages for one in page.page] == whole.page
    few = shown(world, fleet=False)
    assert {world.index(one.device) for one in few.page} == set(cohort)
    assert (few.devices, few.never_counted) == (4, 1)
    world.coordinator.identities.leave(world.rows[cohort[0]])
    gone = min({*range(8)} - {*cohort})
    world.coordinator.identities.leave(world.rows[gone])
    found = shown(world)
    assert {world.index(one.device) for one in found.page} == {*range(8)} - {gone}
    assert (found.devices, found.never_counted) == (7, 4), "who has left and was selected is told"
    assert [(one.device_class, one.devices, one.never_counted) for one in found.by_class] == [("no class", 7, 4)]


def test_repro_a_device_that_counts_between_two_pages_hides_none_that_never_did() -> None:
    """The next page began behind its new place: behind all devices that never counted."""

    class Fleet:
        def device_labels(self, after: str, limit: int) -> list[tuple[str, str, None]]:
            return [(name, "", None) for name in "abcde" if name > after][:limit]

    def selected(**counted: int) -> Any:
        found = [
            DeviceParticipation(device=name, device_class="", selected=2, counted=n) for name, n in counted.items()
        ]
        found.sort(key=lambda one: (one.counted, one.device))
        names, uncounted = {*counted}, [*counted.values()].count(0)
        return module._Selected(found, names, uncounted, 0, (), "", 1)

    def names_of(found: Any, after: str) -> tuple[list[str], str]:
        page = module._page(cast("Reader", Fleet()), found, after, 1, fleet=True)
        return [one.device for one in page], page.next

    first, after = names_of(selected(a=0, b=0, c=1), "")
    assert first == ["a"]
    rest = list[str]()
    while after and len(rest) < 9:
        more, after = names_of(selected(a=1, b=0, c=1), after)
        rest += more
    assert rest == ["b", "d", "e", "a", "c"]


class Rows:
    """A store of one run, whose rounds began at 100 times their number."""

    def __init__(self) -> None:
        self.logged: list[Any] = []
        self.ended: list[Any] = []
        self.counted: dict[int, list[Any]] = {}
        self.refused: dict[int, list[Any]] = {}

    def play(
        self, number: int, events: Iterable[str], *, counted: str = "", status: str = "committed", refused: Any = ()
    ) -> None:
        """``events``: words ``Kind device seconds``, or ``Announced``, after the draw of a, b, c and d."""
        self._log("Drawn", 100.0 * number, {"round": number, "cohort": [[device, 1] for device in "abcd"]})
        for kind, *more in map(str.split, events):
            body = {"round": number, "device": more[0]} if more else {"round": number, "attempt": 0}
            self._log(kind, 100.0 * number + float(more[1] if more else 0), body)
        kind = "secure" if "Announced" in events else "federated"
        self.ended.append(SimpleNamespace(round=number, status=status, kind=kind))
        self.counted[number] = [SimpleNamespace(device=device) for device in counted]
        self.refused[number] = [
            SimpleNamespace(device=device, kind=kind, at=100.0 * number + after, seq=at, reason="")
            for at, (device, kind, after) in enumerate(refused)
        ]

    def _log(self, kind: str, at: float, body: dict[str, Any]) -> None:
        self.logged.append(SimpleNamespace(seq=len(self.logged) + 1, kind=kind, at=at, body=body))

    def events(self, run: str, after: int, most: int) -> list[Any]:
        return [row for row in self.logged if row.seq > after]

    def rounds(self, run: str, after: int) -> list[Any]:
        return [row for row in self.ended if row.round > after]

    def contributions(self, run: str, number: int) -> list[Any]:
        return self.counted[number]

    def refusals(self, run: str, number: int) -> list[Any]:
        return self.refused[number]

    def labels(self, devices: Iterable[str]) -> dict[str, str]:
        return {}

    def devices(self, most: int, after: str = "") -> list[Any]:
        rows = [SimpleNamespace(device="a", label="", left_at=None), SimpleNamespace(device="b", label="", left_at=3.0)]
        return [row for row in rows if row.device > after]


def ended(rows: Rows) -> dict[str, DeviceParticipation]:
    reader: Any = rows
    return {one.device: one for one in module.ParticipationLog("marks").read(reader, {})}


def test_each_part_in_a_round_ends_in_one_way() -> None:
    rows = Rows()
    rows.play(1, ["Reported a 3", "Withdrew a 4", "Withdrew b 1", "UpdateRefused c 1"], counted="a")
    rows.play(
        2,
        ["Reported a 6"],
        counted="a",
        refused=[("b", "late", 40), ("c", "abandoned", 7), ("c", "invalid", 8), ("c", "late", 9)],
    )
    rows.play(3, ["Reported a 2", "Reported d 2", "UpdateLost d 3"], status="abandoned")
    found = ended(rows)
    a, b, c, d = (found[name] for name in "abcd")
    assert (a.selected, a.reported, a.counted, a.withdrawn, a.speed_s) == (3, 3, 2, 0, 3.0)
    assert (b.withdrawn, b.late, b.dropped, b.speed_s) == (1, 1, 1, 40.0)
    assert (c.refused, c.late, c.dropped, c.speed_s) == (2, 0, 1, None)
    assert (d.selected, d.dropped) == (3, 3)


def test_under_masks_who_is_in_the_sum_has_reported_and_of_an_abandoned_round_who_sent_its_vector() -> None:
    rows = Rows()
    rows.play(1, ["Announced", "Masked a 3", "Masked b 4", "Announced", "Masked a 9", "Masked c 9"], counted="a")
    rows.play(2, ["Announced", "Masked a 3", "Announced", "Masked b 9"], status="abandoned")
    found = ended(rows)
    assert [found[name].reported for name in "abcd"] == [1, 1, 0, 0]
    assert [found[name].counted for name in "abcd"] == [1, 0, 0, 0]
    assert [found[name].dropped for name in "abcd"] == [1, 1, 2, 2]


def test_a_device_that_has_left_is_not_of_the_fleet() -> None:
    reader: Any = Rows()
    assert list(module.registered(reader)) == ["a"]


def test_the_first_round_that_is_shown_moves_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 2)
    first = []
    for number in range(1, 5):
        play(world, number)
        first.append(shown(world).from_round)
    assert first == [1, 1, 3, 3]


def test_only_the_last_rounds_are_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 2)  # the round under way and the one before
    play(world, 1)
    play(world, 2)
    found = shown(world)
    assert found.from_round == 2
    assert sum(one.selected for one in found.page) == 4
