"""What is played before the camera: real commands of Quorate with real data.

::

    demo        `quorate demo`, while a plain round is collected; then its data folder, opened again: the secure run
    simulated   a run of 1,000 simulated clients, opened by `quorate serve --data`
    trouble     one coordinator with a run that stands still and one that fell back to the datacenter
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import RunView
from coordinator.engine.plan import Plan
from simulation.demo.children import CommandChildren, StoppedByUser
from simulation.demo.command import READY_S, Result, directed
from simulation.demo.screen import Journal, Plain
from simulation.demo.setting import Setting

from .camera import Camera, Windows
from .worlds import DATA, World

WITHIN_S = 240.0
CLIENTS = 1000


class Photographed(Plain):
    """The demo's screen. ``come`` is called after its first committed round, ``shoot`` after some of them, in the
    middle of the next one; each once."""

    every_s = 0.1

    def __init__(
        self,
        after: int,
        share: float,
        begin: Callable[[], None],
        come: Callable[[Journal], None],
        shoot: Callable[[Journal], None],
    ) -> None:
        """``after``: committed rounds; ``share``: of the goal, that has reported; ``begin`` is called first."""
        super().__init__()
        self._after, self._share, self._begin, self._come, self._shoot = after, share, begin, come, shoot
        self._begun = self._there = False
        self.done = False

    def command(self, line: str) -> None:
        """Not printed: nobody is to type it."""

    def note(self, line: str) -> None:
        """Neither."""

    def show(self, journal: Journal, final: bool = False) -> None:
        if not self._begun:
            self._begun = True
            self._begin()
        if not self._there and journal.committed:
            self._there = True
            self._come(journal)
        if self.done or len(journal.committed) < self._after:
            return
        line = journal.lines[-1]
        if line.status == "open" and line.collected >= self._share * (goal(journal.run) or 0):
            self.done = True
            self._shoot(journal)


def goal(run: RunView) -> int:
    """The reports that close a round of the run."""
    return Plan.model_validate(run.plan).cohort.goal


def live(camera: Camera, folder: Path, setting: Setting, after: int) -> Result | None:
    """The demo while it runs, after so many committed rounds. None where it has no secure rounds: then it is ended
    after its picture."""
    over = Event()
    with ExitStack() as windows:
        found: list[Windows] = []

        def begin() -> None:
            found.append(windows.enter_context(camera.at(f"http://127.0.0.1:{setting.port}")))

        def come(journal: Journal) -> None:
            found[0].go(f"#/runs/{journal.run.run}")

        def shoot(journal: Journal) -> None:
            run = journal.run.run
            found[0].take("demo", f"#/runs/{run}", "accuracy", "Devices of round")
            found[0].take("demo-round", f"#/runs/{run}/rounds/{journal.committed[-1].round}", "A lane for each device")

            if not setting.secure_rounds:
                over.set()

        screen = Photographed(after, 0.25, begin, come, shoot)
        result = None
        with suppress(StoppedByUser), directed(setting, folder, screen, over) as played:
            result = played.result
    if not screen.done:
        raise RuntimeError("the demo was over before its picture was taken: let it have more rounds")
    return result


def demo(camera: Camera, folder: Path, setting: Setting, after: int, *, every: bool) -> None:
    """The demo while it runs, then the data folder that it leaves. ``every``: also pictures of the screens of which
    nobody asked for a picture."""
    result = live(camera, folder, setting, after)
    if result is None or result.secure is None:
        return
    secure = result.secure.run.run
    with commands(folder) as children:
        url = serve(children, folder / "coordinator", "--dev-authority")["url"]
        with camera.at(url) as seen:
            seen.take("runs", "#/runs", secure)
            seen.take("secure", f"#/runs/{secure}/secure", "advertise", "unmask")
            seen.take("secure-round", f"#/runs/{secure}/rounds/{result.secure.committed[-1].round}", "Arrival in each")
            seen.take("fleet", "#/fleet", "Participation by class")
            if every:
                plain = result.plain.run.run if result.plain is not None else secure
                others(seen, url, plain, secure)


def others(seen: Windows, url: str, plain: str, secure: str) -> None:
    """The screens of which nobody asked for a picture, to be looked at after a change."""
    with OperatorClient(url) as operator:
        device = operator.devices(limit=1)[0].device
    seen.take("secure-live", f"#/runs/{secure}", "Exchanges of round")
    seen.take("checkpoints", f"#/runs/{plain}/checkpoints", "New run from here")
    seen.take("compare", "#/compare", "Where they stand")
    seen.take("start", f"#/start/{plain}/1", "What it will cost")
    seen.take("device", f"#/fleet/{device}", "Its rounds by hour")
    seen.take("system", "#/system", "Requests")
    seen.take("audit", "#/audit", "logged in")


def simulated(camera: Camera, folder: Path, world: World) -> None:
    """A run of 1,000 simulated clients."""
    with commands(folder) as children:
        plan = written(folder, "thousand-clients", world.simulated())
        behaviour = ("--dropout", "0.08", "--stragglers", "0.05", "--step-s", "0.5", "--speed-sigma", "0.4")
        children.run(
            "simulate",
            *("simulate", plan, "--data", DATA, "--clients", str(CLIENTS), "--alpha", "0.3", *behaviour),
            *("--folder", str(folder / "run"), "--quiet"),
        )
        url = serve(children, folder / "run")["url"]
        with camera.at(url) as seen:
            last = f"#/runs/thousand-clients/rounds/{world.rounds}"
            lanes = f"Devices of round {world.rounds}"
            seen.take("simulated", "#/runs/thousand-clients", "accuracy", "finished", lanes)
            seen.take("simulated-round", last, "A lane for each device")


def trouble(camera: Camera, folder: Path, world: World) -> None:
    """A run that stands still, for want of devices, and one that a datacenter has taken over."""
    with commands(folder) as children:
        ready = serve(children, folder / "coordinator", "--dev-authority")
        url = ready["url"]
        at = ("--coordinator", url)
        children.start(
            "fleet",
            *("fleet", "--devices", "2", "--data", DATA, "--folder", str(folder / "devices"), *at),
            *("--token-file", ready["device_token_file"]),
        )
        children.start(
            "worker",
            *("datacenter", "join", "--data", DATA, "--label", "cluster", "--folder", str(folder / "worker"), *at),
            *("--token-file", ready["worker_token_file"]),
        )
        for name, text in (("hospitals", world.standing()), ("fallback", world.fallback())):
            children.run(f"create-{name}", "run", "create", written(folder, name, text), *at)
        children.start("evaluate", "evaluate", "fallback", "--data", DATA, *at)
        with OperatorClient(url) as operator, camera.at(url) as seen:
            until(children, lambda: operator.run("fallback").rounds_committed >= world.datacenter_rounds)
            until(children, lambda: in_steps(operator))
            seen.take("fallback", "#/runs/fallback", "Trained in the datacenter")
            seen.take("datacenter", "#/runs/fallback/datacenter", "When it took over, and why", "cluster")
            until(children, lambda: bool(operator.run("hospitals").stalled))
            seen.take("standstill", "#/runs/hospitals", "stands still", "Next:")


def in_steps(operator: OperatorClient) -> bool:
    """Whether the worker has reported steps of the round under way."""
    run = operator.run("fallback")
    newest = operator.round("fallback", run.round)
    return run.phase == "training" and newest.lease is not None and newest.lease.step > 0


@contextmanager
def commands(folder: Path) -> Iterator[CommandChildren]:
    """What starts commands of Quorate, whose logs are in the folder."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with CommandChildren(logs, Event(), lambda line: None) as children:
        yield children


def serve(children: CommandChildren, folder: Path, *options: str) -> dict[str, str]:
    """`quorate serve` of this data folder: what it says when it is ready."""
    child = children.start("serve", "serve", "--data", str(folder), "--port", "0", "--json", *options)
    ready: dict[str, str] = json.loads(children.first_line(child, READY_S))
    return ready


def written(folder: Path, name: str, text: str) -> str:
    """The path of a plan with this text."""
    file = folder / f"{name}.toml"
    file.write_text(text, "utf-8")
    return str(file)


def until(children: CommandChildren, ready: Callable[[], bool]) -> None:
    """Wait for something to be so. TimeoutError after four minutes, Failure where a command ends meanwhile."""
    end = time.monotonic() + WITHIN_S
    while not ready():
        children.look()
        if time.monotonic() > end:
            raise TimeoutError("what was to be seen has not come")
        time.sleep(0.1)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
