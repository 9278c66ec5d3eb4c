"""The coordinator's messages of one attempt, frozen: devices of every later version must understand them.

What devices say in it, and the messages that both sides can write, are frozen in ``tests/client_sdk/secagg``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from client_sdk.secagg.lanes import pack
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import RevealedShares, Survivors
from coordinator.secure.blob_formats import entry_bytes, parse_entry, sum_bytes
from coordinator.secure.opening import open_sum
from coordinator.secure.performing import gather
from coordinator.secure.routing import DealtShares, proof
from tests.client_sdk.secagg.attempt import Attempt, mask, opened, share

GOLDEN = Path(__file__).with_name("golden.json")
DEVICES = Path(__file__).parents[2] / "client_sdk" / "secagg" / "golden.json"


def played() -> Attempt:
    """The attempt that the devices' golden file freezes: 4 of them, the last vanishes after sharing."""
    attempt = opened(4, dimension=5)
    share(attempt)
    mask(attempt, np.linspace(-0.9, 0.9, 20).reshape(4, 5), [10, 20, 30, 40], silent=(3,))
    return attempt


def messages() -> dict[str, bytes]:
    """What the coordinator keeps and says, by name."""
    attempt = played()
    entries = [
        entry_bytes(entry.advertisement.encoded, entry.signature, entry.certificate)
        for entry in attempt.cohort.roster.entries
    ]
    _, (cohort,) = gather(attempt.header, map(parse_entry, entries[::-1]), attempt.authority.vouch)
    dealt = DealtShares(cohort.h, attempt.bundles.values())
    survivors = Survivors((0, 1, 2))
    signatures = [
        (place, signed(attempt.players[place].identity, cohort.h, "survivors", survivors.encoded))
        for place in (2, 0, 1)
    ]
    revealed = [RevealedShares.of(place, attempt.players[place].held, survivors) for place in (0, 1, 2)]
    vectors = [attempt.players[place].packed for place in (0, 1, 2)]
    total = open_sum(cohort, survivors, range(4), vectors, revealed)
    return {
        "kept advertisement": entries[0],
        "roster": cohort.roster.encoded,
        **{f"delivery to {place}": dealt.to(place).encoded for place in range(4)},
        "survivors": survivors.encoded,
        "proof": proof(signatures).encoded,
        "kept sum": sum_bytes(pack(total.lanes, cohort.roster.lane_bits), cohort.h),
    }


def test_the_coordinators_messages_are_frozen() -> None:
    golden = {name: bytes.fromhex(value) for name, value in json.loads(GOLDEN.read_text()).items()}
    assert messages() == golden


def test_they_are_of_the_session_that_devices_froze() -> None:
    devices, mine = (json.loads(path.read_text()) for path in (DEVICES, GOLDEN))
    assert {name: mine[name] for name in ("roster", "survivors", "proof")} == {
        name: devices[name] for name in ("roster", "survivors", "proof")
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: value.hex() for name, value in messages().items()}, indent=1) + "\n")
