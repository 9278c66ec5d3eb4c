"""``quorate device``: takes part in a federation with this machine's data, or serves Flower runs; ``quorate device
history``: lists its rounds.

This file prints lines, and imports what it needs when a command runs. The options for joining are in ``joining``, and
``http.client.Client`` and ``flower.serving`` do the work.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.commands.joining import (
    DEFAULT_FOLDER,
    Delta,
    Folder,
    Joining,
    MostEpsilon,
    SumsFolder,
    sums_in,
    takes_options,
)
from client_sdk.commands.long_running import log_plainly, say_stopped, use_threads
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.protocol.flower import ConfigValue
from client_sdk.terminal import DEFAULT_URL, Json, fail, note, say, say_json, say_table, show_answer, speak_as

if TYPE_CHECKING:
    from client_sdk.device.actions import Sleep
    from client_sdk.device.record import Joined, Record
    from client_sdk.flower.work import FlowerNotice
    from client_sdk.http.driver import Notice


# ------------------------------------------------------------ node config
# ``--node-config "partition-id=0 num-partitions=4"``: what ``Context.node_config`` has, typed as Flower types it.


_PAIR = re.compile(r"""\s*([^\s=]+)=('[^']*'|"[^"]*"|[^\s'"]\S*)(?=\s|$)""")


def parse_node_config(texts: Iterable[str]) -> dict[str, ConfigValue]:
    """The values of ``key=value`` pairs, which stand in one text or in several. A value is written as in TOML: ``4``,
    ``0.5``, ``true``, ``"text"``. The same key again replaces its value.

    ValueError, in one sentence, for anything else.
    """
    found: dict[str, ConfigValue] = {}
    for text in texts:
        position = 0
        while text[position:].strip():
            pair = _PAIR.match(text, position)
            if pair is None:
                raise ValueError(f"{text[position:].strip()!r} is no key=value; {_EXAMPLE}")
            found |= _values(pair[1], pair[2])
            position = pair.end()
    return found


_EXAMPLE = """write for example --node-config 'partition-id=0 num-partitions=4 name="ward 7"'."""


def _values(key: str, value: str) -> dict[str, ConfigValue]:
    try:
        return _flat(tomllib.loads(f"{key} = {value}"))
    except tomllib.TOMLDecodeError:
        raise ValueError(f"{key}={value} has no value of TOML (a text needs quotes); {_EXAMPLE}") from None


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, ConfigValue]:
    """A table's values by their dotted names."""
    found: dict[str, ConfigValue] = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which cannot travel; {_EXAMPLE}")
        elif isinstance(value, bool | int | float | str):
            found[name] = value
        else:
            raise ValueError(f"{name} is a {type(value).__name__}, not a number, a text, true or false; {_EXAMPLE}")
    return found


# ------------------------------------------------------------ taking part


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
TAKEN = frozenset({"coordinator", "token_file", "who_file", "folder", "secure_only", "threads", "label", "sums_folder"})
"""The options for joining that have a meaning with ``--flower``, and one that a machine sets for all its devices."""


