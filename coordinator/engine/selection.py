"""Who takes part in a round: a function of the selection seed, the round, the sorted list of waiting devices, and of
what is known of these from earlier rounds, where a plan's selection reads that.

Nothing here reads a clock or a random number generator, so the draw of any round can be repeated alone. The seed stays
on the coordinator: a device that knew it could predict the selection, and influence it by checking in or not.

========================== ======================== ================================================================
name                       reads beside the size    source
========================== ======================== ================================================================
uniform                    nothing                  Floyd's sampling
by_examples                nothing                  successive sampling over a tree of sums (Wong and Easton 1980,
                                                    doi 10.1137/0209009)
power-of-choice            loss                     Cho, Wang, Joshi 2020, arXiv:2010.01243
oort                       loss, seconds, selected, Lai et al. 2021, arXiv:2010.06081, algorithm 1
                           last_round
cyclic                     selected, last_round     each in turn
fixed                      nothing                  the same devices in each round
poisson                    nothing                  each device by itself
========================== ======================== ================================================================

*uniform* and *by_examples* ask for the devices of some ranks and of some places in the sum of examples. A coordinator
draws these from a tree that it keeps (``pool_tree``), so a draw costs the cohort and not the pool; the others look at
each device that waits.

A draw that depends on losses or times is no random sampling. So no privacy accounting may count on amplification by the
sampling of *power-of-choice*, *oort* or a package's selection that reads them.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

from client_sdk.chance import WordStream, above_zero, labelled, sha256_word, unit
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, Settings, failures
from coordinator.engine.pool_tree import PoolTree, weight_of
from coordinator.engine.secure.suspicion import Suspicion, resting

Pool = Sequence[tuple[str, int]]
"""(device, examples), by device id."""
Ranked = PoolTree | Sequence[Sequence[Any]]
"""Who waits, by id: of each rank, (device, examples) and maybe more."""
Row = Sequence[Any]
"""(device, examples), then what the selection reads, in its order: a line of the stored list of who waits."""
NONE: Settings = MappingProxyType({})
NOBODY: Suspicion = MappingProxyType({})


class Known(NamedTuple):
    """What a run knows of a device from its rounds that are over, where the plan's selection may read it."""

    loss: float | None = None
    """The training loss that it reported last; None: it reported none."""
    seconds: float | None = None
    """From the draw to its last report, by the coordinator's clock. A device that came too late has not reported."""
    selected: int = 0
    """For how many rounds it was drawn, also abandoned ones."""
    last_round: int = 0
    """The last round for which it was drawn; 0: none."""


class Pace(NamedTuple):
    """The pacer of *oort* (Lai et al. 2021, section 4.3): where the rounds of a window had less utility than those of
    the window before, slower devices are no penalty any more."""

    moved: int = 0
    """How often that was so."""
    gains: tuple[float, ...] = ()
    """The utility of each round since the last window was compared, and of that window."""

    def after(self, round: Iterable[tuple[int, float | None]], window: int) -> Pace:
        """With one more round. ``round``: (examples, loss) of each device that reported in it; ``window``: rounds."""
        gains = (*self.gains, math.fsum(min(n * abs(loss), _MOST_GAIN) for n, loss in round if loss is not None))
        if len(gains) < 2 * window:
            return Pace(self.moved, gains)
        return Pace(self.moved + (math.fsum(gains[window:]) < math.fsum(gains[:window])), gains[window:])


NO_PACE = Pace()
_ALL = 1 - 2.0**-20
"""The quantile of the slowest."""
_MOST_GAIN = 1e290
"""Liars could make a sum infinite."""


class Candidate(NamedTuple):
    """A waiting device. What the selection does not read has the value for an unknown device, see ``Known``."""

    device: str
    examples: int
    loss: float | None = None
    seconds: float | None = None
    selected: int = 0
    last_round: int = 0


READS = Known._fields


