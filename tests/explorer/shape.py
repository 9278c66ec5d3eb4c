"""The setting of a schedule: how many devices, which plan, which store, which rates of faults.

A function of the seed. Most schedules are small, since most bugs need few devices; some have hundreds. In each, some
faults are switched off altogether (swarm testing: Groce et al. 2012, doi 10.1145/2338965.2336763), and one pair of a
fault and a phase is chosen to be likely, so that no pair stays rare.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from client_sdk.secagg.parameters import SMALLEST
from tests.explorer import plans
from tests.explorer.chance import Chance
from tests.explorer.faults import CENTER_FAULTS, FAULTS, FLEET_FAULTS, SECURE_FAULTS
from tests.explorer.plans import ADAM, plan_of, with_datacenter
from tests.explorer.secure.account import SECURE_PHASES
from tests.explorer.secure.plans import FAST, GROUPS, LARGEST, SMALLEST_FLEET, SMALLEST_RING, secured

FLEET_PHASES = ("idle", "selecting", "collecting", "committing")
PHASES = (*FLEET_PHASES, "leasing", "training", *SECURE_PHASES)
SECURE = 1 / 6
"""The part of the schedules, of those without a datacenter, whose rounds are secure."""
GROUPED = 1 / 60
"""The part of the schedules, of those without a datacenter, whose secure rounds have several groups."""
SIGNED = 0.2
"""The part of these in which some devices want a signature under the run's model."""
REAL_CRYPTO = 0.1
"""The part of these with real cryptography, which takes several times as long."""
UNBARS = 0.3
"""The part of the schedules that focus on lies in which it is the owner's lifting of a bar that they focus on."""
PRIVATE = 0.1
"""The part of the schedules with plain rounds that have noise,"""
SET_BACK = 0.6
"""the part of these, of those with one process, in which the coordinator's folder is set back,"""
PRIVATE_SECURE = 0.3
"""of those with secure ones,"""
PRIVATE_FLIPS = 0.4
"""and of those in which bits flip, and the list of a round changes after it was paid for."""
DATACENTER = 0.1
"""The part of the schedules whose plan has a datacenter."""
SECURE_CENTER = 0.12
"""The part of these whose rounds with devices are secure."""
EACH = 40
RARE = {
    3: "files",
    7: "http",
    11: "flower",
    13: "flips",
    17: "sqlite",
    19: "copied",
    23: "files",
    29: "liar",
    31: "flower",
    33: "copied",
    37: "flips",
}
"""Of so many seeds in a row, those of small schedules that go over ``FileBlobs``, the real ASGI application or SQLite,
each of which takes several times as long, in which bits flip, a dealer is proven to lie or a liar sends what others
send, or that have a Flower run beside the others: the same share in each search."""
BUFFERED = (107, (15, 36, 55, 78, 96))
"""The remainders of the seeds whose schedules have buffered rounds, by this number: a twentieth."""
FEW_EXAMPLES = 2
"""The first device has fewer."""
USELESS = 0.06
"""The part of the schedules in which a device has too few examples, and of those in which one has another learner."""
LEAVES = 0.2
"""The part of the schedules in which a device leaves."""
SHORT_CERTIFICATES = 0.1
"""The part of the schedules in which certificates may expire: each costs signatures, which few others need."""
SQL_STORM_S = 15.0
"""The longest storm over SQLite, where a step takes ten times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    seed: int
    devices: int
    dead: int
    """How many of them vanish permanently during the storm."""
    liars: int
    replicas: int
    lost_replicas: int
    """How many of those never come back once they have crashed."""
    store: Literal["memory", "sqlite", "sqlite-file"]
    blobs: Literal["memory", "files"]
    two_runs: bool
    """Whether a second run shares the fleet from early on: its devices work while the first is in any phase."""
    wire: bool
    """Whether messages are converted to JSON as over HTTP, rather than passed as objects."""
    enrolments: int
    """How many devices enrol and register by the protocol; the rest are registered before it begins."""
    storm_s: float
    """Virtual seconds in which faults strike; afterwards the world heals and must make progress."""
    plan: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] | None = None
    """The plan of further runs, where it is another one."""
    rates: dict[str, float] = field(default_factory=dict)
    focus: tuple[str, str] = ("", "")
    """(fault, phase) that is made likely."""
    workers: int = 0
    lost_workers: int = 0
    """How many of those never come back once they have died."""
    http: bool = False
    """Whether devices and workers reach the replicas by the real ASGI application."""
    strangers: int = 0
    """How many devices have another learner than the plans ask for."""
    idle_worker: bool = False
    """Whether the last worker lacks the data that the plans ask for."""
    alike: bool = False
    """Whether every lease of a round trains to the very same bytes."""

    real_crypto: bool = False
    """Whether secure rounds have real keys, masks and signatures."""

    only_lie: Literal["", "polynomial", "canary"] = ""
    """The only lie in secure rounds, where there is one alone: a dealer's that can be proven, shares of another secret,
    or a vector with which no sum is possible, which cannot."""

    set_back: bool = False
    """Whether the coordinator's folder is set back at the end, to a copy from the storm or from before."""

    short_updates: bool = False
    """Whether updates are rows beside their events, as short ones are, and not blobs."""

    copied: bool = False
    """Whether liars send the bytes of an update while its device's request is under way."""

    signed: bool = False
    """Whether some devices take part in secure rounds only where somebody has signed a model of the run."""

    flower: bool = False
    """Whether a Flower run goes on beside the runs."""
    leavers: int = 0
    """How many devices leave the coordinator during the storm, and come back as new ones."""
    control: Literal["", "set-back", "twins"] = ""
    """A positive control: devices are set back to older memories of secure rounds, or run twice, with copies of one
    memory. Then the checks must find a device that signs twice."""

    @property
    def secure(self) -> bool:
        """Whether its rounds with devices are secure."""
        return "secure" in self.plan

    @property
    def private(self) -> bool:
        """Whether its runs have noise."""
        return "privacy" in self.plan

    @property
    def datacenter(self) -> bool:
        """Whether a run of it may go to the datacenter."""
        return any("datacenter" in plan for plan in (self.plan, self.second or {}))

    @classmethod
    def of(cls, seed: int) -> Shape:
        """The shape of this seed's schedule."""
        chance = Chance(seed)
        size = chance.unit("size")
        if size < 0.90:
            devices = 3 + chance.below("devices", 5)
        elif size < 0.985:
            devices = 8 + chance.below("devices", 6)
        elif size < 0.999:
            devices = 15 + chance.below("devices", 25)
        else:
            devices = 60 + chance.below("devices", 241)
        rare = RARE.get(seed % EACH, "")
        devices = min(devices, 7) if rare else devices
        blobs: Literal["memory", "files"] = "files" if rare in ("files", "flips") else "memory"
        store: Literal["memory", "sqlite", "sqlite-file"] = "memory"
        if rare == "sqlite":
            store = "sqlite-file" if seed // EACH % 2 else "sqlite"
        replicas = chance.pick("replicas", (1, 1, 1, 2, 2, 3)) if blobs == "memory" and store != "sqlite" else 1
        goal = max(1, round(devices * chance.between("goal", 0.3, 0.7)))
        select = min(devices, goal + chance.below("spare", 3))
        focus = (chance.pick("focus", FLEET_FAULTS), chance.pick("focus-phase", FLEET_PHASES))
        plan, rates = plan_of(chance, goal, select, replicas), _rates(chance, focus[1], FLEET_FAULTS)
        dead = chance.below("dead", devices - goal + 1) if chance.unit("any-dead") < 0.3 else 0
        useless = chance.unit("useless") if devices - dead - goal >= 2 else 1.0  # a quorum stays beside them
        if useless < USELESS:
            plan["cohort"]["min_examples"] = FEW_EXAMPLES
        shape = cls(
            seed=seed,
            devices=devices,
            dead=dead,
            strangers=int(USELESS <= useless < 2 * USELESS),
            liars=chance.pick("liars", (0, 0, 0, 1, 1, 2)),
            replicas=replicas,
            lost_replicas=chance.below("lost", replicas),
            store=store,
            blobs=blobs,
            two_runs=chance.unit("two-runs") < (0.25 if focus[0] in OF_WORK else 0.1),
            wire=chance.unit("wire") < 0.15,
            enrolments=chance.pick("enrolments", (0, 0, 1, 2)),
            http=rare == "http",
            flower=rare == "flower",
            short_updates=blobs == "memory" and chance.unit("short updates") < 0.5,
            leavers=int(bool(rates) and chance.unit("leaves") < LEAVES),
            storm_s=chance.between("storm", 6.0, 60.0 if size < 0.9 else 40.0),
            plan=plan,
            second={**plan, "cohort": {**plan["cohort"], "min_examples": 1}} if useless < USELESS else None,
            rates=rates,
            focus=focus,
        )
        if store != "memory":
            shape = replace(shape, storm_s=min(shape.storm_s, SQL_STORM_S), two_runs=False)
        if focus[0] == "device-old-record" and rates:
            rates["device-crash"] = max(0.05, rates.get("device-crash", 0.0))  # else it has no occasion
        if shape.http and rates:
            shape.rates.update(corrupt=0.1, truncate=0.1)
        if seed % BUFFERED[0] in BUFFERED[1] and not rare:
            return _buffered(shape, chance)
        if rare == "liar":
            return _with_a_proven_liar(shape)
        if rare == "copied":
            return _with_copies(shape)
        if chance.unit("datacenter") < DATACENTER:
            both = chance.unit("both") < SECURE_CENTER and not shape.http
            shape = _in_a_datacenter(made_secure(shape) if both else shape, chance)
        elif (secure := chance.unit("secure")) < (0.4 if rare == "flips" else SECURE) and not shape.http:
            shape = made_secure(shape, groups=chance.pick("groups", GROUPS) if 0 <= SECURE - secure < GROUPED else 1)
            shape = replace(shape, signed=shape.secure and chance.unit("signed runs") < SIGNED)
        shape = flipped(shape) if rare == "flips" else shape
        often = PRIVATE_FLIPS if rare == "flips" else PRIVATE_SECURE if shape.secure else PRIVATE
        return made_private(shape) if chance.unit("noise in rounds") < often else shape


