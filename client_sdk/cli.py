"""The command line ``quorate``: the device's commands, and those of the other packages where they are installed.

This file lists the other packages' commands and the extra that each needs, and imports none of them. It finds them by
entry points of the group ``quorate.commands`` (value: a typer app, whose commands and sub-apps are added at top level)
when one of their commands is called or listed. Commands of a package that is not installed print what to install.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperOption
from typer.main import get_command as click_command_of

from client_sdk.commands.device import app as device_app
from client_sdk.commands.doctor import doctor
from client_sdk.commands.evaluate import evaluate
from client_sdk.commands.secagg import app as secagg_app
from client_sdk.commands.token_file import SENTENCE as TOKEN_IS_SHOWN
from client_sdk.commands.token_file import token_is_shown
from client_sdk.extensions import installed_version
from client_sdk.imports import Shadowed, check, end_uncollected, uncollected
from client_sdk.terminal import (
    ErrorsAsSentences,
    errors_as_sentences,
    missing_module,
    needs_extra,
    print_error,
    say,
    sentence_of,
    start,
)

GROUP = "quorate.commands"

ROOMS: dict[str, dict[str, str]] = {
    "coordinator": {
        "serve": "Run a coordinator.",
        "plan": "Check a plan, and what its rounds need.",
        "run": "Create, show, pause, resume and stop runs.",
        "status": "Show what a coordinator is doing.",
        "rounds": "List the rounds of a run.",
        "metrics": "List a run's metrics by checkpoint.",
        "plot": "Draw a run into a file.",
        "checkpoint": "List and download checkpoints.",
        "devices": "List the registered devices.",
        "events": "Print a run's log.",
        "keys": "Create, list and revoke API keys of operators.",
        "audit": "Print what operators asked for.",
        "verify": "Check a database and its files against the invariants and the log.",
        "worker": "List and revoke a datacenter's workers.",
        "report": "Report what the models of a private run tell, or verify such a report.",
        "authority": "Make, serve and operate an authority, which certifies devices and workers.",
    },
    "datacenter": {
        "datacenter": "Train on a datacenter's machines, alone or as a run's worker.",
    },
    "flower": {
        "flower": "Run Flower apps on devices or simulated nodes.",
    },
    "simulation": {
        "ask": "Answer a question about a fleet in virtual time.",
        "demo": "Watch a whole federation learn on this machine.",
        "fleet": "Run many devices in a few processes.",
        "new": "Start a project: a learner, a plan, data and a test.",
        "privacy": "Differential privacy: what noise is worth.",
        "record": "Record a run's devices, to play them again.",
        "simulate": "Run a plan on simulated clients.",
    },
    "dashboards": {
        "dashboard": "Show the dashboard of a coordinator that is somewhere else.",
    },
}
"""Name of the package's entry point and extra -> its commands, each with its help text."""


class Rooms(ErrorsAsSentences):
    """The device's commands and, loaded on demand, those of the other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = sorted(super().list_commands(ctx))
        for room, commands in ROOMS.items():
            found = _room(room)
            names += [name for name in (found or commands) if name not in names]
        for room in _other_rooms():
            names += [name for name in _room(room) or {} if name not in names]
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = self._found(ctx, cmd_name)
        return literal(with_ca(found)) if found is not None else None

    def _found(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        likely = [room for room, commands in ROOMS.items() if cmd_name in commands]
        for room in _likely_first(likely):
            found = _room(room)
            if found is not None and cmd_name in found:
                return found[cmd_name]
        return _placeholder(likely[0], cmd_name) if likely else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first argument; for an unknown one the error names the most similar ones."""
        try:
            found = super().resolve_command(ctx, args)
            needs_extra(next((room for room in ROOMS if args[0] in (_rooms.get(room) or {})), ""))
            return found
        except Exception as error:
            near = get_close_matches(args[0], self.list_commands(ctx)) if args else []
            if near and hasattr(error, "message"):
                error.message = f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?"
            raise


app = typer.Typer(
    cls=Rooms,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Quorate: federated learning. A round counts when it is quorate.",
    epilog="Example: quorate serve, then in another terminal: quorate device --data mnist --token-file FILE",
)
app.add_typer(device_app, name="device")
app.add_typer(secagg_app, name="secagg")
app.command("evaluate")(evaluate)
app.command("doctor")(doctor)


def _version(asked: bool) -> None:
    if asked:
        say(f"quorate {installed_version()}")
        raise typer.Exit


