"""The world of a run with secure rounds: devices that have trained go through the five exchanges, in turns.

::

    collecting   a device that has trained advertises; the roster closes, and those who train longer come too late
    sharing, masking, agreeing, unmasking
                 whenever the round has moved on, each device gets a turn, ``network_s`` later; it sends what is due,
                 rests, or vanishes
    committing   the sum is opened, and the next round opens

Devices really mask, or only quantize, by their primitives; the times, the events and the checkpoints are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_sdk.credentials.certificate import certify, sign_revocations
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.device.actions import (
    Action,
    FetchList,
    ListFetched,
    Load,
    Save,
    Send,
    Sleep,
    Spend,
    Trained,
    perform_stored,
)
from client_sdk.device.contribution import ClearContribution, private_seed
from client_sdk.device.record import AuthorityRef, Record
from client_sdk.device.session import Session, participate
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import DeviceKey, Entropy
from client_sdk.protocol.devices import Assignment, CheckIn, Registered, Task
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Keep, Primitives
from client_sdk.secagg.agreement import derive
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.quantize import ROUNDING_BYTES
from client_sdk.tensors import Layout, canonical_digest, split
from coordinator.engine.state import RunState
from coordinator.runtime.identities import PinnedAuthority
from coordinator.store.port import DeviceRow
from simulation.engines.port import CannotTrain, Job
from simulation.virtual.device import LATER, URL, Device
from simulation.virtual.parts import Unfinished
from simulation.virtual.world import SimulatedWorld

# ------------------------------------------------------------ authority
# The authority of a simulation, and what each device owns for secure rounds: keys, a certificate, a source of secrets.
#
# All of it follows from the simulation's seed by HKDF-SHA256, so that a simulation that is repeated sends the same
# bytes. None of it is ever a real device's: a ``Client`` takes no entropy but the operating system's. Virtual time
# begins at ``EPOCH`` where rounds are secure, because headers name times and devices round their values by the header.


EPOCH = 1_767_225_600
"""The first second of 2026, in Unix seconds."""
_END = EPOCH + 2**36
"""Two thousand years later: nothing expires in a simulation."""
_DOMAIN = b"quorate simulation "


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedIdentity:
    """What one device owns."""

    key: DeviceKey
    certificate: bytes
    secret: bytes
    """``Record.secret``."""

    def record(self, authority: TrustedAuthority, url: str, registered: Registered) -> Record:
        """The record of the device, certified and registered at the coordinator of this URL."""
        return Record(
            key_seed=self.key.seed.hex(),
            authority=AuthorityRef(url=url, digest=authority.digest.hex(), public_key=authority.public_key.hex()),
            certificate=self.certificate.hex(),
            coordinator=url,
            registered=registered,
            secret=self.secret.hex(),
        )


class SimulatedAuthority:
    """``identity`` of each device, ``entropy`` for its attempts, and the one revocation list, with nobody on it."""

    def __init__(self, seed: int) -> None:
        self._secret = seed.to_bytes(max(32, (seed.bit_length() + 7) // 8), "big")
        key = DeviceKey(self._derived("authority"))
        self.trusted = TrustedAuthority(bytes.fromhex(key.public_hex))
        self.revocations = sign_revocations(key, counter=1, issued=EPOCH, next_update=_END, revoked=())
        self._key = key
        self._known: dict[str, SimulatedIdentity] = {}

    @property
    def pinned(self) -> PinnedAuthority:
        """The authority as a coordinator takes it."""
        return PinnedAuthority(self.trusted)

    def identity(self, device: str) -> SimulatedIdentity:
        """The keys of a device: the same in all rounds."""
        found = self._known.get(device)
        if found is None:
            key = DeviceKey(self._derived("device", device))
            public = bytes.fromhex(key.public_hex)
            certificate = certify(
                self._key, id=device, holder="device", public_key=public, not_before=EPOCH, not_after=_END
            )
            found = self._known[device] = SimulatedIdentity(key, certificate.encoded, self.secret(device))
        return found

    def secret(self, device: str) -> bytes:
        """``Record.secret`` of a device."""
        return self._derived("secret", device, length=ROUNDING_BYTES)

    def entropy(self, device: str, round: int) -> Entropy:
        """Where the secrets of a device's attempts in one round come from."""
        return self._reader("attempts", device, round)

    def _reader(self, *what: object) -> Callable[[int], bytes]:
        reads = 0

        def read(count: int) -> bytes:
            nonlocal reads
            reads += 1
            return self._derived(*what, reads, length=count)

        return read

    def _derived(self, *what: object, length: int = 32) -> bytes:
        return derive(self._secret, salt=b"", info=_DOMAIN + "/".join(map(str, what)).encode(), length=length)


