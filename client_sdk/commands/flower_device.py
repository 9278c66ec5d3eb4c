"""``quorate device --flower APP_DIR``: serves Flower runs with the ClientApp of an app.

This file reads options and prints lines; ``client_sdk.flower.serving`` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.commands.joining import Joining
from client_sdk.commands.long_running import log_plainly
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.terminal import fail, say, say_json, spoken_by

if TYPE_CHECKING:
    from client_sdk.flower.notices import FlowerNotice
    from client_sdk.http.notices import Notice

AppDir = Annotated[
    Path | None,
    typer.Option(
        "--flower",
        metavar="APP_DIR",
        help="Serve Flower runs of this app, in place of rounds: the folder with its pyproject.toml. Flower runs are "
        "plain: the coordinator and the app's ServerApp can read every reply.",
    ),
]
NodeConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--node-config",
        metavar="KEY=VALUE...",
        help="With --flower: what the app's Context.node_config has, such as 'partition-id=0 num-partitions=4'.",
    ),
]
TAKEN = frozenset({"coordinator", "token_file", "who_file", "folder", "secure_only", "threads", "label"})
"""The options for joining that have a meaning with ``--flower``."""


def serve_flower(joining: Joining, app_dir: Path, node_config: Sequence[str], as_json: bool) -> None:
    """Serve until Ctrl-C, and print each event. Failure, in a sentence, where an option or the app is wrong."""
    for field in fields(Joining):
        if field.name not in TAKEN and getattr(joining, field.name) != field.default:
            option = field.name.replace("_", "-")
            fail(f"--{option} has no meaning with --flower: the app decides about its data and its work. Leave it out.")
    from client_sdk.flower.node_config import parse_node_config
    from client_sdk.flower.supported import require_flwr

    config = parse_node_config(node_config)
    require_flwr()
    from client_sdk.device.storage import FileStorage
    from client_sdk.flower.app import read_app
    from client_sdk.flower.app_process import AppProcess
    from client_sdk.flower.http_port import HttpFlowerPort
    from client_sdk.flower.journal import NodeJournal
    from client_sdk.flower.serving import FlowerDevice
    from client_sdk.http.transport import Interrupted

    folder = read_app(app_dir)
    app = folder.app
    log_plainly("quorate.device")

    def show(notice: FlowerNotice | Notice) -> None:
        if as_json:
            say_json({"device": joining.name, **asdict(notice)})
        else:
            say(str(notice))

    answered = 0
    with (
        FileStorage(joining.folder) as storage,
        stopped_by_signals() as stop,
        AppProcess(app_dir.resolve(), folder.clientapp, stopped=stop.is_set) as process,
    ):
        token = joining.enrolment_token(storage)
        place = joining.folder.expanduser() / "flower"
        with HttpFlowerPort(
            joining.coordinator,
            storage,
            place / "contents",
            enrolment_token=token,
            who=joining.who,
            label=joining.label,
            secure_only=joining.secure_only,
            stop=stop,
            on_notice=show,
        ) as port:
            journal = NodeJournal(place)
            if not as_json:
                say(f"This device serves {app.name} {app.version} ({app.digest[:12]}) and talks to {port.coordinator}.")
            try:
                process.start()
                port.start()
                device = FlowerDevice(
                    port,
                    app,
                    process,
                    journal,
                    node_config=config,
                    secure_only=joining.secure_only,
                    stop=stop,
                    on_notice=show,
                )
                answered = device.serve()
            except Interrupted:
                pass
    if as_json:
        say_json({**spoken_by(), "kind": "stopped", "messages": answered})
    else:
        say(f"Stopped after {answered} message{'' if answered == 1 else 's'}.")
