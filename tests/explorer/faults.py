"""Every fault of the explorer: its name, how often it strikes where it can, and its description.

``Crash`` and ``Broken`` end a process and a schedule. They are BaseExceptions, so that no ``except Exception`` of the
product can catch them.

The faults are one table. A new fault is a line here and one ``world.strikes(name, where)`` at the place where it
happens; coverage, the bias towards what is rare, the trace and the shrinking then include it (``docs/faults.md``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    family: str
    """network, device, authority, coordinator, store, blobs, clock, operator, secure, datacenter or disk."""
    rate: float
    """Probability at each opportunity in a schedule of average weather."""
    description: str
    """The description, for people."""


FAULTS: dict[str, Fault] = {
    "lose-request": Fault("network", 0.03, "a request never arrives"),
    "lose-answer": Fault("network", 0.03, "the request is served, its answer never arrives"),
    "duplicate": Fault("network", 0.04, "a request is sent twice, each time signed afresh"),
    "redeliver-late": Fault("network", 0.02, "a request is sent again minutes later, signed afresh"),
    "replayed": Fault("network", 0.04, "a signed request is delivered again as it was, soon or minutes later"),
    "delay": Fault("network", 0.04, "a request takes many seconds, and others overtake it"),
    "corrupt": Fault("network", 0.01, "some bytes of a body change on the way"),
    "truncate": Fault("network", 0.01, "a body ends before its announced length"),
    "device-crash": Fault("device", 0.012, "the device's process dies, and starts again from its record"),
    "device-old-record": Fault("device", 0.3, "the device comes back with an older copy of its record"),
    "device-slow": Fault("device", 0.06, "training takes longer than the round has time"),
    "device-cannot": Fault("device", 0.03, "training fails on the device"),
    "device-invalid": Fault("device", 0.03, "the device makes an update that is not valid"),
    "device-partial": Fault("device", 0.08, "the device's time budget ends before its task does"),
    "lie": Fault("device", 0.5, "a dishonest device sends what it should not"),
    "clock-off": Fault("device", 0.3, "the clock of a device or a worker is wrong, by seconds or by a day"),
    "certificate-expires": Fault("authority", 0.3, "the authority is silent until a certificate has expired"),
    "revoked": Fault("authority", 0.25, "the authority revokes the key of a device or a worker"),
    "crash": Fault("coordinator", 0.006, "the coordinator's process dies between two effects"),
    "crash-before-answer": Fault("coordinator", 0.006, "the coordinator dies with the answer unsent"),
    "pause": Fault("coordinator", 0.005, "the coordinator's process stands still while the world goes on"),
    "interleave": Fault("coordinator", 0.02, "one thread of the coordinator stands still while others go on"),
    "queued": Fault("coordinator", 0.05, "a proposal waits for its turn, and another thread commits it with its own"),
    "lazy": Fault("coordinator", 0.05, "a task waits seconds until a thread is free for it"),
    "store-locked": Fault("store", 0.008, "a transaction cannot begin: the database is locked"),
    "store-full": Fault("store", 0.008, "a transaction cannot commit: the disk is full"),
    "store-torn": Fault("store", 0.004, "a statement in the middle of a transaction fails"),
    "store-lost-ack": Fault("store", 0.008, "a transaction commits, and its caller gets an error"),
    "store-read": Fault("store", 0.001, "a read fails"),
    "blob-full": Fault("blobs", 0.01, "a blob cannot be written: the disk is full"),
    "blob-torn": Fault("blobs", 0.005, "a blob is written in part, and the disk reports an error"),
    "blob-lost-ack": Fault("blobs", 0.008, "a blob is durable, and its writer gets an error"),
    "bit-flip": Fault("disk", 0.1, "a bit of a stored file flips; the right bytes come back later"),
    "clock-ahead": Fault("clock", 0.5, "a coordinator's clock jumps ahead"),
    "clock-back": Fault("clock", 0.5, "a coordinator's clock falls back"),
    "op-pause": Fault("operator", 0.5, "the operator pauses the run"),
    "op-resume": Fault("operator", 0.8, "the operator resumes the run"),
    "op-stop": Fault("operator", 0.06, "the operator stops the run"),
    "op-create": Fault("operator", 0.1, "the operator starts another run"),
    "op-score": Fault("operator", 0.5, "an evaluator reports scores"),
    "op-revoke": Fault("datacenter", 0.15, "the operator revokes a worker"),
    "secure-vanish": Fault("secure", 0.06, "a device vanishes in the middle of an exchange, perhaps for long"),
    "secure-lie": Fault("secure", 0.4, "a dishonest device deals, masks, signs, reveals or accuses falsely"),
    "op-unbar": Fault("secure", 0.4, "the owner lifts the bar of a device, or of one that is not barred"),
    "forged-list": Fault("secure", 0.02, "the coordinator shows one device another list of survivors"),
    "fleet-away": Fault("datacenter", 0.6, "most devices vanish together, for a while"),
    "worker-crash": Fault("datacenter", 0.03, "the worker's process dies, and starts again as another instance"),
    "worker-silent": Fault("datacenter", 0.06, "the worker stands still, and its heartbeat comes late"),
    "worker-slow": Fault("datacenter", 0.03, "training takes longer than the round has time"),
    "worker-cannot": Fault("datacenter", 0.03, "training fails in the datacenter"),
    "worker-wrong": Fault("datacenter", 0.03, "the result is no checkpoint of the run's model"),
    "worker-twin": Fault("datacenter", 0.5, "a second process works with the same worker's certificate"),
    "worker-lie": Fault("datacenter", 0.6, "a worker sends messages under a fence that is old, or not granted yet"),
}

SECURE_FAULTS = tuple(sorted(name for name, fault in FAULTS.items() if fault.family == "secure"))
"""Those of secure rounds alone."""
CENTER_FAULTS = tuple(sorted(name for name, fault in FAULTS.items() if fault.family == "datacenter"))
"""Those of schedules with a datacenter alone."""
DISK_FAULTS = ("bit-flip",)
"""Those of schedules with files, in a fixed share of them."""
FLEET_FAULTS = tuple(sorted(FAULTS.keys() - {*SECURE_FAULTS, *CENTER_FAULTS, *DISK_FAULTS}))
"""Those of all rounds with devices."""


class Crash(BaseException):
    """The process of a replica is gone, at this place."""


class Broken(BaseException):
    """An invariant does not hold. ``invariant`` is its name in ``invariants``."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what
