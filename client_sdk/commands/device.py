"""``quorate device``: takes part in a federation with this machine's data, or serves Flower runs; ``quorate device
history``: lists its rounds.

This file prints lines, and imports what it needs when a command runs. The options for joining are in ``joining``, and
``http.client.Client`` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands import device_keys
from client_sdk.commands.flower_device import AppDir, NodeConfig, serve_flower
from client_sdk.commands.joining import DEFAULT_FOLDER, Folder, Joining, takes_joining
from client_sdk.commands.long_running import log_plainly, say_stopped
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.commands.threads import use_threads
from client_sdk.terminal import DEFAULT_URL, Json, errors_as_sentences, fail, say, say_json, say_table, speak_as

if TYPE_CHECKING:
    from client_sdk.device.record import Joined

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
device_keys.add_to(app)


@app.callback(
    invoke_without_command=True,
    help="Take part in a federation with this machine's data, which never leaves it.\n\n"
    "Its state is stored in the folder: started again, the device continues where it was. Ctrl-C stops it.",
    epilog="Example: quorate device --token-file device.token --data mnist --shard 3/400 --coordinator " + DEFAULT_URL,
)
@errors_as_sentences
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
@errors_as_sentences
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
@errors_as_sentences
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
