"""Checks who is served: whoever has signed the request, registered, certified, in its time, and not revoked.

Each check compares a request that a replica has let in with the durable rows, with the clock of the replica, and with
the lists that have reached it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.request_signature import AHEAD_S
from client_sdk.protocol.devices import Registered
from client_sdk.protocol.workers import WorkerRegistered
from coordinator.requests.entry import Caller
from coordinator.store.port import DeviceRow, WorkerRow
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.request import SentRequest
from tests.explorer.world import World

CACHED_S = 7.0
"""Seconds for which a replica may still serve by a row that was changed: five, and what a request takes."""


class ServingProcess(Protocol):
    """The process that has let a request in."""

    name: str
    world: World
    durable: Durable
    list_counter: int
    went_on_at: float

    def now(self) -> float: ...


class Admitted:
    """The signed requests that one process has let in since it started."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """The process may have forgotten nonces: it has started, or its clock has jumped."""
        self._seen.clear()

    def add(self, process: ServingProcess, request: SentRequest, at: float) -> None:
        """A request was let in that arrived at ``at``, by the clock of the process."""
        signature = request.signature
        if not signature.created - AHEAD_S <= at <= signature.expires:
            late_s = at - signature.created
            raise Broken("permission", f"{process.name} served {request.event} of {request.holder.id} {late_s} s late")
        name = (signature.key_id, signature.nonce)
        if name in self._seen:
            raise Broken("replay", f"{process.name} took the same signed {request.event} of {request.holder.id} twice")
        self._seen.add(name)


def served(process: ServingProcess, request: SentRequest, caller: Caller) -> None:
    """The caller is who has signed, and has the rights that it has now."""
    if not isinstance(caller, DeviceRow | WorkerRow):
        return
    name = caller.device if isinstance(caller, DeviceRow) else caller.worker
    holder = request.holder
    if name != holder.id or (holder.holder == "worker") is isinstance(caller, DeviceRow):
        raise Broken("permission", f"{name} was served with a signature of {holder.id}")
    row = is_good(process, request, process.now(), caller.certificate)
    if isinstance(caller, DeviceRow) and isinstance(row, DeviceRow) and row.examples_cap != caller.examples_cap:
        raise Broken("permission", f"{name} was served with a cap of {caller.examples_cap} examples")


def is_good(
    process: ServingProcess, request: SentRequest, now: float, certificate: str | None = None
) -> DeviceRow | WorkerRow:
    """Who has signed this request is registered, and its certificate is valid at ``now`` by the clock of the process,
    which has seen no list with its key. Returns its row. ``certificate``: of the row by which it was served; None: the
    registered one."""
    world, holder = process.world, request.holder
    store = process.durable.store
    row = store.device(holder.id) if holder.holder == "device" else store.worker(holder.id)
    if row is None or (row.key_id != holder.key_id and holder.id not in world.revoked_here):
        raise Broken("permission", f"{holder.id} was served, and its key is not registered")
    certificate = certificate or row.certificate
    found = _parsed(certificate) if certificate else None  # None: the device has left just now
    if found is not None and not found.not_before <= now < found.not_after:
        valid = f"from {found.not_before} to {found.not_after}"
        raise Broken("permission", f"{holder.id} was served at {now}, and is certified {valid}")
    counter = world.authority.revoked.get(holder.key_id)
    if counter is not None and counter <= process.list_counter:
        raise Broken("permission", f"{holder.id} was served by {process.name}, which has a list with its key")
    if _is_long_revoked(world, holder.key_id, process.went_on_at):
        raise Broken("permission", f"{holder.id} was served by {process.name}, and a list with its key is stored")
    revoked_at = world.revoked_here.get(holder.id)
    if revoked_at is not None and world.agenda.now > max(revoked_at, process.went_on_at) + CACHED_S:
        raise Broken("permission", f"{holder.id} was served, and an operator has revoked it, or it has left")
    return row


def _is_long_revoked(world: World, key_id: str, went_on_at: float = 0.0) -> bool:
    """Whether a list with this key has been stored for so long that every replica has it, also one of which a call
    stood still until ``went_on_at``."""
    counter = world.authority.revoked.get(key_id)
    stored = [at for listed, at in world.listed_at.items() if counter is not None and counter <= listed]
    return bool(stored) and world.agenda.now > max(min(stored), went_on_at) + CACHED_S


def registered(world: World, durable: Durable, request: SentRequest, answer: Registered | WorkerRegistered) -> None:
    """Who was told that it is registered is so: with its key, and with this certificate or a newer one."""
    store, message = durable.store, request.send.message  # type: ignore[union-attr]
    name = answer.device if isinstance(answer, Registered) else answer.worker
    row = store.device(name) if isinstance(answer, Registered) else store.worker(name)
    if row is not None and row.key_id != request.holder.key_id:
        raise Broken("permission", f"{name} is registered by a request that {request.holder.id} has signed")
    if _is_long_revoked(world, request.holder.key_id):
        raise Broken("permission", f"{name} was registered, and a list with its key is stored")
    if isinstance(row, DeviceRow) and row.left_at is not None:
        raise Broken("permission", f"{name} has left, and is registered again under its id")
    if row is None or is_older(row.certificate, message.certificate):  # type: ignore[union-attr]
        raise Broken("ack-durable", f"{name} got an answer that it is registered, the store has {row}")
    if isinstance(answer, Registered) and world.caps.setdefault(name, answer.examples_cap) != answer.examples_cap:
        raise Broken(
            "permission", f"{name} had a cap of {world.caps[name]}, and registers again with another: {answer}"
        )
    if isinstance(answer, Registered) and answer.examples_cap != row.examples_cap:  # type: ignore[union-attr]
        raise Broken("ack-durable", f"{name} was told a cap of {answer.examples_cap}; it is another one: {row}")


def forgotten(durable: Durable, device: str, *, secure: bool) -> None:
    """Of a device that was told that it has left, nothing is known but its id, its times and what it has counted in,
    and it waits for nothing. ``secure``: the claims of secure rounds last longer."""
    row, store = durable.store.device(device), durable.store
    if row is None or row.left_at is None or row.key_id is not None or row.certificate or row.label:
        raise Broken("ack-durable", f"{device} got an answer that it has left; the store has {row}")
    if not secure and store.claim(device) is not None:
        raise Broken("claims", f"{device} has left, and the round that it worked for waits for it")
    waits = [one.device for one in store.waiting(float("-inf"))]
    if device in waits or row.node is not None:
        raise Broken("draw", f"{device} has left, and waits for work")


@lru_cache(maxsize=1024)
def _parsed(certificate: str) -> Certificate:
    return Certificate.parse(bytes.fromhex(certificate))


def is_older(certificate: str, other: str) -> bool:
    """Whether the authority issued ``certificate`` before ``other``."""
    one, two = _parsed(certificate), _parsed(other)
    return (one.not_before, one.not_after) < (two.not_before, two.not_after)