def _buffered(shape: Shape, chance: Chance) -> Shape:
    """The shape with buffered rounds, and devices that do not lie."""
    alive = shape.devices - shape.dead - shape.strangers - shape.leavers
    plan = plans.buffered(chance, shape.plan, alive - ("min_examples" in shape.plan["cohort"]))
    return replace(shape, plan=plan, second=None, two_runs=False, liars=0)


def flipped(shape: Shape) -> Shape:
    """The shape with bits that flip in files, in more rounds, half of them with a server optimizer that has a state;
    other faults are rarer."""
    kept = _PROLONGED.get(shape.focus[1], {})
    rates = {name: rate if name in kept else rate / 3 for name, rate in shape.rates.items()}
    plan = {**shape.plan, "finish": {**shape.plan["finish"], "rounds": 6}}
    if not shape.secure and shape.seed // EACH % 2:
        plan["aggregation"] = {**plan["aggregation"], **ADAM}
    return replace(
        shape,
        blobs="files",
        replicas=1,
        lost_replicas=0,
        set_back=False,
        plan=plan,
        storm_s=max(shape.storm_s, 30.0),
        rates=rates | {"bit-flip": FAULTS["bit-flip"].rate},
        focus=("bit-flip", shape.focus[1]),
    )


def made_private(shape: Shape) -> Shape:
    """The shape with noise in its rounds, where no plan has a datacenter."""
    if shape.datacenter or "buffered" in shape.plan or shape.private:
        return shape
    chance = Chance(shape.seed)
    shape = replace(shape, plan=plans.private(chance, shape.plan), second=None)
    one_folder = (shape.store, shape.blobs, shape.replicas) == ("memory", "memory", 1)
    if shape.secure or shape.flower or shape.http or not one_folder or chance.unit("set back") >= SET_BACK:
        return shape
    shape.rates.pop("certificate-expires", None)
    return replace(shape, set_back=True, enrolments=0, leavers=0)


