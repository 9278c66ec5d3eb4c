"""``quorate datacenter join``: this machine takes datacenter rounds of a coordinator, for as long as it runs; and
``quorate datacenter follow``: it trains with the machine on which ``join --nnodes`` runs.

This file reads options, checks that the machine can do what it would offer, and prints events. ``worker`` renews
leases; ``trainer`` trains the rounds; ``multi_machine`` starts the processes of a follower, which needs no token and
sends nothing to the coordinator: it reads its orders in the folder that the machines share. Importing it is fast and
needs no torch. A running agent needs none either: only the training processes load torch.
"""

from __future__ import annotations

import math
import re
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands.long_running import Threads
from client_sdk.commands.token_file import TokenFile, enrolment_token
from client_sdk.terminal import DEFAULT_URL, Json, Url, fail, note, show_answer
from coordinator.datacenter.progress import ProgressThrottle, plain_line

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from client_sdk.http.client import Notice
    from client_sdk.protocol.workers import Lease
    from coordinator.datacenter.machines import Follower
    from coordinator.datacenter.preflight import PreflightReport, PreflightRequest


DEFAULT_FOLDER = Path("quorate-worker")
LOST_S = 30.0
"""Seconds of silence after which a machine of a group counts as lost."""
GROUP_HOLD_S = 5.0
"""Seconds for which a poll is held where machines may come and go: the next poll offers the machines of that time."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

JOIN_EPILOG = (
    "Example: quorate datacenter join --token-file worker.token --data proxy=public.npz --nproc 2 --folder worker-1 "
    "--coordinator " + DEFAULT_URL
)


def join(
    coordinator: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    label: Annotated[str, typer.Option(help="A name that operators see, such as a cluster's or a machine's.")] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=SOURCE]",
            help="Data held here, by the name that plans use: an installed data set, or NAME=FILE.npz with x and y, or "
            "NAME=FILE.csv:COLUMN or NAME=FILE.parquet:COLUMN with the column to predict. The option may be given "
            "several times.",
        ),
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="Only this learner: an installed one, or a module of your own, which is imported. May be given "
            "several times. (default: all installed ones)",
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, max=1024, help="The most processes that train together here.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda (one GPU a process), or auto.")] = "auto",
    threads: Threads = None,
    folder: Annotated[
        Path, typer.Option(help="Folder of this agent: its key, checkpoints and saved steps. One agent a folder.")
    ] = DEFAULT_FOLDER,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds, however they end.")] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between two saved ones (default: a tenth of the round, 100 at most)."),
    ] = None,
    hang_s: Annotated[float, typer.Option(min=1, help="Seconds after which a silent process counts as hung.")] = 300.0,
    max_restarts: Annotated[
        int, typer.Option(min=0, max=1000, help="How often processes that died are started again in a round.")
    ] = 3,
    nnodes: Annotated[
        int, typer.Option(min=1, max=1024, help="Machines that train together; the others run 'datacenter follow'.")
    ] = 1,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --nnodes: where the others reach this machine while it trains."),
    ] = None,
    lost_s: Annotated[
        float, typer.Option(min=2, help="With --nnodes: seconds of silence after which a machine counts as lost.")
    ] = LOST_S,
    as_json: Json = False,
) -> None:
    """Take a run's datacenter rounds on this machine, by synchronous SGD over its GPUs or CPUs.

    Waits until a run asks for a round, trains it in processes of its own, and sends the model. Steps are saved in
    the folder: killed and started again, the agent continues from the last saved step. Ctrl-C stops it and returns the
    round. With --nnodes it leads a group of machines that share the folder.
    """
    from client_sdk.commands.long_running import log_plainly
    from client_sdk.commands.stopping import stopped_by_signals
    from client_sdk.http.urls import check_url
    from coordinator.datacenter.agent_folder import AgentFolder, end_leftovers
    from coordinator.datacenter.machines import Leader
    from coordinator.datacenter.multi_machine import FollowerPool
    from coordinator.datacenter.preflight import look
    from coordinator.datacenter.trainer import JobTrainer, Machine
    from coordinator.datacenter.worker import DatacenterWorker

    url = check_url(coordinator)
    token = enrolment_token(token_file, enrolled=(folder / "record.json").exists())
    wanted = preflight_request(data or [], learner or [], nproc, device)
    if nnodes > 1:
        _check_endpoint(rdzv_endpoint)
    elif rdzv_endpoint is not None:
        fail("--rdzv-endpoint is for several machines: say how many with --nnodes.")
    output = AgentOutput(as_json)
    log_plainly("quorate.worker")
    with ExitStack() as until_the_end:
        agent_folder = until_the_end.enter_context(AgentFolder(folder))
        machine = Machine(
            nproc=nproc,
            device=wanted.device,
            threads=threads,
            checkpoint_every=checkpoint_every,
            hang_s=hang_s,
            max_restarts=max_restarts,
        )
        worker_of = partial(DatacenterWorker, url, agent_folder, enrolment_token=token, label=label)
        with worker_of(JobTrainer(agent_folder, {}, {}, machine)) as first:
            first.check()
        ready = look(wanted)
        note_leftovers(end_leftovers(agent_folder.folder))
        pool = None
        if nnodes > 1 and rdzv_endpoint is not None:
            leader = until_the_end.enter_context(closing(Leader(agent_folder.folder, lost_s)))
            pool = FollowerPool(leader, rdzv_endpoint, agent_folder.folder, ready, nnodes, output.of_group)
        trainer = JobTrainer(agent_folder, ready.learners, wanted.data, machine, output.of_job, pool, ready.gpu_bytes)
        hold_s = 25.0 if pool is None else GROUP_HOLD_S
        worker = until_the_end.enter_context(worker_of(trainer, on_notice=output.of_worker, hold_s=hold_s))
        stop = until_the_end.enter_context(stopped_by_signals())
        output.ready(url, ready, nproc)
        if pool is not None:
            pool.gather(stop)
        ended = worker.run(rounds, stop)
    output.stopped(ended)


def note_leftovers(count: int) -> None:
    """Print how many processes of an earlier agent were ended; nothing for 0."""
    if count:
        note(f"Ended {count} training process{'es' if count > 1 else ''} of an earlier agent.")


def _check_endpoint(endpoint: str | None) -> None:
    if endpoint is None:
        fail("Say with --rdzv-endpoint HOST:PORT where the other machines reach this one.")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        fail(f"--rdzv-endpoint: {endpoint!r} is no HOST:PORT.")
    from coordinator.datacenter.job import interface_towards

    if interface_towards(endpoint) is None:
        fail(f"--rdzv-endpoint: this machine finds no way to {host}.")


def preflight_request(data: list[str], learners: list[str], nproc: int, device: str) -> PreflightRequest:
    """The request for the preflight check. Failure where an option is wrong by itself."""
    from client_sdk.data import DataSourceError, entry_of, require_source
    from coordinator.datacenter.preflight import PreflightRequest, source_of

    if not data:
        fail("Name the data held here with --data: an installed data set such as mnist, or proxy=public.npz.")
    if device not in ("auto", "cpu", "cuda"):
        fail(f"--device: {device!r} is no device that can be trained on: cpu, cuda or auto.")
    sources: dict[str, str] = {}
    for text in data:
        name, source = source_of(text)
        if not _NAME.fullmatch(name):
            fail(
                f"--data {text}: {name!r} is no name that a plan can use (lower-case letters, digits, dots, dashes): "
                "write NAME=FILE."
            )
        if name in sources:
            fail(f"--data: {name} is given twice.")
        try:
            require_source(source)
            if name == source:  # under a name of its own it is offered by that alone
                entry = entry_of(source)
                sources[f"{entry.name}@{entry.version}"] = source
        except DataSourceError as error:
            fail(str(error))
        sources[name] = source
    return PreflightRequest.model_validate({"learners": learners, "data": sources, "nproc": nproc, "device": device})


class AgentOutput:
    """Prints events as text or JSON; the progress of a training only after an interval."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._throttle = ProgressThrottle()

    def of_worker(self, notice: Notice) -> None:
        """Print an event of the worker. ``of_job`` prints the events of training."""
        if notice.kind not in ("training", "progress"):
            self._print(notice.kind, notice.text, notice.run, notice.round)

    def of_job(self, lease: Lease, message: dict[str, Any]) -> None:
        """Print a message of a training, in the thread that trains."""
        if message["event"] not in ("started", "progress", "saved", "restarted") or not self._throttle.allows(message):
            return
        about = {name: _finite(value) for name, value in message.items() if name not in ("event", "reason")}
        with suppress(BrokenPipeError):  # a closed output must not lose the round
            self._print(str(message["event"]), plain_line(message), lease.run, lease.round, about)

    def _print(
        self, kind: str, text: str, run: str | None, round: int | None, about: dict[str, Any] | None = None
    ) -> None:
        line = f"{run} round {round}: {text}" if about is not None else text[:1].upper() + text[1:]
        shown = {"kind": kind, "run": run, "round": round, "text": text, **(about or {})}
        show_answer(shown, line, as_json=self._as_json)

    def ready(self, url: str, ready: PreflightReport, nproc: int) -> None:
        held = ", ".join(f"{name} ({count:,} examples)" for name, count in ready.examples.items())
        on = f"{ready.gpus} GPU{'s' if ready.gpus > 1 else ''}" if ready.gpus else "CPUs"
        group = f"up to {nproc} processes" if nproc > 1 else "one process"
        text = f"This worker holds {held}, trains with {group} on {on}, and talks to {url}. Ctrl-C stops it."
        shown = {"kind": "ready", "coordinator": url, "nproc": nproc, **ready.model_dump()}
        show_answer(shown, text, as_json=self._as_json)

    def of_group(self, text: str) -> None:
        """Print that a machine of the group came, went, or is excluded."""
        self._print("group", text, None, None)

    def stopped(self, ended: int) -> None:
        from client_sdk.commands.long_running import say_stopped

        say_stopped(ended, self._as_json)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


