"""What happens to the credentials of devices and workers in a storm: keys are revoked, lists travel, clocks are wrong.

A new list reaches each replica some time after it was signed, and perhaps an older one once more after it, as from a
cache that is behind. The times are drawn before the storm begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from client_sdk.credentials.certificate import RevocationList
from tests.explorer.device import CLOCKS_OFF_S, ExplorerDevice
from tests.explorer.leaving import try_again
from tests.explorer.replica import Replica
from tests.explorer.worker import ExplorerWorker
from tests.explorer.world import World

LIST_S = (0.05, 15.0)
"""Seconds until a replica gets a new list."""
OLDER = 0.5
"""The part of the lists after which the replica is handed an older one."""
TO_ONE = 0.5
"""The part of the lists that one of several replicas is handed."""
TIMES = 3
"""How often each of these faults may strike."""
READ_S = 4.0
"""Seconds after a replica has a list in which the others may not have read it."""


class Credentials:
    """``plan_storm`` schedules when the faults may strike."""

    def __init__(
        self,
        world: World,
        replicas: Sequence[Replica],
        devices: Sequence[ExplorerDevice],
        workers: Sequence[ExplorerWorker],
    ) -> None:
        self._world = world
        self._replicas = replicas
        self._devices = devices
        self._workers = workers
        shape = world.shape
        self._spare = shape.devices - shape.dead - shape.strangers - round(shape.plan["cohort"]["goal"]) - 1
        """How many devices may be revoked: the others can make a round, also where one has too few examples."""

    def plan_storm(self) -> None:
        world = self._world
        for fault, strike in (("revoked", self._revoke), ("clock-off", self._clock_off)):
            if fault in world.possible:
                for _ in range(TIMES):
                    world.agenda.after(world.chance.between(f"{fault}-at", 0.0, world.shape.storm_s), strike)

    def _revoke(self) -> None:
        world = self._world
        if not world.strikes("revoked", "authority"):
            return
        mortal = self._devices[: world.shape.dead]  # they are lost in any case
        spare: list[ExplorerDevice | ExplorerWorker] = [
            *mortal,
            *(self._devices[len(mortal) :] if self._spare > 0 else ()),
            *self._workers,
        ]
        left = [one for one in spare if one.holder.key_id not in world.authority.revoked]
        if not left:
            return
        one = world.chance.pick("revoked", left)
        if one not in mortal and isinstance(one, ExplorerDevice):
            self._spare -= 1
        before = world.authority.newest_list
        found = world.authority.revoke(one.holder)
        world.log(f"the authority revokes {one.holder.id}, by list {found.counter}")
        record = one.storage.load() if isinstance(one, ExplorerDevice) else None
        if record is not None and record.certificate:
            try_again(world, one.sender, record.certificate)
        told = self._replicas
        if len(told) > 1 and world.chance.unit("list to one") < TO_ONE:
            told = [world.chance.pick("list to", told)]  # the others find it in the store
        for replica in told:
            after_s = world.chance.between("list-s", *LIST_S)
            if isinstance(one, ExplorerDevice):
                for _ in range(3):  # one may reach a replica that has not read the list
                    world.agenda.after(after_s + world.chance.between("asks-at", 0.0, READ_S), one.asks_for_work)
            world.agenda.after(after_s, replica.take_list, found)
            if world.chance.unit("older list") < OLDER:
                world.agenda.after(after_s + world.chance.between("older-s", 0.05, 5.0), self._hand, replica, before)

    def _hand(self, replica: Replica, found: RevocationList) -> None:
        """A list that is not the newest any more reaches the replica."""
        if replica.up:
            replica.take_list(found)

    def _clock_off(self) -> None:
        world = self._world
        if not world.strikes("clock-off", "clock"):
            return
        everyone: list[ExplorerDevice | ExplorerWorker] = [*self._devices, *self._workers]
        one = world.chance.pick("whose clock", everyone)
        one.sender.clock_off_s = world.chance.pick("clock-off-s", CLOCKS_OFF_S) * world.chance.pick("sign", (1.0, -1.0))
        world.log(f"the clock of {one.holder.id} is wrong by {one.sender.clock_off_s:g} s")
