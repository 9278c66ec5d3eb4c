"""The command by which a torchrun group takes part in a federation as one device.

::

    torchrun --nproc-per-node 2 -m client_sdk.learning.collective --data mine.npz --coordinator URL

It starts the device's session on rank 0 and the followers on the other ranks. The options are those of
``quorate device``, in ``commands.joining``; ``group_trainer`` trains the ranks together. Needs the extra ``torch``.
Only rank 0 prints.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from client_sdk.commands.joining import Joining, takes_options
from client_sdk.commands.long_running import log_plainly, say_stopped, use_threads
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.commands.token_file import SENTENCE as TOKEN_IS_SHOWN
from client_sdk.commands.token_file import token_is_shown
from client_sdk.terminal import DEFAULT_URL, Json, errors_as_sentences, fail, print_error, speak_as, start

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    help="Take part in a federation as one device made of all processes of this torchrun group.",
    epilog="Example: torchrun --nproc-per-node 2 --max-restarts 3 -m client_sdk.learning.collective "
    "--token-file device.token --data mine.npz --coordinator " + DEFAULT_URL,
)
@errors_as_sentences
@takes_options
def group(
    joining: Joining,
    device: Annotated[str, typer.Option(help="cpu, cuda (one GPU a process), or auto.")] = "auto",
    hang_s: Annotated[
        float, typer.Option(min=1, help="Seconds after which a process that is silent breaks the group.")
    ] = 300.0,
    shard_model: Annotated[
        str, typer.Option(help="What is divided over the processes: none, gradients (and optimizer), or full.")
    ] = "none",
    as_json: Json = False,
) -> None:
    use_threads(joining.threads)
    from client_sdk.learning.group import GroupLost, RankFailed, joined
    from client_sdk.learning.group_trainer import SHARDS, GroupTrainer, follow

    speak_as(joining.name)
    try:
        with joined(device, hang_s) as ranks:
            error: Exception | None = None
            catalogue: Any = None
            loaded: Any = None
            try:
                if shard_model not in SHARDS:
                    fail(f"--shard-model is one of {', '.join(SHARDS)}, not {shard_model!r}.")
                catalogue, loaded = joining.prepare()
            except Exception as found:  # noqa: BLE001  (sent to all ranks, and raised by one of them)
                error = found
            ranks.agree(error)
            if ranks.rank != 0:
                follow(ranks, catalogue, loaded)
                return
            log_plainly("quorate.device")
            with joining.storage() as storage, stopped_by_signals() as stop:
                trainer = GroupTrainer(ranks, catalogue, loaded, stop, shard_model)
                try:
                    ended = joining.take_part(f"This group of {ranks.world}", storage, trainer, stop, as_json)
                finally:
                    trainer.close()
                if trainer.broke is not None:
                    raise trainer.broke
    except (RankFailed, GroupLost) as stopped:
        if isinstance(stopped, GroupLost):
            print_error(str(stopped))
        sys.stderr.flush()
        raise typer.Exit(1) from None
    say_stopped(ended, as_json, "'quorate device history' lists them.")


def main() -> None:
    """Run the command and exit the process."""
    from client_sdk.commands.long_running import exit_process

    start(sys.argv[1:])
    if token_is_shown(sys.argv[1:]):
        print_error(TOKEN_IS_SHOWN)
        exit_process(1)
    try:
        app(prog_name="python -m client_sdk.learning.collective")
    except SystemExit as over:
        exit_process(over.code if isinstance(over.code, int) else int(over.code is not None))


if __name__ == "__main__":
    main()
