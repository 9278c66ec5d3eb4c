"""A torchrun group takes part in a federation as one device: the command behind ``client_sdk.learning.collective``.

This file reads options, starts ``Client`` on rank 0 and the followers on the other ranks. How they train together is
``learning.collective``'s. Needs the extra ``torch``. Only rank 0 prints.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from client_sdk.commands.device import (
    DEFAULT_FOLDER,
    Folder,
    Learners,
    Share,
    Source,
    log_plainly,
    stopped_by_signals,
)
from client_sdk.terminal import DEFAULT_URL, Json, Url, complain, fail, say, say_json, spoken

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    help="Take part in a federation as one device made of all processes of this torchrun group.",
    epilog="Example: torchrun --nproc-per-node 2 --max-restarts 3 -m client_sdk.learning.collective "
    "--enrolment-token TOKEN --data mine.npz --coordinator " + DEFAULT_URL,
)
@spoken
def group(
    coordinator: Url = DEFAULT_URL,
    enrolment_token: Annotated[
        str | None,
        typer.Option("--enrolment-token", "--token", envvar="QUORATE_ENROLMENT_TOKEN", metavar="TOKEN"),
    ] = None,
    data: Source = None,
    shard: Share = None,
    learner: Learners = None,
    folder: Folder = DEFAULT_FOLDER,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds, however they end.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda (one GPU a process), or auto.")] = "auto",
    hang_s: Annotated[
        float, typer.Option(min=1, help="Seconds after which a process that is silent breaks the group.")
    ] = 300.0,
    secure_only: Annotated[
        bool, typer.Option("--secure-only", help="Take part only where updates are added under masks.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PACKAGE:NAME", help="Train only this learner; may be given several times."),
    ] = None,
    max_epochs: Annotated[
        int | None, typer.Option(min=1, help="Refuse plans that ask for more epochs a round.")
    ] = None,
    label: Annotated[str, typer.Option(help="A name that operators see, such as 'ward 7'.")] = "",
    as_json: Json = False,
) -> None:
    from client_sdk.client import Client, Happening
    from client_sdk.data import Shard, load_data
    from client_sdk.learners import catalogue_for
    from client_sdk.learning.collective import GroupTrainer, follow
    from client_sdk.learning.group import GroupLost, RankFailed, joined
    from client_sdk.protocol import Policy
    from client_sdk.storage import FileStorage

    def tell(happening: Happening) -> None:
        if as_json:
            say_json({"kind": happening.kind, "run": happening.run, "round": happening.round, "text": happening.text})
        else:
            where = f"{happening.run} round {happening.round}: " if happening.run is not None else ""
            say(where + happening.text)

    try:
        with joined(device, hang_s) as ranks:
            error: Exception | None = None
            policy = Policy(learners=tuple(allow) if allow else None, secure_only=secure_only, max_epochs=max_epochs)
            catalogue: Any = None
            loaded: Any = None
            try:
                if data is None:
                    fail("Name this device's data with --data: an installed data set, or a file such as mine.npz.")
                catalogue = catalogue_for(learner or [])
                loaded = load_data(data, Shard.parse(shard) if shard is not None else None)
            except Exception as found:  # noqa: BLE001  (told to all ranks, and raised by one of them)
                error = found
            ranks.agree(error)
            if ranks.rank != 0:
                follow(ranks, catalogue, loaded)
                return
            log_plainly()
            with FileStorage(folder) as storage, stopped_by_signals() as stop:
                trainer = GroupTrainer(ranks, catalogue, loaded, stop)
                if storage.load() is None and enrolment_token is None:
                    trainer.close()
                    fail("This device is new: give it an enrolment token with --enrolment-token.")
                try:
                    with Client(
                        coordinator,
                        storage,
                        trainer,
                        enrolment_token=enrolment_token,
                        policy=policy,
                        label=label,
                        on_happening=tell,
                    ) as client:
                        if not as_json:
                            say(
                                f"This group of {ranks.world} has {trainer.examples} examples and talks to "
                                f"{client.coordinator}. Ctrl-C stops it."
                            )
                        ended = client.run(rounds, stop)
                finally:
                    trainer.close()
                if trainer.broke is not None:
                    raise trainer.broke
    except (RankFailed, GroupLost) as stopped:
        if isinstance(stopped, GroupLost):
            complain(str(stopped))
        sys.stderr.flush()
        raise typer.Exit(1) from None
    if as_json:
        say_json({"kind": "stopped", "rounds": ended})
    else:
        say(f"Stopped after {ended} round{'' if ended == 1 else 's'}.")


def main() -> None:
    """The process's whole life."""
    app(prog_name="python -m client_sdk.learning.collective")