def serve_flower(joining: Joining, app_dir: Path, node_config: Sequence[str], as_json: bool) -> None:
    """Serve until Ctrl-C, and print each event. Failure, in a sentence, where an option or the app is wrong."""
    for field in fields(Joining):
        if field.name not in TAKEN and getattr(joining, field.name) != field.default:
            option = field.name.replace("_", "-")
            fail(f"--{option} has no meaning with --flower: the app decides about its data and its work. Leave it out.")
    from client_sdk.flower.work import require_flwr

    config = parse_node_config(node_config)
    require_flwr()
    from client_sdk.device.storage import FileStorage
    from client_sdk.flower.app import read_app
    from client_sdk.flower.app_process import AppProcess
    from client_sdk.flower.http_port import HttpFlowerPort
    from client_sdk.flower.journal import NodeJournal
    from client_sdk.flower.serving import SECURE_ONLY, FlowerDevice
    from client_sdk.http.transport import Interrupted
    from client_sdk.secagg.consent import plain_refusal

    folder = read_app(app_dir)
    app = folder.app
    log_plainly("quorate.device")

    def show(notice: FlowerNotice | Notice) -> None:
        show_answer({"device": joining.name, **asdict(notice)}, str(notice), as_json=as_json)

    answered = 0
    with (
        FileStorage(joining.folder) as storage,
        stopped_by_signals() as stop,
        AppProcess(app_dir.resolve(), folder.clientapp, stopped=stop.is_set) as process,
    ):

        def withheld() -> str:
            return SECURE_ONLY if joining.secure_only else plain_refusal(storage.load_secure().plain, app.name) or ""

        if refused := withheld():
            note(f"{refused} It serves no run until then: quorate device allow-plain {app.name}.")
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
                    withheld=withheld,
                    stop=stop,
                    on_notice=show,
                )
                answered = device.serve()
            except Interrupted:
                pass
    say_stopped(answered, as_json, what="message")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(
    invoke_without_command=True,
    help="Take part in a federation with this machine's data, which never leaves it.\n\n"
    "Its state is stored in the folder: started again, the device continues where it was. Ctrl-C stops it.",
    epilog="Example: quorate device --token-file device.token --data mnist --shard 3/400 --coordinator " + DEFAULT_URL,
)
@takes_options
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
    from client_sdk.learners import LearnerTrainer

    speak_as(joining.name)
    trainer = LearnerTrainer(*joining.prepare(), seeds=True)
    log_plainly("quorate.device")
    with joining.storage() as storage, stopped_by_signals() as stop:
        ended = joining.take_part("This device", storage, trainer, stop, as_json)
    say_stopped(ended, as_json, "'quorate device history' lists them.")


@app.command(
    help="List the rounds that this device joined: what it trained, what it sent, how it ended. Authority *inside*: "
    "the coordinator had the authority's key, so it could have made up all other devices of the round.",
    epilog="Example: quorate device history --folder quorate-device",
)
def history(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    _require(folder)
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
    help="Let this device's data go in clear for a learner, or a Flower app. Once it has joined a secure round, it "
    "takes no plain plan and serves no Flower app: an operator could otherwise ask for the same data without masks.",
    epilog="Example: quorate device allow-plain clinic:risk --folder quorate-device",
)
def allow_plain(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The learner, package:name as plans name it, or the app, publisher/name."),
    ],
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    _require(folder)
    from client_sdk.device.storage import FileStorage

    with FileStorage(folder) as storage:
        if storage.load_secure().plain is None:
            fail("This device has joined no secure round, so its data may go in clear.")
        storage.keep(lambda newest: newest.plain_again(name))
    done = f"This device's data may go in clear for {name} again, until it joins a secure round of it."
    show_answer({"kind": "plain-allowed", "name": name}, done, as_json=as_json)


@app.command(
    help="Show what this user's data have lost in differential privacy, by data set, coordinator and run, and what one "
    "more round of each run would cost. Devices debit each answer before it leaves.",
    epilog="Example: quorate device privacy --most-epsilon 8",
)
def privacy(
    folder: Folder = DEFAULT_FOLDER,
    sums_folder: SumsFolder = None,
    most_epsilon: MostEpsilon = None,
    delta: Delta = 1e-6,
    as_json: Json = False,
) -> None:
    from client_sdk.device.data_ledger import LedgerFile

    if not 0 < delta < 1:
        fail(f"--delta is above 0 and below 1, not {delta:g}.")
    places = [folder / "ledger.json", *sorted(sums_in(sums_folder).glob("?" * 64))]
    ledgers = [found for place in places if (found := LedgerFile(place, durable=False).read()).spent]
    if as_json:
        for one in ledgers:
            say_json(one.shown(delta, most_epsilon))
        return
    for one in ledgers:
        shown = one.shown(delta, most_epsilon)
        lost = "not bounded" if shown["epsilon"] is None else f"{shown['epsilon']:.4g}"
        left = "" if most_epsilon is None else f"; {most_epsilon:g} is the most"
        say(f"{one.data or folder}: epsilon {lost} at delta {delta:g}{left}")
        columns = ["coordinator", "run", "device", "rounds", "answers", "zcdp", "rounds_left"]
        say_table(columns, [[run[name] for name in columns] for run in shown["runs"]])
    if not ledgers:
        say("No data of this user has been in a round yet.")


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