class Selection(Protocol):
    """A way to draw cohorts, also of a package: the same answer for the same arguments, in every process."""

    @property
    def reads(self) -> Sequence[str]:
        """What it reads beyond a device and its examples: of READS. It is stored with the pool of each draw."""

    @property
    def varies(self) -> bool:
        """Whether it may give more or fewer than ``k`` devices."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Numbers that a plan may set."""

    def select(self, pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings) -> Iterable[str]:
        """The devices of this round, in any order. ``pool``: all that wait, by id; ``k``: as many of them, or all where
        there are fewer; ``seed``: the run's, secret; ``round``: its number, from 1. Chance comes from hashes of these
        (``client_sdk.chance``), never from a clock or a generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A selection of this file."""

    select: Callable[..., Iterable[str]]
    reads: Sequence[str] = ()
    varies: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    proportional: bool = False
    """Whether it draws in proportion to examples, so that an equal weight counts a device's size once."""
    ranked: bool = False
    """Whether it looks at none but those that it draws, by rank or by place in the sum: it may draw from a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan's selection, with every parameter set."""

    name: str
    selection: Selection
    settings: Settings

    def __post_init__(self) -> None:
        if unknown := [name for name in self.selection.reads if name not in READS]:
            raise ExtensionError(f"choose: {self.name} reads {unknown[0]!r}, and there are {', '.join(READS)}")

    def rows(self, pool: Pool, known: Mapping[str, Known]) -> Sequence[Row]:
        """The list of who waits as it is stored, from which ``draw`` draws."""
        if not self.selection.reads:
            return pool
        nothing = Known()
        return [
            (device, examples, *(getattr(known.get(device, nothing), name) for name in self.selection.reads))
            for device, examples in pool
        ]

    @property
    def ranked(self) -> bool:
        """Whether it draws from a tree as well as from a list."""
        return isinstance(self.selection, BuiltIn) and self.selection.ranked

    @property
    def window(self) -> int:
        """Rounds after which the pacer compares; 0: the selection has none, or the plan does not want it."""
        own = isinstance(self.selection, BuiltIn)
        return int(self.settings["window"]) if own and self.settings.get("pace") else 0

    def draw(
        self, rows: Ranked, k: int, *, seed: int, round: int, moved: int = 0, suspicion: Suspicion = NOBODY
    ) -> list[str]:
        """The cohort, sorted by id; the same for rows in any order. ``rows``: a tree where the selection is *ranked*,
        without those who rest. ``moved``: see ``Pace``. ``suspicion``: who rests in some rounds, while ``k`` others
        wait. ExtensionError where the selection fails, or gives what is no cohort of ``k`` of these devices."""
        reads, settings = self.selection.reads, self.settings
        if isinstance(rows, PoolTree):
            return sorted(self.selection.select(cast("Any", rows), k, seed=seed, round=round, settings=settings))
        if suspicion:
            out = resting(suspicion, (row[0] for row in rows), len(rows) - k, seed=seed, round=round)
            rows = [row for row in rows if row[0] not in out]
        if moved:
            preferred = min(settings["preferred"] + moved * settings["pace"], _ALL)
            settings = {**settings, "preferred": preferred}
        if isinstance(self.selection, BuiltIn) and not reads:  # it takes rows as they are: a pool may have millions
            return sorted(self.selection.select(sorted(rows), k, seed=seed, round=round, settings=self.settings))
        pool = [Candidate(row[0], row[1], **dict(zip(reads, row[2:], strict=True))) for row in rows]
        pool.sort()
        with failures(f"selection {self.name}", self.selection):
            found = sorted(self.selection.select(pool, k, seed=seed, round=round, settings=settings))
            different = set(found)
        if len(different) < len(found) or not {one.device for one in pool}.issuperset(different):
            raise ExtensionError(f"the selection {self.name} gives a device twice, or one that does not wait")
        if len(found) != min(k, len(pool)) and not self.selection.varies:
            raise ExtensionError(f"the selection {self.name} gives {len(found)} devices where {k} are to be drawn")
        return found

    def reason_against(self, select: int, pool: float, *, secure: bool) -> str:
        """Why a plan with these sizes does not go with the selection; empty where it does."""
        if secure and (read := [name for name in ("loss", "seconds") if name in self.selection.reads]):
            return f'"{self.name}" reads the {read[0]} of single devices, which nobody knows in secure rounds'
        if secure and self.selection.varies:
            return f'"{self.name}" draws cohorts of any size, and a secure round is made for cohort.select devices'
        if self.name != "uniform" and pool <= select:
            return (
                f'choose = "{self.name}" draws {select} of {pool} waiting devices: all of them, whatever their size or '
                "turn; set cohort.pool above cohort.select, for example ten times as large"
            )
        return ""


def uniform(pool: Ranked, k: int, *, seed: int, round: int, settings: Settings = NONE) -> list[str]:
    """``k`` devices, each subset alike (Floyd's sampling: k draws, whatever the size of the pool). Sorted by id."""
    n = len(pool)
    draws = WordStream(labelled("selection", seed, round, ""))
    chosen: set[int] = set()
    for top in range(n - min(k, n), n):
        index = draws.below(top + 1)
        chosen.add(top if index in chosen else index)
    return sorted(pool[index][0] for index in chosen)


