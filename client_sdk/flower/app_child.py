"""The process in which a ClientApp works: it loads the app once, then serves one message after another.

``python -P -m client_sdk.flower.app_child APP_DIR MODULE:ATTRIBUTE``: reads AppWork from standard input, writes
``work.Said`` to standard output. What the app prints goes to standard error. It ends when its standard input is closed,
also in the middle of a message, so it does not outlive its device.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from client_sdk.flower.work import AppReady, AppWork, NotLoaded, Said
from client_sdk.imports import uncollected


def main() -> None:
    """Serve until standard input is closed."""
    orders, told = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # an app that asks for input takes no orders
    lines: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read, args=(orders, lines), daemon=True).start()
    try:
        with uncollected():
            from client_sdk.flower.app import load_client_app
            from client_sdk.flower.app_call import call

            app = load_client_app(Path(sys.argv[1]), sys.argv[2])
    except BaseException as error:  # noqa: BLE001 - an app's module may end the process: the device hears of it too
        _say(told, NotLoaded(reason=str(error) or type(error).__name__))
        raise SystemExit(1) from None
    _say(told, AppReady())
    while True:
        _say(told, call(app, AppWork.model_validate_json(lines.get())))


def _read(orders: int, lines: SimpleQueue[bytes]) -> None:
    with os.fdopen(orders, "rb", closefd=False) as commands:
        for line in commands:
            lines.put(line)
    os._exit(0)


def _say(told: int, what: Said) -> None:
    line = memoryview(what.model_dump_json().encode() + b"\n")
    while line:
        line = line[os.write(told, line) :]


if __name__ == "__main__":
    main()