# ------------------------------------------------------------ device keys
# ``quorate device show | rotate | leave``: a device's id, key and certificate.
#
# This file prints lines. ``http.authority`` does the work.


@app.command(
    help="Show this device's id, key and certificate, its authority, and its coordinator.",
    epilog="Example: quorate device show --folder quorate-device",
)
def show(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    _require(folder)
    from client_sdk.device.storage import read_record

    shown = _shown(read_record(folder))
    if as_json:
        say_json(shown)
        return
    width = max(len(name) for name in shown)
    for name, value in shown.items():
        say(f"{name.replace('_', ' ').ljust(width)}  {'-' if value is None else value}")


@app.command(
    help="Replace this device's key by a new one under the same id; the old one is revoked. Stop the device first. "
    "What it has signed in secure rounds stays remembered.",
    epilog="Example: quorate device rotate --folder quorate-device",
)
def rotate(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    _require(folder)
    from client_sdk.device.storage import FileStorage
    from client_sdk.http.authority import rotate as rotate_key

    with FileStorage(folder) as storage:
        shown = _shown(rotate_key(storage, pause=_wait))
    show_answer(
        {"kind": "rotated", **shown},
        f"{shown['id']} has another key now, {shown['key']}; its old key is revoked.",
        "The coordinator learns of it when this device runs again.",
        as_json=as_json,
    )


@app.command(
    help="Leave: the coordinator and the authority forget this device, and its key, certificate, update, "
    "states and checkpoints are deleted here. Says what is kept. Stop the device first.",
    epilog="Example: quorate device leave --folder quorate-device",
)
def leave(
    folder: Folder = DEFAULT_FOLDER,
    without_coordinator: Annotated[
        bool,
        typer.Option(
            "--without-coordinator", help="The coordinator is gone: leave without telling it. The key is revoked."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    _require(folder)
    from client_sdk.device.storage import FileStorage
    from client_sdk.http.authority import Kept
    from client_sdk.http.authority import leave as leave_all
    from client_sdk.protocol.problems import ProblemError

    left = folder / "left.json"
    with FileStorage(folder) as storage:
        before = storage.load() is None and left.is_file()
        if before:
            kept = Kept(**json.loads(left.read_text("utf-8")))
        else:
            try:
                kept = leave_all(storage, without_coordinator=without_coordinator)
            except ProblemError as error:
                fail(
                    f"{error} Nothing was deleted here; leave again later. Where the coordinator is gone for good, "
                    "leave --without-coordinator."
                )
            left.write_text(json.dumps(asdict(kept)), "utf-8")
    show_answer(
        {"kind": "left", "kept": asdict(kept)},
        f"This device has left{' before' * before}. Its key, certificate, update and checkpoints are deleted. What is "
        "kept:",
        *(f"  {line}" for line in (kept.here, kept.coordinator, kept.authority)),
        as_json=as_json,
    )


def _shown(record: Record | None) -> dict[str, Any]:
    """What ``show`` prints: the fields of a device, None where it has none."""
    from client_sdk.credentials.certificate import Certificate
    from client_sdk.http.driver import date_of
    from client_sdk.identity import key_of

    certificate = (
        Certificate.parse(bytes.fromhex(record.certificate)) if record is not None and record.certificate else None
    )
    key = key_of(record.key_seed) if record is not None else None
    authority = record.authority if record is not None else None
    public = key.public_hex if key is not None else certificate.public_key.hex() if certificate is not None else None
    return {
        "id": certificate.id if certificate is not None else None,
        "key": public,
        "valid_until": date_of(certificate.not_after) if certificate is not None else None,
        "authority": authority.url if authority is not None else None,
        "authority_key_sha256": authority.digest if authority is not None else None,
        "coordinator": record.coordinator or None if record is not None else None,
        "registered": record is not None and record.registered is not None,
        "next_key": record is not None and bool(record.next_key_seed),
    }


def _wait(sleep: Sleep) -> None:
    import time

    note(f"{sleep.reason} Trying again in {sleep.max_s:.0f} s; Ctrl-C stops, and the next start goes on.")
    time.sleep(sleep.max_s)


def _require(folder: Path) -> None:
    if not folder.is_dir():
        fail(f"There is no device in {folder}; name its folder with --folder.")