# ------------------------------------------------------------ device
# A simulated device in secure rounds: its whole session, with the primitives of its world. Those are the real ones, or
# those that hide nothing (``null_primitives``).
#
# Where an answer is not there yet, the device waits until the world gives it another ``turn``.


class MaskingDevice(Device):
    """After ``contributed`` it takes ``turn``s, until it is ``over``. ``memory``: of secure rounds, before and after
    this one."""

    __slots__ = ("_asked", "_storage", "vanishes_before")

    _world: SecureWorld

    def __init__(
        self,
        world: SecureWorld,
        number: int,
        row: DeviceRow,
        offer: CheckIn,
        memory: Memory,
    ) -> None:
        self._storage = MemoryStorage()
        self._storage.keep(lambda _: memory)
        self._asked: Action | None = None
        self.vanishes_before: Stage | None = None
        """The exchange before which it vanishes, in this round; None: it stays."""
        super().__init__(world, number, row, offer)

    def contributed(self, *, complete: bool) -> None:
        """Its training has ended."""
        contribution = self._world.contribution(self.row.device)
        self._go_on(Trained(contribution.encoded, complete, self._world.now))

    def turn(self) -> None:
        """Asks again for the answer that was not there, or goes on after a rest."""
        asked, self._asked = self._asked, None
        if self.over or asked is None:
            return
        reply = None if isinstance(asked, Sleep) else self._performed(asked)
        if reply is not LATER:
            self._go_on(reply)

    @property
    def memory(self) -> Memory:
        """What it remembers of secure rounds. Nothing of this one is left to be sent."""
        return self._storage.load_secure().marks

    # ------------------------------------------------------------ the session

    def _begun(self) -> Session:
        authority, name = self._world.authority, self.row.device
        return participate(
            authority.identity(name).record(authority.trusted, URL, self._registered),
            coordinator=URL,
            offer=lambda: self.offer,
            rounds=1,
            label=self.row.label,
            entropy=authority.entropy(name, self._world.state.round_number),
            primitives=self._world.primitives,
            at=self._world.now,
        )

    def _performed(self, action: Action) -> Any:
        if isinstance(action, Save | Keep | Spend | Load):
            return perform_stored(self._storage, action, self._world.now)
        if isinstance(action, FetchList):
            return ListFetched(self._world.authority.revocations, self._world.now)
        if isinstance(action, Sleep) and self.assignment is not None:
            self._asked = action
            self._world.rests(self, action.max_s)
            return LATER
        return super()._performed(action)

    def _sent(self, send: Send) -> Any:
        if send.route in (Route.CHECK_IN, Route.STARTED):
            return super()._sent(send)
        if send.method == "PUT" and send.path.get("stage") == self.vanishes_before is not None:
            self.vanish()
            return LATER
        answer = super()._sent(send)
        if answer is LATER:
            self._asked = send
        return answer


# ------------------------------------------------------------ the world


