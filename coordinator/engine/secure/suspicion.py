"""Which devices were in groups whose sum was bad. Nobody knows which of them lied, so each rests in some rounds: in
more with each such group, and in fewer with each group whose sum is good. It is never barred: that takes a proof
(``marks``).

Who lies in every round is in a bad group each time, and others only where they are with it. Who lies to have another
device drawn less is in the same bad groups as that device, and rests as often. A device that merely vanishes raises
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from client_sdk.chance import labelled, sha256_word, unit

Suspicion = Mapping[str, int]
"""Device -> in how many of 64 rounds it rests, where enough others wait; only those that do."""
ROUNDS = 64
STEP = 8
"""By which a bad sum raises it; a good one halves it."""
MOST = 48
"""So a device is drawn in one of four rounds at least, of those that would draw it otherwise."""
MOST_SUSPECTED = 1000
"""Of so many devices a run remembers it, the most suspected, besides those of the last bad sum."""


def raised(before: Suspicion, devices: Collection[str]) -> Suspicion:
    """After a bad sum of these devices, of which none is proven to be at fault."""
    more = {device: min(before.get(device, 0) + STEP, MOST) for device in devices}
    others = sorted(before.keys() - more.keys(), key=lambda device: (-before[device], device))[:MOST_SUSPECTED]
    return {**{device: before[device] for device in others}, **more}


def faded(before: Suspicion, devices: Collection[str]) -> Suspicion:
    """After a good sum of these devices."""
    halved = {device: before[device] // 2 for device in devices if device in before}
    return {device: left for device, left in {**before, **halved}.items() if left}


def resting(suspicion: Suspicion, waiting: Iterable[str], most: int, *, seed: int, round: int) -> set[str]:
    """Who of those that wait rests in this round: each by itself, by a hash, and at most so many, the most suspected
    first."""
    words = {one: sha256_word(labelled("selection resting", seed, round, one)) for one in waiting if one in suspicion}
    rest = [one for one, word in words.items() if unit(word) * ROUNDS < suspicion[one]]
    return set(sorted(rest, key=lambda one: (-suspicion[one], words[one]))[: max(0, most)])