def by_examples(pool: Ranked, k: int, *, seed: int, round: int, settings: Settings = NONE) -> list[str]:
    """``k`` devices without replacement, the next one always proportional to its examples. Sorted by id.

    The first is the one at a place in the sum of all examples that is uniform, by a hash of (seed, round); the next one
    is drawn in this way among the devices that are left. Inclusion probabilities are below k n_i / sum n for large
    devices, hence the unweighted mean of the cohort keeps a bias towards small devices, which vanishes as k / n does:
    see docs/selection.md.
    """
    return sorted(row[0] for row in _proportional(pool, k, seed, round))


def power_of_choice(
    pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings = NONE
) -> list[str]:
    """Of ``d = factor k`` candidates, drawn as by ``by_examples``, the ``k`` with the highest last known loss; those of
    which none is known come first (pi_rpow-d of Cho, Wang, Joshi 2020, arXiv:2010.01243, section 4: no device computes
    a loss for the draw alone). Ties go to the candidate that was drawn first."""
    drawn = _proportional(pool, math.ceil(settings["factor"] * k), seed, round)
    drawn.sort(key=lambda one: -math.inf if one.loss is None else -one.loss)
    return [one.device for one in drawn[:k]]


def oort(pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings) -> list[str]:
    """Devices that help most and are fast, and some of which nothing is known (Lai et al. 2021, arXiv:2010.06081).

    A share ``max(least, explore decay^(round - 1))`` of the places goes to devices that have not reported yet, those
    drawn seldom first. The other places go to devices by the utility ::

        (u_i + sqrt(0.1 ln round / last_round_i)) * (T / t_i if t_i > T else 1)^alpha,    u_i = n_i |loss_i|

    u is cut at its 95th percentile and scaled to [0, 1], as in the authors' code; T is the quantile ``preferred`` of
    the known seconds t_i, which rises by ``pace`` each time that the last ``window`` rounds had less utility than the
    ``window`` before them (``Pace``; the authors' code moves it by 0.05 after 20 rounds). All devices with at least
    ``cutoff`` times the utility of the last place are drawn from, in proportion to it. Two things are not the paper's:
    a device reports the mean of its losses, not the root of their mean square, so u is a lower bound of its statistical
    utility; and the utility of a round is that of the devices that reported in it.
    """
    known = [one for one in pool if one.loss is not None and one.seconds is not None]
    new = [one for one in pool if one.loss is None or one.seconds is None]
    new.sort(key=lambda one: (one.selected, _word("selection exploring", seed, round, one.device)))
    share = max(settings["least"], settings["explore"] * settings["decay"] ** (round - 1))
    exploring = min(len(new), max(math.floor(share * k + 0.5), k - len(known)))
    places, utility = min(k - exploring, len(known)), _utility(known, round, settings)
    chosen = [one.device for one in new[:exploring]]
    if places:
        least = settings["cutoff"] * sorted(utility.values(), reverse=True)[places - 1]
        weighed = [(name, value) for name, value in utility.items() if value >= least]
        chosen += [row[0] for row in _by_weight(weighed, places, "selection exploiting", seed, round)]
    return chosen


def cyclic(pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings = NONE) -> list[str]:
    """Each waiting device in turn: those whose last draw is longest ago, of these those that were drawn less often, and
    of these by a hash of (seed, device)."""

    def key(one: Candidate) -> tuple[int, int, int]:
        return one.last_round, one.selected, _word("selection in turn", seed, 0, one.device)

    return [one.device for one in sorted(pool, key=key)[:k]]


def fixed(pool: Sequence[Row], k: int, *, seed: int, round: int, settings: Settings = NONE) -> list[str]:
    """The first ``k`` that wait, by a hash of (seed, device): the same devices in each round, as long as they wait."""
    return [row[0] for row in sorted(pool, key=lambda row: _word("selection fixed", seed, 0, row[0]))[:k]]


def poisson(pool: Sequence[Row], k: int, *, seed: int, round: int, settings: Settings = NONE) -> list[str]:
    """Each waiting device by itself, with probability ``k`` / number of waiting devices: ``k`` of them on average. A
    cohort that is no quorum ends its round, and the next round draws anew."""
    chance = k / max(1, len(pool))
    return [row[0] for row in pool if unit(_word("selection poisson", seed, round, row[0])) < chance]


