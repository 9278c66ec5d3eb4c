"""Schedules that are known to show much: few in which every event and every fault meets every phase, and for each
seeded bug one that shows it. They are in ``corpus.json``, by their seeds.

::

    python -m tests.faults.corpus             says what the corpus does not show any more
    python -m tests.faults.corpus --write     searches for what is missing, and writes the file anew

A change of the product may change what a seed shows. The tests then say which part is missing, and that the corpus is
to be written anew. The fresh seeds of each day are played besides: the corpus finds nothing new.

A search plays some 2,000 schedules, in 23 minutes on two busy cores. What it has found for a pair is written at once,
so that the next one goes on from there when it is interrupted; few schedules are chosen from all of them at its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from client_sdk.terminal import errors_as_sentences, note, say
from tests.explorer.counts import OF_SECURE, Coverage
from tests.explorer.faults import CENTER_FAULTS, DISK_FAULTS, FAULTS, SECURE_FAULTS
from tests.explorer.mutants import MUTANTS, BuggyProduct
from tests.explorer.mutants.__main__ import BUDGET
from tests.explorer.search import collected_between_schedules, play, play_many
from tests.explorer.secure.account import SECURE_PHASES
from tests.explorer.shape import Shape

FILE = Path(__file__).with_name("corpus.json")
TIMES = 2
"""In how many schedules of the corpus each pair is met: a change of the product seldom moves both."""
FIRST = 600
"""Schedules that are played before single pairs are searched."""
FOR_ONE = 240
"""Schedules that are played in search of one pair: shaped for it."""
ANEW = "write the corpus anew: python -m tests.faults.corpus --write"

PROLONGED: dict[str, dict[str, float]] = {
    "idle": {"op-pause": 0.9, "op-resume": 0.3},
    "committing": {"lazy": 0.9, "delay": 0.15},
    "leasing": {"fleet-away": 0.9, "worker-crash": 0.15},
    "training": {"fleet-away": 0.9, "worker-silent": 0.3},
    **{phase: {"delay": 0.12} for phase in SECURE_PHASES},
}
"""Faults that extend a phase."""
HELPED = {"device-old-record": {"device-crash": 0.15}, "": {"device-crash": 0.05}}
"""Faults without which another one, or an event, has little occasion."""
OF_EVENTS = {name: f"op-{name}" for name in ("create", "pause", "resume", "stop", "score", "revoke")}
OF_EVENTS |= {"refuse": "secure-vanish", "unbar": "op-unbar"}
"""Events that are themselves a fault, or follow from one."""
OF_WORKERS = ("poll", "lease", "poll-over", "heartbeat", "admit-result", "result", "lease-end", "return")
Pair = tuple[str, str]
"""(event or fault, phase)"""


class Known(NamedTuple):
    """One schedule: that of the seed, or the seed's shaped so that ``fault`` is likely to meet ``phase``."""

    seed: int
    fault: str = ""
    phase: str = ""

    def shape(self) -> Shape:
        shape = Shape.of(self.seed)
        if not self.phase:
            return shape
        rates = {**shape.rates, **PROLONGED.get(self.phase, {}), **HELPED.get(self.fault, {})}
        # While the first run is in this phase, events of the second one meet it.
        shape = replace(shape, focus=(self.fault, self.phase), rates=rates, two_runs=True)
        return _with_long_exchanges(shape, self.fault) if shape.secure else shape


def _with_long_exchanges(shape: Shape, fault: str) -> Shape:
    """The shape, with secure rounds that wait for devices whose messages take long, and that no operator disturbs."""
    exchanges = {"exchange_s": 90.0, "expires_s": 1000.0, "quiet_s": 90.0, "attempts": 3}
    plan = {**shape.plan, "secure": {**shape.plan["secure"], **exchanges}, "finish": {"rounds": 6}}
    kept = (fault, "op-create", "op-score", *PROLONGED.get(shape.focus[1], {}), *HELPED.get(fault, {}))
    rates = {name: rate if name in kept else rate / 10 for name, rate in shape.rates.items()}
    rates |= {"op-stop": 0.0} if fault != "op-stop" else {}
    liars = 1 if fault in ("lie", "secure-lie") else 0
    return replace(shape, plan=plan, rates=rates, storm_s=300.0, liars=liars, dead=0, replicas=1, lost_replicas=0)


@dataclass(frozen=True, slots=True)
class Corpus:
    schedules: list[Known]
    """In these, every pair is met; the first of them meet each pair once, the others again."""
    mutants: dict[str, int]
    """Seeded bug -> a seed whose schedule shows it."""

    @classmethod
    def read(cls) -> Corpus:
        found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"schedules": [], "mutants": {}}
        return cls([Known(*known) for known in found["schedules"]], found["mutants"])

    def write(self) -> None:
        schedules = ",\n  ".join(json.dumps(known) for known in self.schedules)
        mutants = ",\n  ".join(f"{json.dumps(name)}: {seed}" for name, seed in sorted(self.mutants.items()))
        text = f'{{"schedules": [\n  {schedules}\n], "mutants": {{\n  {mutants}\n}}}}\n'
        FILE.write_text(text, "utf-8")