FOLLOW_EPILOG = (
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

        def output(kind: str, text: str) -> None:
            show_answer({"kind": kind, "text": text}, text, as_json=as_json)

        text = f"This is machine {node} of the group in {folder}, and waits for its leader. Ctrl-C stops it."
        output("ready", text)
        _until_stopped(follower, folder, ready, wanted.data, output, stop, threads)
    output("stopped", "Stopped.")


def _until_stopped(
    follower: Follower,
    folder: Path,
    ready: PreflightReport,
    data: dict[str, str],
    output: Callable[[str, str], None],
    stop: threading.Event,
    threads: int | None,
) -> None:
    from coordinator.datacenter import multi_machine

    done: tuple[str, int] | None = None
    led = False
    while not stop.wait(LOOK_S):
        if follower.has_leader() != led:
            led = not led
            output("led" if led else "alone", "The leader responds." if led else "No leader responds.")
        order = follower.order()
        if order is None or order.key == done:
            continue
        done = order.key
        again = f", start {order.start + 1}" if order.start else ""
        output("training", f"Training {order.spec.get('learner')} on {order.data} with the group{again}.")
        began = time.monotonic()
        reason = multi_machine.follow(follower, order, folder, ready.learners, data, stop, threads)
        if not stop.is_set():
            over = f"This part ended after {time.monotonic() - began:.1f} s."
            output("done" if reason is None else "broke-off", over if reason is None else f"It broke off: {reason}")
