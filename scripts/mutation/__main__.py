"""Measures the tests: makes small mutations of the product, one at a time, and runs fast tests that execute them.

::

    make mutate ONLY=coordinator/engine               # 20 mutations of this room
    make mutate ONLY=client_sdk/tensors ARGS="--count 50 --seed 2"

Cosmic Ray makes the mutations. A sample is a function of the room, the seed and the sources. Results are stored
(``trial.py``): a second run continues where the first one ended. The first run records which test calls which function,
which takes several minutes (``calls.py``). The product is mutated in a copy, never in this checkout. A mutation that no
test notices either needs a test of a rule that a user would miss, or changes nothing that anybody can see.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

from . import calls, choice, places, trial
from .places import Mutation
from .recorder import PACKAGES, ROOT
from .trial import Copy, Verdict

FOLDER = ROOT / ".mutate"
TIMEOUT_S = 40.0 + 2 * choice.ROOM_S


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutate a room of the product and run its fast tests.")
    parser.add_argument("room", help="a folder or a file, as coordinator/engine")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    room = ROOT / arguments.room
    if not room.exists() or room.relative_to(ROOT).parts[0] not in PACKAGES:
        sys.exit(f"There is no room {arguments.room}; one is a folder or a file in {', '.join(PACKAGES)}.")
    sampled = places.sample(places.mutations(ROOT, room), arguments.count, arguments.seed)
    known = trial.stored(FOLDER)
    done = {mutation.name: known[mutation.name] for mutation in sampled if _holds(known.get(mutation.name), mutation)}
    missing = [mutation for mutation in sampled if mutation.name not in done]
    if missing:
        every = calls.recorded(ROOT, FOLDER / "calls")
        copy = Copy(ROOT, FOLDER / f"copy-{os.getpid()}")
        try:
            done |= _measured(copy, missing, every)
        finally:
            shutil.rmtree(copy.folder, ignore_errors=True)
    _report(arguments.room, [done[mutation.name] for mutation in sampled if mutation.name in done])


def _holds(verdict: Verdict | None, mutation: Mutation) -> bool:
    """Whether a stored result still says something about these sources."""
    if verdict is None:
        return False
    return verdict.digest == trial.digest_of(ROOT, mutation, verdict.outcome, verdict.noticed_by)


def _measured(copy: Copy, missing: Sequence[Mutation], every: Sequence[calls.RecordedTest]) -> dict[str, Verdict]:
    """The verdicts, each stored as soon as it is there. Those by tests that fail without a mutation are taken back."""
    found = {}
    for number, mutation in enumerate(missing, 1):
        verdict = copy.verdict(mutation, choice.chosen(mutation, every, ROOT), TIMEOUT_S)
        trial.store(FOLDER, verdict)
        found[mutation.name] = verdict
        by = f"  by {verdict.noticed_by}" if verdict.noticed_by else f"  {verdict.tests} tests"
        print(f"{number}/{len(missing)} {verdict.outcome:9} {verdict.seconds:6} s  {mutation.name}{by}", flush=True)
    for test in _failing(copy, sorted({verdict.noticed_by for verdict in found.values()} - {""})):
        print(f"{test} fails without a mutation; what it noticed does not count")
        for name in [name for name, verdict in found.items() if verdict.noticed_by == test]:
            trial.store(FOLDER, replace(found.pop(name), digest=""))
    return found


def _failing(copy: Copy, tests: list[str]) -> list[str]:
    """Those that fail although nothing is mutated."""
    failing: list[str] = []
    while len(failing) < len(tests):
        outcome, test = copy.run([test for test in tests if test not in failing])
        if outcome == "passed":
            break
        failing.append(test)
    return failing


def _report(room: str, verdicts: Sequence[Verdict]) -> None:
    noticed = [verdict for verdict in verdicts if not verdict.survived]
    for verdict in verdicts:
        if verdict.survived:
            print(f"\nSURVIVED {verdict.mutation} ({verdict.tests} tests)")
            print("\n".join(f"  {line}" for line in verdict.diff))
    print(
        f"\n{room}: {len(noticed)} of {len(verdicts)} mutations noticed ({len(noticed) / max(1, len(verdicts)):.0%})."
    )


if __name__ == "__main__":
    main()
