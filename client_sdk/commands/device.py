"""``quorate device``: takes part in a federation with this machine's data, or serves Flower runs; ``quorate device
history``: lists its rounds.

This file prints lines, and imports what it needs when a command runs. The options for joining are in ``joining``, and
``http.client.Client`` and ``flower.serving`` do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands import device_keys
from client_sdk.commands.joining import DEFAULT_FOLDER, Folder, Joining, takes_joining
from client_sdk.commands.long_running import log_plainly, say_stopped
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.commands.threads import use_threads
from client_sdk.terminal import DEFAULT_URL, Json, fail, say, say_json, say_table, speak_as, spoken_by

if TYPE_CHECKING:
    from client_sdk.device.record import Joined
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


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
device_keys.add_to(app)


@app.callback(
    invoke_without_command=True,
    help="Take part in a federation with this machine's data, which never leaves it.\n\n"
    "Its state is stored in the folder: started again, the device continues where it was. Ctrl-C stops it.",
    epilog="Example: quorate device --token-file device.token --data mnist --shard 3/400 --coordinator " + DEFAULT_URL,
)
@takes_joining
def device(
    context: typer.Context,
    joining: Joining,
    flower: AppDir = None,
    node_config: NodeConfig = None,
    as_json: Json = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    use_threads(joining.threads)
    if flower is not None:
        speak_as(joining.name)
        serve_flower(joining, flower, node_config or [], as_json)
        return
    if node_config:
        fail("--node-config is what a Flower app's Context.node_config has: name the app's folder with --flower.")
    from client_sdk.device.storage import FileStorage
    from client_sdk.learners import LearnerTrainer

    speak_as(joining.name)
    trainer = LearnerTrainer(*joining.prepare(), seeds=True)
    log_plainly("quorate.device")
    with FileStorage(joining.folder) as storage, stopped_by_signals() as stop:
        ended = joining.take_part("This device", storage, trainer, stop, as_json)
    say_stopped(ended, as_json, "'quorate device history' lists them.")


@app.command(
    help="List the rounds that this device joined: what it trained, what it sent, how it ended. Authority *inside*: "
    "the coordinator had the authority's key, so it could have made up all other devices of the round.",
    epilog="Example: quorate device history --folder quorate-device",
)
def history(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
    from client_sdk.device.storage import read_history

    joined = read_history(folder)
    if as_json:
        for entry in joined:
            say_json(entry)
        return
    columns = ["run", "round", "learner", "result", "update", "weight", "event", "seconds", "authority", "reason"]
    say_table(columns, [_row(entry) for entry in joined], empty="This device has joined no round yet.")


@app.command(
    "allow-plain",
    help="Let this device take plain plans for a learner again. Once it has joined a secure round of a learner, it "
    "refuses them: an operator could otherwise ask for the same work without masks.",
    epilog="Example: quorate device allow-plain clinic:risk --folder quorate-device",
)
def allow_plain(
    learner: Annotated[str, typer.Argument(metavar="PACKAGE:NAME", help="The learner, as plans name it.")],
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
    from client_sdk.device.storage import FileStorage

    with FileStorage(folder) as storage:
        memory = storage.load_secure()
        if learner not in memory.learners:
            joined = ", ".join(sorted(memory.learners)) or "none"
            fail(f"This device has joined no secure round of {learner}; it has of: {joined}.")
        storage.keep(lambda newest: newest.plain_again(learner))
    if as_json:
        say_json({"kind": "plain-allowed", "learner": learner})
    else:
        say(f"This device takes plain plans for {learner} again, until it joins another secure round of it.")


def _row(entry: Joined) -> list[Any]:
    return [
        entry.run,
        entry.round,
        entry.learner,
        entry.result,
        entry.update_digest[:12] if entry.update_digest is not None else None,
        entry.weight,
        entry.logged.seq if entry.logged is not None else None,
        f"{entry.ended_at - entry.joined_at:.1f}",
        "inside" if entry.authority_inside else "apart",
        entry.reason,
    ]