class SecureWorld(SimulatedWorld):
    """The simulated world of a run with secure rounds. ``primitives``: the cryptography of its devices; ``layout``:
    that of an update's flat vector; other arguments: see ``SimulatedWorld``."""

    def __init__(
        self, *places: Any, authority: SimulatedAuthority, primitives: Primitives, layout: Layout, **settings: Any
    ) -> None:
        super().__init__(*places, **settings)
        self.authority = authority
        self.primitives = primitives
        self._layout = layout
        self._memories: dict[int, Memory] = {}
        self._parent = ("", "")
        """Digests of the newest checkpoint that was asked for: of its file, and of its tensors."""
        self._contributed: dict[str, tuple[Assignment, int]] = {}
        self._waiting_for_turns: dict[str, MaskingDevice] = {}
        self._lagging: list[tuple[Device, Job | None]] = []
        self._seen: tuple[object, ...] = ()

    @property
    def state(self) -> RunState:
        """The run's newest state."""
        return self._state

    def rests(self, device: Device, seconds: float) -> None:
        """The device waits for so long before its next turn."""
        self._agenda.after(seconds, self._turn, device)

    # ------------------------------------------------------------ what is other than in plain rounds

    def _device(self, number: int) -> Device:
        row, offer = self._enrolment.row(number, self.now), self._enrolment.offer(number)
        return MaskingDevice(self, number, row, offer, self._memories.get(number, Memory()))

    def _remove_if_over(self, device: Device) -> None:
        if device.over and isinstance(device, MaskingDevice) and device.memory != Memory():
            self._memories[device.number] = device.memory
        super()._remove_if_over(device)

    def _assign(self, state: RunState) -> None:
        self._contributed.clear()
        super()._assign(state)

    def _task(self, state: RunState, device: str) -> Task:
        """The device trains in its private order."""
        secret = self.authority.identity(device).secret
        seed = private_seed(secret, state.run, state.round_number, self.trained_from)
        return super()._task(state, device).model_copy(update={"seed": seed})

    def _most(self, state: RunState) -> int:
        plan = state.plan
        return plan.cohort.goal if plan.secure is None else plan.secure.most_advertisers(plan.cohort)

    def begins_training(self, device: Device) -> None:
        part = self._parts.get(device.row.device)
        if part is not None and isinstance(device, MaskingDevice):
            device.vanishes_before = part.vanishes_before
        super().begins_training(device)

    def _comes_late(self, one: Unfinished) -> None:
        del self._elsewhere[one.device]  # it finds that the round is over

    def _perform(self) -> None:
        while (task := self.coordinator.core.take_task()) is not None:
            self.coordinator.perform(task)

    # ------------------------------------------------------------ the exchanges

    def _collect(self, round: int) -> None:
        """Lets time pass until the round has ended."""
        while True:
            self._perform()
            state = self._state
            if state.round_number != round or state.round is None or state.phase == "idle":
                break
            self._wake(state)
            until = float("inf") if state.deadline is None else state.deadline
            if self._agenda.next_at < until:
                self._happen()
            elif state.deadline is None:
                raise RuntimeError(f"round {round} waits for nothing, in the phase {state.phase}")
            else:
                self._agenda.now = max(self._agenda.now, state.deadline)
                self.coordinator.tick()
        self._hear_of_the_end()

    def _wake(self, state: RunState) -> None:
        """Where the round has moved on: each waiting device gets a turn, after the time of an exchange."""
        secure = state.secure
        if secure is None:
            return
        disputes = (len(state.current.excluded), secure.complaints, secure.opened)
        seen = (state.round_number, state.phase, state.current.attempt, secure.header, secure.roster, disputes)
        if seen == self._seen:
            return
        self._seen = seen
        for name, device in self._waiting_for_turns.items():
            self._agenda.after(self._parts[name].exchange_s, self._turn, device)
        self._waiting_for_turns.clear()
        if state.phase == "collecting" and secure.header:
            lagging, self._lagging = self._lagging, []
            for late, job in lagging:
                self._agenda.after(0.0, self._finish, late, job)

    def _turn(self, device: MaskingDevice) -> None:
        if not device.over:
            device.turn()
        self._stays(device)

    def _finish(self, device: Device, job: Job | None) -> None:
        """Ends the training of a device, or its time."""
        assignment, state = device.assignment, self._state
        if device.over or not isinstance(device, MaskingDevice):
            return
        if assignment is None or state.round_number != assignment.round or state.phase == "idle":
            device.vanish()
        elif state.phase != "collecting":
            self._lagging.append((device, job))  # too late for this roster
            return
        elif job is None:
            device.trained(None, complete=False)
        elif isinstance(result := self._engine.result(job), CannotTrain):
            self._cannot(job, result)
            device.trained(result)
        else:
            self._some_count = True
            name, report = device.row.device, result.report
            self._contributed[name] = assignment, report.examples
            device.contributed(complete=report.work.complete)
            done = 0 if state.secure is None else len(state.secure.advertised)
            self._trained(state.round_number, max(1, done), self._most(state))
        self._stays(device)

    def _stays(self, device: MaskingDevice) -> None:
        """After a turn, unless its part is over."""
        if device.over:
            self._remove_if_over(device)
        else:
            self._waiting_for_turns[device.row.device] = device

    def _hear_of_the_end(self) -> None:
        """The devices that are still there learn that the round is over."""
        for name in list(self._contributed):
            device = self._present.get(name)
            if isinstance(device, MaskingDevice):
                device.turn()
                self._leaves(device)
        for late, _ in self._lagging:
            self._leaves(late)
        self._waiting_for_turns.clear()
        self._lagging.clear()

    def _leaves(self, device: Device) -> None:
        """The round is over for this device."""
        device.vanish()
        self._remove_if_over(device)

    # ------------------------------------------------------------ what devices put in

    @property
    def trained_from(self) -> str:
        """Digest of the tensors from which the devices of this round train."""
        state = self._state
        if self._parent[0] != state.checkpoint:
            with self.coordinator.core.blobs.open(state.checkpoint) as file:
                self._parent = state.checkpoint, canonical_digest(file.read())
        return self._parent[1]

    def contribution(self, device: str) -> ClearContribution:
        """What a device has trained for this round."""
        examples = self._contributed[device][1]
        flat = np.concatenate([block[0] for block in self._engine.columns([device])])
        return ClearContribution(delta=split(flat, self._layout.whole), examples=examples, tensors=self.trained_from)