@app.callback()
def _quorate(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Quorate: federated learning. A round counts when it is quorate."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command. An error is printed as one sentence; the exit code is 0, 1 or 2."""
    given = sys.argv[1:] if arguments is None else arguments
    end_uncollected()
    start(given)
    if token_is_shown(given):
        print_error(TOKEN_IS_SHOWN)
        sys.exit(1)
    try:
        check()
    except Shadowed as hidden:
        print_error(str(hidden))
        sys.exit(1)
    command = click_command_of(app)
    try:
        code = errors_as_sentences(command)(args=arguments, prog_name="quorate", standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 1
    except Exception as error:  # noqa: BLE001  (a usage error: ``errors_as_sentences`` handles all others)
        code = getattr(error, "exit_code", 2)
        wrong_usage(error)
    finally:
        start([])
    sys.exit(code if isinstance(code, int) else 0)


def wrong_usage(error: Any) -> None:
    """Print a usage error in one line that names the command's ``--help``; print the help where no argument was given.

    ``error`` is click's ClickException, recognised by its methods, since typer may bring its own copy of click.
    """
    if type(error).__name__ == "NoArgsIsHelpError" or not hasattr(error, "format_message"):
        error.show()
        return
    text = _once(" ".join(error.format_message().split()))
    context = getattr(error, "ctx", None)
    print_error(f"{text} See '{context.command_path} --help'." if context is not None else text)


def _once(text: str) -> str:
    """A usage error with one list of near names: typer gives one, and click another in other words."""
    first, question, _ = text.partition("?")
    return first + question if " Did you mean " in first and question else text


_rooms: dict[str, dict[str, Any] | None] = {}


def _room(room: str) -> dict[str, Any] | None:
    """The package's commands by name; None where it, or a dependency of it, is not installed."""
    if room not in _rooms:
        _rooms[room] = None
        for entry in _entries(room):
            try:
                with uncollected():
                    loaded = click_command_of(entry.load())
            except ModuleNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001  (an error in another package must not disable the device's commands)
                print_error(f"The commands of {room} cannot be loaded: {sentence_of(error)}")
                continue
            _rooms[room] = dict(getattr(loaded, "commands", {loaded.name: loaded}))
    return _rooms[room]


def _entries(room: str) -> Iterator[EntryPoint]:
    yield from entry_points(group=GROUP, name=room)


def _other_rooms() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=GROUP)} - set(ROOMS))


def _likely_first(likely: list[str]) -> Iterator[str]:
    """All rooms, the likely ones first. Those of other packages are looked up where no other has the command."""
    yield from likely
    yield from (room for room in ROOMS if room not in likely)
    yield from _other_rooms()


def _placeholder(room: str, name: str) -> Any:
    """A command of a package that is not installed: accepts any arguments and prints the extra to install."""
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
                print_error(f"{wanted} ({missing_module(error.name or room)})")
                raise typer.Exit(1) from None
        print_error(wanted)
        raise typer.Exit(1)

    return click_command_of(absent)


# ------------------------------------------------------------ what every command gets

_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?\])")
"""What rich takes for a tag, as in its own ``rich.markup.escape``, which takes long to import."""
_TEXTS = ("help", "short_help", "epilog")


def literal(command: Any) -> Any:
    """The command, or the group and all of its commands, with texts in which rich finds no tags: typer hands help texts
    to rich, which would take ``[secure]`` for a style. May be called again for the same command."""
    if getattr(command, "rich_markup_mode", None) == "rich" and not hasattr(command, "texts_are_literal"):
        command.texts_are_literal = True
        for holder in (command, *command.params):
            for name in _TEXTS:
                if text := getattr(holder, name, None):
                    setattr(holder, name, _TAG.sub(r"\1\1\\\2", text))
    for inner in getattr(command, "commands", {}).values():
        literal(inner)
    return command


_ADDRESS = "--coordinator"
_VARIABLE = "QUORATE_CA"


def with_ca(command: Any) -> Any:
    """The command, or the group and all of its commands, with ``--ca FILE`` beside ``--coordinator``: whose
    certificates are trusted.

    It is added in one place when a command is looked up, so that no command can lack it. The file goes into QUORATE_CA,
    where ``http.transport.open_http`` finds it, also in processes that the command starts.
    """
    for inner in getattr(command, "commands", {}).values():
        with_ca(inner)
    names = {option for parameter in command.params for option in parameter.opts}
    if _ADDRESS in names and "--ca" not in names:
        after = next(place for place, parameter in enumerate(command.params) if _ADDRESS in parameter.opts)
        command.params.insert(after + 1, _option())
    return command


def _option() -> TyperOption:
    return TyperOption(
        param_decls=["--ca"],
        metavar="FILE",
        envvar=_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_take,
        help="The certificate of the private authority that vouches for the coordinator's, in PEM form.",
    )


def _take(context: Any, parameter: Any, file: str | None) -> None:
    """Checks the file before the command begins. ValueError where it holds no certificate."""
    if file:
        from client_sdk.http.transport import trust

        trust(file)
        os.environ[_VARIABLE] = str(Path(file).absolute())


if __name__ == "__main__":
    main()
