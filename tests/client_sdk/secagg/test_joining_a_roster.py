"""Who checks what of a roster: the coordinator all of it, a device of a ring fewer signatures, either end what it has
stored itself not again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_sdk.secagg import roster as module
from client_sdk.secagg.errors import BadMessage, BadSignature, SecaggError
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.roster import Roster, RosterEntry, join, rejoin
from tests.client_sdk.secagg.attempt import Attempt, changed, opened
from tests.client_sdk.secagg.fleet import Coordinator, fleet

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)
N = 20


def ring() -> Attempt:
    return opened(N, rule=RING, minimum_cohort=17)


def beside(attempt: Attempt, place: int = 0) -> tuple[int, int]:
    """A neighbour of the device at ``place``, and one that is none."""
    near = attempt.cohort.graph.neighbours(place)
    return near[0], next(other for other in range(N) if other not in (place, *near))


def with_entry(attempt: Attempt, place: int, **changes: Any) -> Roster:
    entries: list[RosterEntry] = list(attempt.cohort.roster.entries)
    entries[place] = replace(entries[place], **changes)
    return replace(attempt.cohort.roster, entries=tuple(entries))


def checked(attempt: Attempt, near: str | None) -> list[str]:
    """Devices whose signatures are checked."""
    found: list[str] = []
    genuine = module.require_signed

    def watched(*given: Any) -> None:
        found.append(given[-1].removeprefix("device "))
        genuine(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "require_signed", watched)
        cohort = join(attempt.header, attempt.cohort.roster, attempt.authority.vouch, near=near)
    assert cohort == attempt.cohort or cohort.h == attempt.cohort.h
    return found


def test_on_a_ring_a_device_checks_the_signatures_of_its_neighbours_and_its_own() -> None:
    attempt = ring()
    graph = attempt.cohort.graph
    assert graph.degree < N - 1
    for place in (0, 7, N - 1):
        name = attempt.cohort.device(place)
        wanted = {name, *map(attempt.cohort.device, graph.neighbours(place))}
        found = checked(attempt, name)
        assert (set(found), len(found)) == (wanted, graph.degree + 1)


def test_in_strict_and_at_the_coordinator_every_signature_is_checked() -> None:
    for attempt, near in ((opened(5), "device-0002"), (opened(5), None), (ring(), None)):
        assert sorted(checked(attempt, near)) == [player.device for player in attempt.players]


def test_a_forged_signature_is_refused_by_the_coordinator_by_neighbours_and_by_its_device() -> None:
    attempt = ring()
    vouch, (near, far) = attempt.authority.vouch, beside(attempt)
    for place, ends in ((0, (None, "device-0000")), (near, (None, "device-0000")), (far, (None,))):
        forged = with_entry(attempt, place, signature=attempt.cohort.roster.entries[1 - bool(place)].signature)
        for end in ends:
            with pytest.raises(BadSignature, match=f"device-{place:04d}"):
                join(attempt.header, forged, vouch, near=end)
    assert join(attempt.header, with_entry(attempt, far, signature=bytes(64)), vouch, near="device-0000").n == N


@pytest.mark.parametrize("certificate", ["of another device", "of nobody", "revoked", "of another's key"])
def test_certificates_and_identities_of_all_entries_are_checked_also_by_a_device_of_a_ring(certificate: str) -> None:
    attempt = ring()
    _, far = beside(attempt)
    entries = attempt.cohort.roster.entries
    changes: dict[str, Any] = {"signature": bytes(64)}
    if certificate == "revoked":
        attempt.authority.revoked.add(attempt.cohort.device(far))
    elif certificate == "of another device":
        changes["certificate"] = entries[far - 1].certificate
    elif certificate == "of nobody":
        changes["certificate"] = bytes(len(entries[far].certificate))
    else:
        key = attempt.players[far - 1].identity
        changes["certificate"] = attempt.authority.certify(attempt.cohort.device(far), key)
    with pytest.raises(BadMessage, match=f"device-{far:04d}|one identity"):
        join(attempt.header, with_entry(attempt, far, **changes), attempt.authority.vouch, near="device-0000")


def test_keys_commitments_and_nonces_of_all_entries_are_told_apart_also_by_a_device_of_a_ring() -> None:
    attempt = ring()
    _, far = beside(attempt)
    shown, other = (attempt.cohort.roster.entries[place].advertisement for place in (far, far - 1))
    for changes in (
        {"share_key": other.share_key},
        {"mask_key": other.share_key},
        {"commitment": other.commitment},
        {"nonce": other.nonce},
    ):
        forged = with_entry(attempt, far, advertisement=replace(shown, **changes), signature=bytes(64))
        with pytest.raises(BadMessage, match="stands in the roster twice"):
            Roster.parse(forged.encoded)


def test_a_device_of_a_ring_goes_on_with_a_roster_where_one_far_away_is_not_signed() -> None:
    """What such an entry can do is argued in the decision page; the device agrees upon no key with it."""
    members, authority = fleet(N)
    head = changed(opened(3).header, rule=RING, minimum_cohort=17, dimension=5)
    coordinator = Coordinator(head, authority, members)
    coordinator.open()
    assert coordinator.roster is not None
    near = coordinator.cohort.graph.neighbours(0)
    far = next(place for place in range(1, N) if place not in near)
    entries = list(coordinator.roster.entries)
    entries[far] = replace(entries[far], signature=bytes(64))
    roster = replace(coordinator.roster, entries=tuple(entries)).encoded
    message = members[0].tell(roster)
    assert message is not None
    assert message.stage == "share"
    unsigned = (replace(entries[0], signature=bytes(64)), *entries[1:])
    with pytest.raises(BadSignature):
        members[near[0]].tell(replace(coordinator.roster, entries=unsigned).encoded)


def test_what_was_stored_is_joined_again_without_authority_and_signatures() -> None:
    """By the same rules for its size, threshold and lanes."""
    attempt = opened(4)
    roster, head = attempt.cohort.roster, attempt.header
    unsigned = tuple(replace(entry, signature=bytes(64)) for entry in roster.entries)
    again = rejoin(head, replace(roster, entries=unsigned))
    assert again.identities == attempt.cohort.identities
    assert rejoin(head, roster).h == attempt.cohort.h
    assert rejoin(head, roster).parameters == attempt.cohort.parameters
    wrong: list[tuple[Roster, str]] = [
        (replace(roster, threshold=2), "threshold"),
        (replace(roster, lane_bits=9), "lanes"),
        (replace(roster, entries=roster.entries[:2]), "no fewer than 3"),
        (with_entry(attempt, 0, certificate=roster.entries[1].certificate), "of another one"),
        (with_entry(attempt, 0, certificate=b"\0"), "cannot be read"),
    ]
    for one, words in wrong:
        with pytest.raises(SecaggError, match=words):
            rejoin(head, one)