def _with_copies(shape: Shape) -> Shape:
    """The shape with a liar that sends the bytes of others' updates while their requests stand still."""
    rates = {name: rate / 3 for name, rate in shape.rates.items()} | {"lie": 0.9, "interleave": 0.4}
    return replace(
        shape,
        liars=1,
        dead=0,
        copied=True,
        storm_s=max(30.0, shape.storm_s),
        rates=rates,
        focus=("interleave", "collecting"),
    )


def _with_a_proven_liar(shape: Shape) -> Shape:
    """The shape with secure rounds in which one device deals shares of another secret, and of which so many go on that
    this is proven."""
    shape = made_secure(shape, lies=True)
    return replace(
        shape,
        liars=1,
        dead=0,
        only_lie="polynomial",
        plan={**shape.plan, "finish": {"rounds": 6}},
        rates={name: rate / 3 for name, rate in shape.rates.items()} | {"secure-lie": 0.8},
        focus=("secure-lie", "sharing"),
    )


def made_secure(shape: Shape, *, lies: bool = False, groups: int = 1) -> Shape:
    """The shape with secure rounds, where its fleet is small enough for them and no plan has a datacenter. ``lies``: it
    has a device that lies in them, as some others have; ``groups``: into how many its devices are divided."""
    if shape.devices > LARGEST or shape.datacenter or shape.private or "buffered" in shape.plan:
        return shape
    chance = Chance(shape.seed)
    faults = (*FLEET_FAULTS, *SECURE_FAULTS)
    fault = chance.pick("secure focus", tuple(name for name in faults if name != "op-unbar"))
    if fault == "secure-lie" and chance.unit("unbars") < UNBARS:
        fault = "op-unbar"
    if groups > 1:  # rounds must get to where one of them falls
        fault = chance.pick("focus of groups", OF_GROUPS)
    phases = SECURE_PHASES if fault in SECURE_FAULTS else (*FLEET_PHASES, *SECURE_PHASES)
    focus, lies = (fault, chance.pick("secure focus-phase", phases)), lies or fault in ("secure-lie", "op-unbar")
    fast = groups == 1 and chance.unit("fast") < FAST
    fewest = SMALLEST_RING + 1 if fast else SMALLEST_FLEET
    if groups > 1:
        fewest = SMALLEST * groups + chance.below("spare of groups", 4)
    devices = max(shape.devices, fewest + lies)
    cohort = {**shape.plan["cohort"], "min_examples": 1}
    plan = secured(chance, {**shape.plan, "cohort": cohort}, devices - lies, fast=fast, groups=groups)
    spare = devices - int(plan["cohort"]["goal"])
    liars = min(max(shape.liars, int(lies)), spare, 1)
    rates = _rates(chance, focus[1], faults) if shape.rates else {}
    if rates and focus[1] in SECURE_PHASES:  # rounds must get there
        rates = {name: rate for name, rate in rates.items() if not name.startswith("op-") or name == fault}
        rates = {name: min(rate, FAULTS[name].rate) / 2 for name, rate in rates.items()} | _PROLONGED[focus[1]]
        rates[fault] = max(FAULTS[fault].rate, rates.get(fault, 0.0))
        rates |= {"secure-lie": FAULTS["secure-lie"].rate} if lies else {}
    if rates and groups > 1:
        rates = {name: rate if name == fault else rate / 5 for name, rate in rates.items()}
        rates["secure-vanish"] = VANISH_FROM_GROUPS
    return replace(
        shape,
        devices=devices,
        plan=plan,
        second=None,
        dead=min(shape.dead, spare - liars),
        strangers=0,
        liars=liars,
        focus=focus,
        rates=rates,
        storm_s=shape.storm_s * (3 if groups == 1 else 2),
        only_lie="canary" if groups > 1 and chance.unit("only canary") < 0.6 else "",
        real_crypto=chance.unit("real crypto") < REAL_CRYPTO,
        http=False,
    )


