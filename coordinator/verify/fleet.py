"""Holds what a log says of devices and workers against their own rows."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.store.port import DeviceRow, Reader, WorkerRow
from coordinator.verify.kinds import fields_of_wrong_kind, shown
from coordinator.verify.replay import Replay
from coordinator.verify.violation import RunViolation

_PAGE = 5000


def devices_of(reader: Reader, replay: Replay) -> dict[str, DeviceRow]:
    """The rows of the devices that the log names."""
    named = {device for _, device, _ in replay.examples}
    found: dict[str, DeviceRow] = {}
    after = ""
    while page := reader.devices(_PAGE, after):
        found.update((row.device, row) for row in page if row.device in named)
        after = page[-1].device
    return found


def against_fleet(reader: Reader, replay: Replay, devices: dict[str, DeviceRow]) -> Iterator[RunViolation]:
    """Each device of a cohort is registered, with no more examples than its cap; each worker of a lease is registered;
    and their rows hold values of their columns' kinds."""
    missing: set[str] = set()
    for number, device, examples in replay.examples:
        row = devices.get(device)
        if row is None and device not in missing:
            missing.add(device)
            yield RunViolation("fleet", number, f"{device} was selected, and is not registered")
        elif row is not None and examples > row.examples_cap:
            cap = f"its registration allows {row.examples_cap}"
            yield RunViolation("fleet", number, f"{device} counts with {examples} examples, and {cap}")
    selected = {device: number for number, device, _ in reversed(replay.examples)}
    for device, row in devices.items():
        yield from _kinds("devices", row, selected[device])
    workers = {row.worker: row for row in reader.workers()}
    leased = {worker: number for number, worker in reversed(replay.leases)}
    for worker in workers.keys() & leased.keys():
        yield from _kinds("workers", workers[worker], leased[worker])
    for number, worker in replay.leases:
        if worker not in workers:
            yield RunViolation("fleet", number, f"worker {worker} had a lease, and is not registered")


def _kinds(table: str, row: DeviceRow | WorkerRow, number: int) -> Iterator[RunViolation]:
    """The fields that hold a value of another kind. ``number``: the first round that needs the row."""
    for name, value in fields_of_wrong_kind(row):
        yield RunViolation("fleet", number, f"{table}.{name} holds {shown(value)}")
