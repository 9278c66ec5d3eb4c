"""The sharpest attacks, by plan. Each is played against devices that keep their rules, which refuse or say the same
again, and against devices with one rule switched off, where the oracles find the break.

The victim is device 0 where nothing else is said. Colluders are as many as the roster withstands, or fewer.
"""

from __future__ import annotations

from tests.client_sdk.secagg.attempt import changed
from tests.client_sdk.secagg.cheats import Cheat
from tests.client_sdk.secagg.oracle import View


def play_two_rosters(cheat: Cheat) -> tuple[View, View]:
    """Two rosters to one device: 1 and 2 open the first, where it is alive, 3 and 4 the second, where it is dead. Of 6
    devices the last colludes, in both."""
    cheat.advertised(cheat.head)
    first, second = (cheat.roster(cheat.head, chosen) for chosen in ((0, 1, 2, 5), (0, 3, 4, 5)))
    cheat.shared(first)
    cheat.masked(first)
    cheat.start(0, cheat.head)
    cheat.shared(second)
    cheat.masked(second, (3, 4))
    cheat.completed(second, (3, 4, 5))
    cheat.revealed(first, cheat.signed(first, (0, 1, 2, 5), (1, 2)), (1, 2))
    return first, second


def play_older_attempt(cheat: Cheat) -> View:
    """Aborted after masking, and keys advertised anew; then the older attempt is asked for again."""
    older = cheat.until_masked()
    cheat.advertised(changed(cheat.head, attempt=1), cheat.honest)
    cheat.advertised(cheat.head, cheat.honest)
    return older


def play_two_lists(cheat: Cheat) -> None:
    """Within an attempt: a list of all is opened, and then one of all but the victim."""
    where = cheat.until_masked()
    everybody = range(cheat.n)
    cheat.completed(where, everybody, over=False)
    cheat.advertised(cheat.head, cheat.honest)
    cheat.completed(where, everybody[1:])


def play_another_attempt(cheat: Cheat) -> None:
    """A sum that was completed is kept secret, called aborted, and asked for again with one device less."""
    cheat.completed(cheat.until_masked(), range(cheat.n))
    head = changed(cheat.head, attempt=1)
    cheat.advertised(head, range(1, cheat.n))
    if cheat.entries[head.digest].keys() >= set(cheat.honest[1:]):
        cheat.completed(cheat.until_masked(head, range(1, cheat.n)), range(1, cheat.n))


def play_many_lists(cheat: Cheat) -> None:
    """To each device another list, on which each of 2, 3 and 4 is dead for three others: together all three are dead,
    though no list lacks more than two. Of 7 devices two collude."""
    where = cheat.until_masked()
    dead = {0: (2, 3), 1: (2, 4), 2: (3, 4), 3: (2, 4), 4: (3,)}
    for number, gone in dead.items():
        body = cheat.signed(where, [other for other in range(7) if other not in gone], [number])
        cheat.revealed(where, body, [number])


def play_many_vectors(cheat: Cheat) -> None:
    """The victim is asked to mask again and again, each time with one peer less: two vectors differ by one mask."""
    where = cheat.until_masked()
    for without in (1, 2, 3):
        cheat.start(0, cheat.head)
        cheat.masked(where, [0], [without])
    cheat.revealed(where, cheat.signed(where, range(4), (1, 2, 3)), (1, 2, 3))


def play_both_kinds(cheat: Cheat) -> None:
    """Every survivor is asked to unmask once more, with another list."""
    where = cheat.until_masked()
    cheat.completed(where, range(cheat.n))
    fewer = cheat.listing(where, range(1, cheat.n))
    for number in cheat.honest:
        cheat.tell(number, "unmask", fewer)
    cheat.advertised(cheat.head)
    cheat.signed(where, range(1, cheat.n))
