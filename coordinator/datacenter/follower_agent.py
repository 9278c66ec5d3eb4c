"""``quorate datacenter follow``: this machine trains with the one on which ``quorate datacenter join --nnodes`` runs.

It needs no token and sends nothing to the coordinator: it reads its orders in the folder that the machines share. This
file reads options and prints events; ``multi_machine`` starts the processes. Importing it is fast and needs no torch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.commands.long_running import Threads
from client_sdk.terminal import Json, say, say_json
from coordinator.datacenter.agent import LOST_S, note_leftovers, preflight_request

if TYPE_CHECKING:
    import threading

    from coordinator.datacenter.machines import Follower
    from coordinator.datacenter.preflight import PreflightReport

EPILOG = (
    "Example: quorate datacenter follow --folder /shared/worker-1 --node 1 --data proxy=public.npz --nproc 2, beside "
    "quorate datacenter join --folder /shared/worker-1 --nnodes 2 --rdzv-endpoint HOST:29500 ... on HOST"
)
LOOK_S = 0.2


def follow(
    folder: Annotated[Path, typer.Option(help="The leading agent's --folder, which both machines see.")],
    node: Annotated[int, typer.Option(min=1, max=1023, help="This machine's number in the group; the leader is 0.")],
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=SOURCE]", help="This machine's copy of the leader's data, as for 'join'."),
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:ATTRIBUTE", help="Only this learner, as for 'join'."),
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, max=1024, help="The most processes that train here.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda (one GPU a process), or auto.")] = "auto",
    threads: Threads = None,
    lost_s: Annotated[
        float, typer.Option(min=2, help="Seconds of silence after which the leader counts as lost.")
    ] = LOST_S,
    as_json: Json = False,
) -> None:
    """Train with the machine on which 'quorate datacenter join --nnodes' runs, over a folder that both see.

    Needs no token: the leader decides what to train. It trains only data that are named here, and only
    the learners that are named here, or where none is, the installed ones. Ctrl-C stops it.
    """
    from client_sdk.commands.long_running import log_plainly
    from client_sdk.commands.stopping import stopped_by_signals
    from coordinator.datacenter.agent_folder import end_leftovers
    from coordinator.datacenter.machines import Follower
    from coordinator.datacenter.preflight import look

    wanted = preflight_request(data or [], learner or [], nproc, device)
    log_plainly("quorate.worker")
    ready = look(wanted)
    with (
        Follower(
            folder, node, nproc=nproc, gpus=ready.gpus, learners=ready.learners, examples=ready.examples, lost_s=lost_s
        ) as follower,
        stopped_by_signals() as stop,
    ):
        note_leftovers(end_leftovers(folder, node))
        output = _Output(as_json)
        text = f"This is machine {node} of the group in {folder}, and waits for its leader. Ctrl-C stops it."
        output.say("ready", text)
        _until_stopped(follower, folder, ready, wanted.data, output, stop, threads)
    output.say("stopped", "Stopped.")


def _until_stopped(
    follower: Follower,
    folder: Path,
    ready: PreflightReport,
    data: dict[str, str],
    output: _Output,
    stop: threading.Event,
    threads: int | None,
) -> None:
    from coordinator.datacenter import multi_machine

    done: tuple[str, int] | None = None
    led = False
    while not stop.wait(LOOK_S):
        if follower.has_leader() != led:
            led = not led
            output.say("led" if led else "alone", "The leader responds." if led else "No leader responds.")
        order = follower.order()
        if order is None or order.key == done:
            continue
        done = order.key
        again = f", start {order.start + 1}" if order.start else ""
        output.say("training", f"Training {order.spec.get('learner')} on {order.data} with the group{again}.")
        began = time.monotonic()
        reason = multi_machine.follow(follower, order, folder, ready.learners, data, stop, threads)
        if not stop.is_set():
            over = f"This part ended after {time.monotonic() - began:.1f} s."
            output.say("done" if reason is None else "broke-off", over if reason is None else f"It broke off: {reason}")


class _Output:
    """Prints events as text or JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, kind: str, text: str) -> None:
        if self._as_json:
            say_json({"kind": kind, "text": text})
        else:
            say(text)