_FACTOR = Parameter(meaning="candidates for each place", default=2, least=1, below=1_000_000)
_OORT = {
    "explore": Parameter(meaning="share of unknown devices in round 1", default=0.9, least=0, below=1),
    "decay": Parameter(meaning="by which that share shrinks each round", default=0.98, least=0, below=1),
    "least": Parameter(meaning="where that share stays", default=0.2, least=0, below=1),
    "preferred": Parameter(meaning="quantile of the seconds that are no penalty", default=0.3, least=0, below=1),
    "alpha": Parameter(meaning="how hard slower devices are penalized", default=2, least=0, below=100),
    "pace": Parameter(meaning="by which preferred rises when the utility falls; 0: never", default=0, least=0, below=1),
    "window": Parameter(meaning="rounds whose utility is compared", default=20, least=1, below=100_000, whole=True),
    "cutoff": Parameter(meaning="how near the best utilities others must be", default=0.95, least=0, below=1),
}
SELECTIONS: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "uniform": BuiltIn(select=uniform, ranked=True),
        "by_examples": BuiltIn(select=by_examples, proportional=True, ranked=True),
        "power-of-choice": BuiltIn(
            select=power_of_choice, reads=("loss",), parameters={"factor": _FACTOR}, proportional=True
        ),
        "oort": BuiltIn(select=oort, reads=READS, parameters=_OORT),
        "cyclic": BuiltIn(select=cyclic, reads=("selected", "last_round")),
        "fixed": BuiltIn(select=fixed),
        "poisson": BuiltIn(select=poisson, varies=True),
    }
)


def _word(purpose: str, seed: int, round: int, device: str) -> int:
    return sha256_word(labelled(purpose, seed, round, device))


def _proportional(pool: Ranked, k: int, seed: int, round: int) -> list[Any]:
    """``k`` rows in proportion to their examples, without replacement; the first drawn first."""
    ordered = pool if isinstance(pool, PoolTree) else _Listed(sorted(pool, key=itemgetter(0)))
    draws, left = WordStream(labelled("selection by examples", seed, round, "")), ordered.total
    taken, found = _Taken(), []
    for _ in range(min(k, len(ordered))):
        rank, start = ordered.at(taken.place(draws.below(left)))
        found.append(ordered[rank])
        weight = weight_of(found[-1][1])
        taken.add(start, weight)
        left -= weight
    return found


class _Listed:
    """Of a list, what a draw asks of a ``PoolTree``."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._ends = [*accumulate(weight_of(row[1]) for row in rows)]
        self.total = self._ends[-1] if rows else 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rank: int) -> Row:
        return self._rows[rank]

    def at(self, place: int) -> tuple[int, int]:
        rank = bisect_right(self._ends, place)
        return rank, self._ends[rank - 1] if rank else 0


_BLOCK = 128


class _Taken:
    """The parts of a sum that belong to devices which are drawn already: in blocks, so that the next of n draws passes
    sqrt(n) of them."""

    def __init__(self) -> None:
        self._blocks: list[tuple[list[tuple[int, int]], int]] = [([], 0)]
        """((where it begins, how long it is) of each part, in order; how long they are together)."""

    def add(self, start: int, size: int) -> None:
        number = next((at for at, (parts, _) in enumerate(self._blocks) if parts and parts[-1][0] > start), -1)
        parts, _ = self._blocks[number]
        insort(parts, (start, size))
        halves = (parts[:_BLOCK], parts[_BLOCK:]) if len(parts) > 2 * _BLOCK else (parts,)
        number %= len(self._blocks)
        self._blocks[number : number + 1] = [(half, sum(size for _, size in half)) for half in halves]

    def place(self, place: int) -> int:
        """Where a place in what is left is in the whole sum."""
        for parts, length in self._blocks:
            if parts and place + length - parts[-1][1] >= parts[-1][0]:
                place += length
                continue
            for start, size in parts:
                if place < start:
                    return place
                place += size
        return place


def _by_weight(pool: Sequence[Any], k: int, purpose: str, seed: int, round: int, least: float = 1e-12) -> list[Any]:
    """``k`` rows in proportion to their second value, or ``least``, without replacement; the first drawn first: by
    exponential keys (Efraimidis and Spirakis 2006, doi 10.1016/j.ipl.2005.11.003)."""

    def key(row: Row) -> tuple[float, str]:
        return -math.log(above_zero(_word(purpose, seed, round, row[0]))) / max(least, row[1]), row[0]

    return sorted(pool, key=key)[:k]


def _utility(known: Sequence[Candidate], round: int, settings: Settings) -> dict[str, float]:
    """Device -> utility; see ``oort``."""
    if not known:
        return {}
    raw = [min(one.examples * abs(one.loss or 0.0), sys.float_info.max) for one in known]  # else two liars make a NaN
    low, high = min(raw), sorted(raw)[int(0.95 * (len(raw) - 1))]
    times = sorted(one.seconds or 0.0 for one in known)
    preferred, found = times[int(settings["preferred"] * len(times))], {}
    for one, gain in zip(known, raw, strict=True):
        scaled = (min(gain, high) - low) / (high - low) if high > low else 1.0
        stale = math.sqrt(0.1 * math.log(max(1, round)) / max(1, one.last_round))
        slow = (preferred / one.seconds) ** settings["alpha"] if one.seconds and one.seconds > preferred else 1.0
        found[one.device] = (scaled + stale) * slow
    return found
