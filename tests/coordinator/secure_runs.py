"""Secure runs on a coordinator that does not serve them yet: their rows are written as its creation would write them,
and what devices say is told to the log, without a byte behind it.

``exhausted`` is a run whose only devices have signed on its checkpoint.
"""

from __future__ import annotations

import hashlib
from typing import Any

from client_sdk.tensors import Tensors, to_bytes
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.event_fields import Group
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.store.port import CheckpointRow, RunRow
from tests.client_sdk.bounds import any_work
from tests.coordinator.world import World

WAITS: dict[str, Any] = {"minimum_cohort": 3, "reserve": 0, "exchange_s": 20, "quiet_s": 20}
"""The roster is full with the goal, and each exchange waits for all."""
SECURE: dict[str, Any] = {"max_norm": 1.0, "max_abs": 0.5, **WAITS}


def secure_run(world: World, model: Tensors | None = None, body: bytes = b"", **sections: Any) -> str:
    """A run of select 4, goal 4, quorum 3, strict: its id. It is recovered, and selecting. ``body``: the bytes of its
    first checkpoint, in place of those of ``model``."""
    cohort = {"select": 4, "goal": 4, "quorum": 0.6}
    wanted = {"secure": SECURE, "cohort": cohort, "aggregation": {}, "name": "secret", **sections}
    wanted["aggregation"] = {"partial": "refuse", **wanted["aggregation"]}
    plan = Plan.parse(world.plan(**wanted))
    body = body or to_bytes(model or world.model())
    digest = hashlib.sha256(body).hexdigest()
    assert world.blobs.put(body) == digest
    row = RunRow(
        run=plan.name,
        name=plan.name,
        plan=plan.model_dump(mode="json"),
        plan_digest=plan.digest,
        selection_seed=7,
        init=digest,
        origin="test",
        created_at=world.clock.now(),
    )
    first = CheckpointRow(
        run=plan.name,
        version=0,
        digest=digest,
        parent_version=None,
        round=None,
        origin="test",
        bytes=len(body),
        created_at=world.clock.now(),
    )
    with world.store.transaction() as tx:
        tx.insert_run(row)
        tx.insert_checkpoint(first)
    world.boot()
    return plan.name


def check_in(world: World) -> None:
    """All devices check in; their owners let them hide among three."""
    world.check_in(secure=any_work(smallest_cohort=3))


def state(world: World, run: str = "secret") -> RunState:
    return world.coordinator.core.state(run)


def happens(world: World, kind: type, run: str = "secret", **fields: Any) -> list[fx.Effect]:
    """One event of the attempt under way, as the runtime would submit it."""

    def make(tx: object, now_in: RunState, at: float) -> ev.Event:
        usual = {"at": at, "round": now_in.round_number, "attempt": now_in.current.attempt}
        made: ev.Event = kind(**{**usual, **fields})
        return made

    return world.coordinator.core.log(run).submit(make)


def says(world: World, kind: type, *devices: str, run: str = "secret") -> list[str]:
    """These devices say what this exchange is for; a blob stands for each message. Their digests."""
    now_in, digests = state(world, run), []
    for device in devices:
        body = f"{kind.__name__} {device} {run} {now_in.round_number} {now_in.current.attempt}".encode()
        digests.append(world.blobs.put(body))
        happens(world, kind, run, device=device, digest=digests[-1], bytes=len(body))
    return digests


def to_the_list(world: World, run: str = "secret") -> tuple[str, ...]:
    """From the draw to the survivor list, with the drawn cohort."""
    happens(world, ev.Announced, run, header="00" * 32, expires_at=int(world.clock.now()) + 3000)
    cohort = tuple(sorted(state(world, run).current.members))
    says(world, ev.Advertised, *cohort, run=run)
    roster = world.blobs.put(f"roster {run} {state(world, run).round_number}".encode())
    group = Group(order=cohort, threshold=3, signers=3, fewest=3)
    happens(world, ev.Rostered, run, digest=roster, groups=(group,))
    says(world, ev.Shared, *cohort, run=run)
    says(world, ev.Masked, *cohort, run=run)
    assert state(world, run).phase == "agreeing"
    return cohort


def exhausted(world: World, run: str = "secret") -> tuple[str, ...]:
    """All four devices of the world sign, and fall silent; then they wait again. Who is spent."""
    check_in(world)
    cohort = to_the_list(world, run)
    says(world, ev.Signed, *cohort, run=run)
    world.pass_time(21)
    check_in(world)
    world.pass_time(11)
    assert state(world, run).exhausted
    return cohort
