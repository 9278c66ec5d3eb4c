"""Seeds that are known to show much: few schedules in which every event and every fault meets every phase, and for each
seeded bug a schedule that shows it. They are in ``corpus.json``.

::

    python -m tests.faults.corpus             says what the corpus does not show any more
    python -m tests.faults.corpus --write     searches for what is missing, and writes the file anew

A change of the product may change what a seed shows. The tests then say which part is missing, and that the corpus is
to be written anew. The fresh seeds of each day are played besides: the corpus finds nothing new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import typer

from client_sdk.terminal import errors_as_sentences, note, say
from simulation.explorer.counts import Coverage
from simulation.explorer.faults import FAULTS
from simulation.explorer.search import collected_between_schedules, play, play_many
from simulation.explorer.shape import Shape
from tests.faults.mutants import MUTANTS, BuggyProduct
from tests.faults.mutants.__main__ import BUDGET

FILE = Path(__file__).with_name("corpus.json")
TIMES = 2
"""In how many schedules of the corpus each pair is met: a change of the product seldom moves both."""
FIRST = 600
"""Schedules that are played before single pairs are searched."""
FOR_ONE = 400
"""Schedules that are played in search of one pair."""
ANEW = "write the corpus anew: python -m tests.faults.corpus --write"

Pair = tuple[str, str]
"""(event or fault, phase)"""


@dataclass(frozen=True, slots=True)
class Corpus:
    seeds: list[int]
    """In these, every pair is met."""
    mutants: dict[str, int]
    """Seeded bug -> a seed whose schedule shows it."""

    @classmethod
    def read(cls) -> Corpus:
        found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"seeds": [], "mutants": {}}
        return cls(found["seeds"], found["mutants"])

    def write(self) -> None:
        FILE.write_text(json.dumps({"seeds": self.seeds, "mutants": self.mutants}, indent=1) + "\n", "utf-8")


def coverage_of(seeds: Iterable[int]) -> Coverage:
    """Plays these schedules. Returns what met what."""
    found = Coverage()
    with collected_between_schedules() as collect:
        for seed in seeds:
            world, broken = play(Shape.of(seed))
            assert broken is None, (seed, broken)
            found += world.coverage
            del world
            collect()
    return found


def shows(name: str, seed: int) -> bool:
    """Whether the schedule of this seed shows the seeded bug."""
    report = play_many(range(seed, seed + 1), BuggyProduct(name))
    return any(finding.invariant in MUTANTS[name].breaks for finding in report.findings)


def cover(met: Mapping[int, frozenset[Pair]], times: int = TIMES) -> list[int]:
    """Returns few of these seeds which together meet each pair so many times, or as often as all of them do: always the
    seed next that meets most of what is still missing (greedy set cover: Chvatal 1979, doi 10.1287/moor.4.3.233)."""
    missing: dict[Pair, int] = {}
    for pairs in met.values():
        for pair in pairs:
            missing[pair] = min(times, missing.get(pair, 0) + 1)
    chosen: list[int] = []
    left = dict(met)
    while any(missing.values()):
        best = max(left, key=lambda seed: (sum(1 for pair in left[seed] if missing[pair]), -seed))
        for pair in left.pop(best):
            missing[pair] = max(0, missing[pair] - 1)
        chosen.append(best)
    return sorted(chosen)


def search(known: Iterable[int]) -> dict[int, frozenset[Pair]]:
    """Plays the known seeds, the first ones, and for each pair that is met too seldom those that are likely to meet
    it. Returns the pairs of each."""
    met: dict[int, frozenset[Pair]] = {}
    with collected_between_schedules() as collect:

        def play_one(seed: int) -> None:
            if seed not in met:
                world, broken = play(Shape.of(seed))
                assert broken is None, (seed, broken)
                met[seed] = frozenset(world.coverage.events) | frozenset(world.coverage.faults)
                del world
                collect()

        for seed in (*known, *range(FIRST)):
            play_one(seed)
        for pair in Coverage().never():
            for seed in islice(_likely(pair), FOR_ONE):
                if sum(pair in pairs for pairs in met.values()) >= TIMES:
                    break
                play_one(seed)
            else:
                note(f"{pair} was met {sum(pair in pairs for pairs in met.values())} times")
    return met


def _likely(pair: Pair) -> Iterator[int]:
    """Seeds whose schedules are likely to meet the pair."""
    name, phase = pair
    for seed in count(FIRST):
        fault, of_phase = Shape.of(seed).focus
        if of_phase == phase and (name not in FAULTS or fault == name):
            yield seed


@errors_as_sentences
def main(
    write: Annotated[bool, typer.Option("--write", help="Search for what is missing, and write the file.")] = False,
) -> None:
    """Say what the corpus shows no more, or write it anew. Exit code 1 where something is missing."""
    corpus = Corpus.read()
    lost = [name for name in MUTANTS if name not in corpus.mutants or not shows(name, corpus.mutants[name])]
    if not write:
        never = coverage_of(corpus.seeds).never()
        for what in (*never, *lost):
            say(f"not shown: {what}")
        raise typer.Exit(1 if never or lost else 0)
    seeds = {name: seed for name, seed in corpus.mutants.items() if name in MUTANTS and name not in lost}
    for name in lost:
        findings = play_many(range(BUDGET), BuggyProduct(name), enough=1).findings
        note(f"{name}: {findings[0] if findings else 'not found'}")
        seeds |= {name: finding.seed for finding in findings if finding.invariant in MUTANTS[name].breaks}
        Corpus(corpus.seeds, dict(sorted(seeds.items()))).write()
    met = search(corpus.seeds)
    Corpus(cover(met), dict(sorted(seeds.items()))).write()
    say(f"{len(met)} schedules were played, the corpus has {len(Corpus.read().seeds)}")


if __name__ == "__main__":
    typer.run(main)
