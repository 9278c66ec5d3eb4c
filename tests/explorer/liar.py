"""Dishonest devices: beside their session they send requests that no honest device sends.

They send other bytes for a round they reported in, the bytes of another device or of the model, updates for rounds that
are over, not open yet, or not theirs, other attempts, bodies whose report names another round, withdrawals after the
report. None of it may count beside the first update of the device, and none of it may affect others. They name keys of
others, and register with certificates that are not theirs, not of the authority, or of another class: all of that is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.actions import Send
from client_sdk.protocol.devices import CheckIn, Noted, Outcome, Receipt, Registered, Registration, Started, Withdrawal
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.workers import WorkerRegistered, WorkerRegistration
from tests.explorer import invariants
from tests.explorer.device import ExplorerDevice
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.holders import DAY_S, Holder, certificate_of, holder_of
from tests.explorer.request import Answer
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

LIES = (
    "other-bytes",
    "old-round",
    "next-round",
    "attempt",
    "other-body",
    "model",
    "withdraw",
    "started",
    "outcome",
    "copy",
    "copy",
    "other-key",
    "other-certificate",
    "foreign-certificate",
    "other-class",
)


class Liar:
    """Lies with the key of one device, at its own times."""

    def __init__(self, world: World, watch: InvariantWatch, device: ExplorerDevice) -> None:
        self._world = world
        self._watch = watch
        self._device = device

    def plan_storm(self) -> None:
        world = self._world
        for _ in range(int(world.shape.storm_s / 3)):
            world.agenda.after(world.chance.between("lie-at", 1.0, world.shape.storm_s), self._lie)
        if world.shape.copied:
            world.stored.append(self._copies)

    def _copies(self, digest: str) -> None:
        """A replica has stored these bytes, and their request is not answered yet: the liar sends them too."""
        world, made = self._world, self._world.register.made.get(digest)
        if made is None or self._device.registered is None or not world.strikes("lie", f"{self._device.name} copies"):
            return
        body = next(one for one in world.register.bodies[made.run, made.round] if sha256(one).hexdigest() == digest)
        path: dict[str, str | int] = {"run": made.run, "round": made.round, "attempt": 0}
        world.log(f"{self._device.name} lies: it sends {digest} too")
        self._send("PUT", Route.UPDATE, path, Receipt, body=body)

    def _lie(self) -> None:
        world, device = self._world, self._device
        if device.registered is None or not self._watch.runs or not world.strikes("lie", device.name):
            return
        lie = world.chance.pick("lie", LIES)
        run = world.chance.pick("lie-run", list(self._watch.runs.values()))
        if not run.round:
            return
        world.log(f"{device.name} lies: {lie}")
        now = run.round
        match lie:
            case "other-bytes":
                self._update(run, now)
            case "copy":
                known = world.register.bodies.get((run.run, now))
                if known:
                    path: dict[str, str | int] = {"run": run.run, "round": now, "attempt": 0}
                    self._send("PUT", Route.UPDATE, path, Receipt, body=world.chance.pick("copied", known))
            case "model":  # a blob that others need, sent as an update
                path = {"run": run.run, "round": now, "attempt": 0}
                self._send("PUT", Route.UPDATE, path, Receipt, body=invariants.read(self._watch.durable, run.digest))
            case "old-round":
                self._update(run, max(1, now - 1 - world.chance.below("back", 2)))
            case "next-round":
                self._update(run, now + 1)
            case "attempt":
                self._update(run, now, attempt=1)
            case "other-body":
                self._update(run, now, body_round=now + 1)
            case "withdraw":
                message = Withdrawal(attempt=0, reason="The liar says so.")
                self._send("POST", Route.WITHDRAWN, {"run": run.run, "round": now}, Noted, message=message)
            case "other-key":
                self._send("POST", Route.CHECK_IN, {}, Noted, message=CheckIn(hold_s=0), as_holder=self._victim)
            case "other-certificate":
                self._register(certificate_of(self._victim, 0, world.authority.ends_at))
            case "foreign-certificate":
                self._register(certificate_of(device.holder, 0, world.authority.ends_at + DAY_S, "another authority"))
            case "other-class":
                certificate = certificate_of(device.holder, 0, world.authority.ends_at)
                asked = WorkerRegistration(certificate=certificate.encoded.hex())
                answered = _require_refused
                self._send("POST", Route.REGISTER_WORKER, {}, WorkerRegistered, message=asked, answered=answered)
            case "started":
                self._send("POST", Route.STARTED, {"run": run.run, "round": now}, Noted, message=Started())
            case _:
                self._send("GET", Route.OUTCOME, {"run": run.run, "round": now}, Outcome)

    @property
    def _victim(self) -> Holder:
        """Another device, whose key the liar does not have."""
        return holder_of(f"device-{(self._device.number + 1) % self._world.shape.devices}")

    def _register(self, certificate: Certificate) -> None:
        message = Registration(certificate=certificate.encoded.hex(), label="a liar")
        self._send("POST", Route.REGISTER, {}, Registered, message=message, answered=_require_refused)

    def _update(self, run: TrackedRun, round: int, *, attempt: int = 0, body_round: int | None = None) -> None:
        world, device = self._world, self._device
        body = world.register.body_of(
            number=device.number,
            run=run.run,
            round=body_round or round,
            attempt=attempt,
            codec=run.plan["task"]["codec"],
            examples=device.examples,
            partial=False,
            variant=100 + world.chance.below("variant", 3),
            mark=world.chance.pick("mark", (0.5, 2.0)),
        )
        path: dict[str, str | int] = {"run": run.run, "round": round, "attempt": attempt}
        self._send("PUT", Route.UPDATE, path, Receipt, body=body)

    def _send(
        self,
        method: str,
        route: Route,
        path: dict[str, str | int],
        answer: type[Message],
        *,
        message: Message | None = None,
        body: bytes = b"",
        answered: Callable[[Answer], None] | None = None,
        as_holder: Holder | None = None,
    ) -> None:
        send = Send(method=method, route=route, answers=(answer,), path=path, message=message)

        def ignore(_: Answer) -> None:
            """A liar needs no answer."""

        self._device.sender.send(send, answered or ignore, body=body, as_holder=as_holder)


def _require_refused(answer: Answer) -> None:
    """Nobody is registered with what is no certificate of its own key."""
    if isinstance(answer, Registered | WorkerRegistered):
        raise Broken("permission", f"a liar was registered: {answer!r}")