def _in_a_datacenter(shape: Shape, chance: Chance) -> Shape:
    """Returns the shape with workers, a plan for them, and faults that make devices vanish."""
    of_center = chance.unit("focus of") < 0.45
    faults = CENTER_FOCUS if of_center else FLEET_FOCUS
    phases = (*PHASES, "committing") if of_center else ("leasing", "training")
    focus = (chance.pick("center-focus", faults), chance.pick("center-phase", phases))
    rates = _rates(chance, focus[1], {*FLEET_FAULTS, *CENTER_FAULTS, *(SECURE_FAULTS if shape.secure else ())})
    if rates:
        rates["fleet-away"] = max(0.7, rates.get("fleet-away", 0.0))
        rates |= {"op-stop": 0.2} if "op-stop" in rates else {}
    shape = replace(
        shape,
        two_runs=chance.unit("center-two-runs") < 0.3,
        storm_s=chance.between("center-storm", 20.0, 60.0) * (3 if shape.secure else 1),
        plan=with_datacenter(chance, shape.plan),
        rates=rates,
        focus=focus,
        workers=chance.pick("workers", (0, 1, 1, 1, 2, 2, 2, 3)),
        alike=chance.unit("alike") < 0.4,
    )
    if shape.workers > 1 and chance.unit("idle-worker") < 0.3:
        shape = replace(shape, idle_worker=True)
    if chance.unit("any-lost") < 0.4:
        shape = replace(shape, lost_workers=chance.below("lost-workers", shape.workers + 1))
    return _side_by_side(shape) if focus[0] in OF_WORK or focus[0].startswith("blob-") else shape