def complete(found: Coverage, schedules: Iterable[Known]) -> Coverage:
    """Adds to ``found`` what meets what in these schedules, which are played one after another until every event and
    every fault has met every phase."""
    with collected_between_schedules() as collect:
        for known in schedules:
            if not found.never():
                break
            found += _played(known)
            collect()
    return found


def _played(known: Known) -> Coverage:
    world, broken = play(known.shape())
    assert broken is None, (known, broken)
    return world.coverage


def shows(name: str, seed: int) -> bool:
    """Whether the schedule of this seed shows the seeded bug."""
    report = play_many(range(seed, seed + 1), BuggyProduct(name))
    return any(finding.invariant in MUTANTS[name].breaks for finding in report.findings)


def cover(met: Mapping[Known, frozenset[Pair]], times: int = TIMES) -> list[Known]:
    """Returns few of these schedules which together meet each pair so many times, or as often as all of them do: always
    the one next that meets most of what is still missing (greedy set cover: Chvatal 1979, doi 10.1287/moor.4.3.233),
    and first of what was never met."""
    most = Counter(pair for pairs in met.values() for pair in pairs)
    found: Counter[Pair] = Counter()
    chosen: list[Known] = []
    left = dict(met)
    for wanted in range(1, times + 1):
        missing = {pair for pair in most if found[pair] < min(wanted, most[pair])}
        while missing:
            best = min(left, key=lambda known: (-len(missing & left[known]), known))
            found.update(left[best])
            missing -= left.pop(best)
            chosen.append(best)
    return chosen


def search(known: Iterable[Known], found: Callable[[list[Known]], None]) -> dict[Known, frozenset[Pair]]:
    """Plays the known schedules, the first seeds, and for each pair that is met too seldom schedules that are shaped
    for it: then ``found`` is called with those that meet it. Returns the pairs of each."""
    met: dict[Known, frozenset[Pair]] = {}
    times: Counter[Pair] = Counter()
    wanted = dict.fromkeys(Coverage().never())
    with collected_between_schedules() as collect:

        def play_one(one: Known) -> None:
            if one not in met:
                coverage = _played(one)
                met[one] = frozenset(wanted.keys() & {*coverage.events, *coverage.faults})
                times.update(met[one])
                collect()

        for one in (*known, *map(Known, range(FIRST))):
            play_one(one)
        for pair in (pair for pair in wanted if times[pair] < TIMES):
            tried = 0
            for one in islice(_shaped_for(pair), FOR_ONE):
                if times[pair] >= TIMES:
                    break
                play_one(one)
                tried += 1
            note(f"{' in '.join(pair)} is met by {times[pair]} of {len(met)} schedules, {tried} of them shaped for it")
            found([one for one in met if pair in met[one]])
    return met


def _shaped_for(pair: Pair) -> Iterator[Known]:
    """Small schedules in which the pair is likely."""
    name, phase = pair
    fault = name if name in FAULTS else OF_EVENTS.get(name, "")
    center = phase in ("leasing", "training") or name in OF_WORKERS or fault in CENTER_FAULTS
    secure = phase in SECURE_PHASES or name in OF_SECURE or fault in SECURE_FAULTS
    for seed in count(FIRST):
        shape = Shape.of(seed)
        files = fault not in DISK_FAULTS or shape.blobs == "files"
        if files and shape.devices <= 7 and (shape.datacenter, shape.secure) == (center, secure) and shape.rates:
            yield Known(seed, fault, phase)


@errors_as_sentences
def main(
    write: Annotated[bool, typer.Option("--write", help="Search for what is missing, and write the file.")] = False,
) -> None:
    """Say what the corpus shows no more, or write it anew. Exit code 1 where something is missing."""
    corpus = Corpus.read()
    lost = [name for name in MUTANTS if name not in corpus.mutants or not shows(name, corpus.mutants[name])]
    if not write:
        never = complete(Coverage(), corpus.schedules).never()
        for what in (*never, *lost):
            say(f"not shown: {what}")
        raise typer.Exit(1 if never or lost else 0)
    seeds = {name: seed for name, seed in corpus.mutants.items() if name in MUTANTS and name not in lost}
    for name in lost:
        findings = play_many(range(BUDGET), BuggyProduct(name), enough=1).findings
        note(f"{name}: {findings[0] if findings else 'not found'}")
        if findings and findings[0].invariant in MUTANTS[name].breaks:
            seeds[name] = findings[0].seed
        Corpus(corpus.schedules, seeds).write()
    kept = set(corpus.schedules)

    def keep(found: list[Known]) -> None:
        kept.update(found)
        Corpus(sorted(kept), seeds).write()

    met = search(corpus.schedules, keep)
    Corpus(cover(met), seeds).write()
    say(f"{len(met)} schedules were played, the corpus has {len(Corpus.read().schedules)}")


if __name__ == "__main__":
    typer.run(main)
