"""The commands behind the word ``quorate``: the device's own, and those of the other rooms where they are installed.

This file knows the names of the rooms' commands and which extra each needs; it imports no room. The others are found by
entry points of the group ``quorate.commands`` (value: a typer app, whose commands and sub-apps are added at top level),
and only when one of their commands is called or listed. Where a room is not installed its commands still exist and say
what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as click_command_of

from client_sdk.commands.device import app as device_app
from client_sdk.commands.evaluate import evaluate
from client_sdk.commands.secagg import app as secagg_app
from client_sdk.imports.shadowing import Shadowed, check
from client_sdk.terminal import complain, missing_module, say, sentence_of, spoken

GROUP = "quorate.commands"

ROOMS: dict[str, dict[str, str]] = {
    "coordinator": {
        "serve": "Run a coordinator.",
        "run": "Create, show, pause, resume and stop runs.",
        "status": "Show what a coordinator is doing.",
        "rounds": "List the rounds of a run.",
        "checkpoint": "List and download checkpoints.",
        "devices": "List enrolled devices.",
        "worker": "Register, list and revoke a datacenter's workers.",
    },
    "datacenter": {
        "datacenter": "Train on a datacenter's machines, alone or as a run's worker.",
    },
    "simulation": {
        "demo": "Watch a whole federation learn on this machine.",
        "fleet": "Run many devices in a few processes.",
        "simulate": "Run a plan on simulated clients.",
    },
}
"""Room, which is also the name of its entry point and of its extra -> its commands, and what each does."""


class Rooms(TyperGroup):
    """A group whose commands are the device's own and, loaded when asked for, those of the other rooms."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = sorted(super().list_commands(ctx))
        for room, commands in ROOMS.items():
            found = _room(room)
            names += [name for name in (found or commands) if name not in names]
        for room in _other_rooms():
            names += [name for name in _room(room) or {} if name not in names]
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        likely = [room for room, commands in ROOMS.items() if cmd_name in commands]
        others = [room for room in [*ROOMS, *_other_rooms()] if room not in likely]
        for room in [*likely, *others]:
            found = _room(room)
            if found is not None and cmd_name in found:
                return found[cmd_name]
        return _placeholder(likely[0], cmd_name) if likely else None


app = typer.Typer(
    cls=Rooms,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Quorate: federated learning. A round counts when it is quorate.",
    epilog="Example: quorate serve, then in another terminal: quorate device --data mnist --enrolment-token TOKEN",
)
app.add_typer(device_app, name="device")
app.add_typer(secagg_app, name="secagg")
app.command("evaluate")(evaluate)


def _version(asked: bool) -> None:
    if asked:
        say(f"quorate {version('quorate')}")
        raise typer.Exit


@app.callback()
def _quorate(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Quorate: federated learning. A round counts when it is quorate."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command. An error of any room's command is shown as one sentence; exit codes 0, 1 and 2."""
    try:
        check()
    except Shadowed as hidden:
        complain(str(hidden))
        sys.exit(1)
    command = click_command_of(app)
    try:
        code = spoken(command)(args=arguments, prog_name="quorate", standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 1
    except Exception as error:  # noqa: BLE001  (of the command line: ``spoken`` lets nothing else through)
        code = getattr(error, "exit_code", 2)
        wrong_usage(error)
    sys.exit(code if isinstance(code, int) else 0)


def wrong_usage(error: Any) -> None:
    """Tells what is wrong with the words after ``quorate``, in one line with the command whose help tells more; shows
    the help where no word was given.

    ``error`` is click's ClickException, which typer brings in one way or another, so it is known by its methods.
    """
    if type(error).__name__ == "NoArgsIsHelpError" or not hasattr(error, "format_message"):
        error.show()
        return
    words = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    complain(f"{words} See '{context.command_path} --help'." if context is not None else words)


_rooms: dict[str, dict[str, Any] | None] = {}


def _room(room: str) -> dict[str, Any] | None:
    """The room's commands by name; None where it, or something it needs, is not installed."""
    if room not in _rooms:
        _rooms[room] = None
        for entry in _entries(room):
            try:
                loaded = click_command_of(entry.load())
            except ModuleNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001  (another room's fault must not take the device's commands away)
                complain(f"The commands of {room} cannot be loaded: {sentence_of(error)}")
                continue
            _rooms[room] = dict(getattr(loaded, "commands", {loaded.name: loaded}))
    return _rooms[room]


def _entries(room: str) -> Iterator[EntryPoint]:
    yield from entry_points(group=GROUP, name=room)


def _other_rooms() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=GROUP)} - set(ROOMS))


def _placeholder(room: str, name: str) -> Any:
    """A command of a room that is not installed: takes anything, and says which extra to install."""
    absent = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    wanted = f"quorate {name} is not installed here: pip install 'quorate[{room}]'"

    @absent.command(
        name,
        help=f"{ROOMS[room][name]} (Needs the extra {room!r}.)",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def say_so(context: typer.Context) -> None:
        for entry in _entries(room):
            try:
                entry.load()
            except ModuleNotFoundError as error:
                complain(f"{wanted} ({missing_module(error.name or room)})")
                raise typer.Exit(1) from None
        complain(wanted)
        raise typer.Exit(1)

    return click_command_of(absent)


if __name__ == "__main__":
    main()
