"""The ServerApp's own process: ``python -m coordinator.flower.child``, which ``process`` starts.

Standard input has its orders, one line of JSON, and ends with the parent: then this process ends too. What happens
goes as lines of JSON to the file descriptor that the orders name. Standard output is the app's, and goes to standard
error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from client_sdk.flower.work import require_flwr
from client_sdk.protocol.flower import CreateFlowerRun
from client_sdk.terminal import Failure, sentence_of
from coordinator.flower.process import Orders
from coordinator.flower.tally import GroupLine, RunTally

if TYPE_CHECKING:
    from client_sdk.flower.app import AppFolder
    from client_sdk.http.flower import FlowerOperator

GROUP = "quorate.flower"
END_S = 5.0
"""How long this process may take to end after its parent."""


class _Stopped(BaseException):
    """SIGTERM: the command was stopped. No Exception, so that an app does not take it for one of its own."""


def main() -> None:
    """Follow the orders; exit code 0, or 1 after an event ``failed``."""
    orders = Orders.model_validate_json(sys.stdin.readline())
    signal.signal(signal.SIGTERM, _stop)
    Thread(target=_end_with_the_parent, args=(os.dup(0),), daemon=True).start()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # an app that asks for input gets none, as under Flower
    os.dup2(2, 1)
    code = 0
    with os.fdopen(orders.events, "w", encoding="utf-8") as events:
        lock = Lock()

        def tell(event: str, **fields: Any) -> None:
            with lock:
                events.write(json.dumps({"event": event, **fields}) + "\n")
                events.flush()

        try:
            _run(orders, tell)
        except _Stopped:
            code = 128 + signal.SIGTERM
        except Exception as error:  # noqa: BLE001 - the parent says it
            tell("failed", text=sentence_of(error), frames=getattr(error, "frames", ""))
            code = 1
    sys.stdout.flush()
    os._exit(code)  # threads that an app has left running do not hold the command


def _run(orders: Orders, tell: Callable[..., None]) -> None:
    require_flwr()  # before anything imports it
    from client_sdk.flower.app import read_app
    from coordinator.flower.grid import Quorum
    from coordinator.flower.server_app import Waits, run_server_app

    if orders.quiet:
        _quieten()

    def say(line: GroupLine | str) -> None:
        if isinstance(line, str):
            tell("remark", text=line)
        else:
            tell("group", text=str(line), **asdict(line))

    app = read_app(orders.folder)
    request = CreateFlowerRun(
        run=orders.run or default_name(app),
        app=app.app,
        config=app.run_config(orders.overrides),
        max_reply=orders.max_reply,
    )
    quorum = Quorum(orders.quorum, orders.grace_s) if orders.quorum is not None else None
    with _link(orders, app) as link:
        tell("run", run=request.run, app=app.app.name, version=app.app.version)
        tally = RunTally(say, simulation=orders.simulation)
        waits = Waits(quorum, float("inf") if orders.longest_wait_s is None else orders.longest_wait_s)
        run_server_app(app, request, link, tally.happened, waits=waits)
        tell("end", **asdict(tally.end()))


def default_name(app: AppFolder) -> str:
    """A name for a run of the app, another one each time."""
    name = "".join(
        sign if sign.isascii() and sign.isalnum() else "-" for sign in app.app.name.partition("/")[2].lower()
    )
    return f"{name.strip('-')[:48] or 'flower'}-{os.urandom(3).hex()}"


@contextmanager
def _link(orders: Orders, app: AppFolder) -> Iterator[FlowerOperator]:
    """The coordinator: one in this process with simulated nodes, or the one at the URL. The simulator is the entry
    point ``simulation`` of GROUP: ``(app, nodes, data=...)`` gives the context of a link."""
    if orders.simulation is not None:
        found = entry_points(group=GROUP, name="simulation")
        if not found:
            raise Failure("--simulation needs the simulator: pip install 'quorate[flower,simulation]'")
        with next(iter(found)).load()(app, orders.simulation, data=orders.data) as link:
            yield link
        return
    from client_sdk.http.flower import FlowerOperator
    from client_sdk.http.operator_transport import OperatorTransport

    with closing(OperatorTransport(orders.coordinator, key=None, key_file=orders.key_file, http=None)) as transport:
        yield FlowerOperator(transport)


def _quieten() -> None:
    """Leave Flower's own log at warnings: standard error is to hold our lines of JSON."""
    import logging

    logging.getLogger("flwr").setLevel(logging.WARNING)


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def _end_with_the_parent(pipe: int) -> None:
    """End this process when the parent is gone: another start goes on with what is durable."""
    while os.read(pipe, 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)


if __name__ == "__main__":
    main()
