"""Dishonest devices: beside their session they send requests that no honest device sends.

They send other bytes for a round they reported in, the bytes of another device, updates for rounds that are over, not
open yet, or not theirs, other attempts, bodies whose report names another round, withdrawals after the report. None of
it may count beside the first update of the device, and none of it may affect others.
"""

from __future__ import annotations

from collections.abc import Callable

from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Enrolled, EnrolRequest, Noted, Outcome, Receipt, Started, Withdrawal
from client_sdk.protocol.names import Message, Route
from simulation.explorer.device import ExplorerDevice
from simulation.explorer.faults import Broken
from simulation.explorer.follow import Followed
from simulation.explorer.network import Network
from simulation.explorer.request import Answer, SentRequest
from simulation.explorer.watch import InvariantWatch
from simulation.explorer.world import World

LIES = (
    "other-bytes",
    "old-round",
    "next-round",
    "attempt",
    "other-body",
    "withdraw",
    "started",
    "outcome",
    "copy",
    "copy",
    "enrol",
)


class Liar:
    """Lies with the token of one device, at its own times."""

    def __init__(self, world: World, network: Network, watch: InvariantWatch, device: ExplorerDevice) -> None:
        self._world = world
        self._network = network
        self._watch = watch
        self._device = device

    def plan_storm(self) -> None:
        world = self._world
        for _ in range(int(world.shape.storm_s / 3)):
            world.agenda.after(world.chance.between("lie-at", 1.0, world.shape.storm_s), self._lie)

    def _lie(self) -> None:
        world, device = self._world, self._device
        enrolled = device.enrolled
        if enrolled is None or not self._watch.runs or not world.strikes("lie", device.name):
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
            case "enrol":
                key = device.key.public_hex
                enrolment = EnrolRequest(public_key=key, proof="00" * 64, label="a liar", enrolment_token=world.token)
                self._send("POST", Route.ENROL, {}, Enrolled, message=enrolment, answered=_require_refused)
            case "started":
                self._send("POST", Route.STARTED, {"run": run.run, "round": now}, Noted, message=Started())
            case _:
                self._send("GET", Route.OUTCOME, {"run": run.run, "round": now}, Outcome)

    def _update(self, run: Followed, round: int, *, attempt: int = 0, body_round: int | None = None) -> None:
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
    ) -> None:
        enrolled = self._device.enrolled
        token = enrolled.token if enrolled is not None else ""
        send = Send(method=method, route=route, answers=(answer,), path=path, message=message, token=token)

        def ignore(_: Answer) -> None:
            """A liar needs no answer."""

        self._network.send(SentRequest(send, body), answered or ignore)


def _require_refused(answer: Answer) -> None:
    """Who does not have the key does not get the device's token."""
    if isinstance(answer, Enrolled):
        raise Broken("permission", f"{answer.device} was enrolled without its key's signature")