def _side_by_side(shape: Shape) -> Shape:
    """For faults that strike during training: one run is always in the datacenter, the other never, unless it should
    wait for a worker that the first one occupies. No operator disturbs them for long.
    """
    fault, phase = shape.focus
    center = {**shape.plan, "datacenter": {**shape.plan["datacenter"], "every": 1, "wait_s": 15.0, "lease_s": 4.0}}
    fleet = {name: section for name, section in shape.plan.items() if name != "datacenter"}
    plan, second = (fleet, center) if phase in FLEET_PHASES else (center, fleet)
    if phase == "leasing" and fault not in OF_DEVICES:
        second = center
    disturbing = ("fleet-away", "op-stop", "op-revoke", *OF_WORKERS, *(("op-pause",) if phase != "idle" else ()))
    rates = {name: rate for name, rate in shape.rates.items() if name not in disturbing}
    return replace(
        shape,
        dead=0,
        two_runs=True,
        storm_s=60.0,
        plan={**plan, "finish": {"rounds": 12}},
        second={**second, "finish": {"rounds": 12}},
        workers=1 if phase == "leasing" else max(1, shape.workers),
        lost_workers=0,
        idle_worker=shape.idle_worker and phase != "leasing",
        rates=rates | ({"lazy": 0.8} if rates and phase == "committing" else {}),
    )


OF_GROUPS = ("secure-lie", "secure-lie", "forged-list", "crash", "device-crash", "lose-request")
"""Faults on which schedules of groups focus."""
VANISH_FROM_GROUPS = 0.03
"""How often devices vanish there: a quarter of them in one exchange would cost all groups."""
OF_DEVICES = (
    "device-slow",
    "device-cannot",
    "device-invalid",
    "device-partial",
    "device-old-record",
    "corrupt",
    "truncate",
)
OF_WORKERS = ("worker-slow", "worker-cannot", "worker-wrong")
OF_WORK = (*OF_DEVICES, *OF_WORKERS, "worker-silent")
"""Faults that strike where a device or a worker works: in one phase of a round, hence hardly while its own run is in
another.
"""
CENTER_FOCUS = (*sorted(CENTER_FAULTS), *OF_WORKERS * 3)
FLEET_FOCUS = (*FLEET_FAULTS, *(*OF_DEVICES, "blob-full", "blob-torn", "blob-lost-ack") * 2)
"""Faults of schedules with a datacenter. Those that rarely meet the focused phase are in the list more often."""
_AWAY = {"fleet-away": 0.9}
_GONE = {"secure-vanish": 0.06, "lose-request": 0.03}
_PROLONGED = {
    "committing": {"lazy": 0.4, "delay": 0.15},
    "idle": {"op-pause": 0.9, "op-resume": 0.3},
    "leasing": {**_AWAY, "worker-crash": 0.15},
    "training": {**_AWAY, "worker-silent": 0.3},
    "sharing": _GONE,
    "masking": _GONE,
    "agreeing": _GONE,
    "unmasking": {**_GONE, "lazy": 0.4},
}
"""Faults that extend a phase that is short by nature."""


def _rates(chance: Chance, phase: str, faults: Container[str]) -> dict[str, float]:
    """Returns the rate of each fault: none in a calm world, otherwise some of the faults with varied rates, and those
    that extend the focused ``phase``.
    """
    weather = chance.unit("weather")
    if weather < 0.04:
        return {}
    strength = 0.4 if weather < 0.4 else 1.0 if weather < 0.8 else 2.5
    some = {name: fault.rate for name, fault in FAULTS.items() if name in faults and chance.unit(f"has {name}") < 0.6}
    if chance.unit("short certificates") >= SHORT_CERTIFICATES:
        some.pop("certificate-expires", None)
    return {name: min(0.9, rate * strength) for name, rate in some.items()} | _PROLONGED.get(phase, {})
