"""The output of all commands of ``quorate``: plain lines or JSON, errors as one sentence with the fix, exit codes 0, 1
and 2.

Exit codes: 0 success; 1 failure, with one sentence on standard error; 2 wrong usage. With ``--json`` standard output
holds only JSON, one value a line, and the error is a line of JSON on standard error. ``QUORATE_DEBUG=1`` adds
tracebacks.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TextIO, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from typer.core import TyperGroup

from client_sdk.imports.extras import brings, included, lacking
from client_sdk.protocol.names import message_of
from client_sdk.protocol.problems import ProblemError

DEFAULT_URL = "http://127.0.0.1:8470"
"""The default address of ``quorate serve``."""

Url = Annotated[
    str,
    typer.Option("--coordinator", "--url", envvar="QUORATE_URL", metavar="URL", help="The coordinator's address."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="QUORATE_KEY_FILE",
        metavar="FILE",
        help="A file with your API key (default: QUORATE_API_KEY, or the key of your coordinator on this machine).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line, instead of text.")]

_MODULE_EXTRAS = {
    "torch": "torch",
    "alembic": "coordinator",
    "fastapi": "coordinator",
    "httptools": "coordinator",
    "jwt": "coordinator",
    "prometheus_client": "coordinator",
    "psycopg": "coordinator",
    "pydantic_settings": "coordinator",
    "rich": "coordinator",
    "sqlalchemy": "coordinator",
    "starlette": "coordinator",
    "structlog": "coordinator",
    "opentelemetry": "otel",
    "uvicorn": "coordinator",
    "flwr": "flower",
    "ray": "ray",
    "psutil": "datacenter",
    "safetensors": "datacenter",
    "pooch": "datasets",
    "pyarrow": "datasets",
    "unearth": "datasets",
    "matplotlib": "plot",
    "pytest": "testing",
    "pandas": "simulation",
    "coordinator": "coordinator",
    "simulation": "simulation",
}
"""Module -> an extra that declares it; tests/packaging/test_dependencies.py compares it with pyproject.toml."""

P = ParamSpec("P")
R = TypeVar("R")


class Failure(Exception):
    """A command failed: one plain sentence, with the fix where there is one."""


def fail(sentence: str) -> NoReturn:
    """End the command with exit code 1 and this sentence."""
    raise Failure(sentence)


def errors_as_sentences(command: Callable[P, R]) -> Callable[P, R]:
    """A decorator for a command that prints errors as sentences. ``ErrorsAsSentences`` applies it to all of a group.

    Failure, problem documents, connection errors, rejected values (ValueError), OSError and this project's own errors
    become one sentence; a missing module names its extra. Ctrl-C exits with 130 and a closed output pipe with 141,
    both silently. Any other error is reported as a bug.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of the output has closed it, as in `quorate rounds mnist | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except Exception as error:
            if _of_the_command_line(error):
                raise
            if os.environ.get("QUORATE_DEBUG"):
                traceback.print_exc()
            print_error(sentence_of(error))
            raise typer.Exit(1) from None

    return wrapped


class ErrorsAsSentences(TyperGroup):
    """A group of commands, and of groups below it, whose errors are printed as sentences."""

    def invoke(self, ctx: Any) -> Any:
        return errors_as_sentences(super().invoke)(ctx)


@dataclass(slots=True)
class _Style:
    """How this process prints; ``start`` sets it for each command."""

    errors_in_json: bool = False
    speaker: str = ""
    extra: str = ""


_style = _Style()


def start(arguments: Sequence[str]) -> None:
    """Prepare the output for a command with these arguments.

    With ``--json`` errors are JSON too. Characters that the terminal's encoding lacks are printed as escapes.
    """
    global _style
    given = list(arguments)
    _style = _Style(errors_in_json="--json" in given[: given.index("--") if "--" in given else None])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def speak_as(name: str) -> None:
    """Begin each line of text with this name, until the command ends: several devices may share a terminal."""
    _style.speaker = name


def needs_extra(extra: str) -> None:
    """Have a missing module name this extra, where it brings the module, until the command ends."""
    _style.extra = extra


def spoken_by() -> dict[str, str]:
    """The field of a line of JSON that names the device; nothing where none speaks."""
    return {"device": _style.speaker} if _style.speaker else {}


def print_error(sentence: str) -> None:
    """Print an error on standard error: ``Error: ...``, or ``{"kind": "error", "text": ...}`` with ``--json``; of a
    device with its name."""
    if _style.errors_in_json:
        _write(sys.stderr, _json({**spoken_by(), "kind": "error", "text": sentence}))
    else:
        _write(sys.stderr, f"Error: {_spoken(sentence)}")


def note(sentence: str) -> None:
    """Print a line that is not part of the result on standard error."""
    _write(sys.stderr, _spoken(sentence))


def _spoken(line: str) -> str:
    return f"{cell(_style.speaker)}: {line}" if _style.speaker else line


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def sentence_of(error: Exception) -> str:
    """The text of an error, for people."""
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and _of_the_command((cause.name or "").partition(".")[0]):
        return missing_module(cause.name or "")  # such as a learner that needs torch
    match error:
        case ProblemError() | Failure():
            return str(error)
        case ModuleNotFoundError():
            return missing_module(error.name or "")
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return f"{where}: {message_of(first)}." if where else f"{message_of(first)}."
        case OSError():
            what = f" {error.filename}" if error.filename else ""
            return f"{error.strerror or error}:{what}." if what else f"{error.strerror or error}."
        case _:
            return _by_module(error)


def _by_module(error: Exception) -> str:
    """The text of an error of a library, of one of our modules, or of a bug."""
    module = type(error).__module__.partition(".")[0]
    if module in ("httpx2", "httpcore2"):
        return f"The coordinator did not answer ({' '.join(str(error).split()) or type(error).__name__})."
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) or module in ("client_sdk", "coordinator", "simulation", "dashboards"):
        return text or type(error).__name__
    return f"A bug in quorate, please report it: {type(error).__name__}: {text} (QUORATE_DEBUG=1 shows where)."


def missing_module(name: str) -> str:
    """The text that names the extra to install for a missing module: the command's, with all that it lacks."""
    top = name.partition(".")[0]
    extra = _MODULE_EXTRAS.get(top)
    if extra is None:
        return f"The Python module {name} is not installed; install the package that has it."
    names = [top]
    if _of_the_command(top):
        extra = _style.extra
        names = list(lacking(extra)) or names
    which = f"{', '.join(names)}, which {'is' if len(names) == 1 else 'are'} not installed"
    return f"This needs {which}: pip install 'quorate[{extra}]'"


def _of_the_command(module: str) -> bool:
    """Whether the command's extra brings the module."""
    if not _style.extra or module not in _MODULE_EXTRAS:
        return False
    try:
        return _MODULE_EXTRAS[module] in included(_style.extra) or brings(_style.extra, module)
    except PackageNotFoundError:  # it runs from a folder that is not installed
        return False


def say(line: str) -> None:
    """Print a line of text on standard output, flushed."""
    _write(sys.stdout, _spoken(line))


def say_json(value: Any) -> None:
    """Print a value, a message or a list of messages as one line of JSON on standard output, flushed."""
    _write(sys.stdout, _json(value))


def _json(value: Any) -> str:
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """Messages as JSON values, also inside lists and mappings."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def show_answer(found: Any, *lines: str, as_json: bool) -> None:
    """Print what was done or found as lines of text; with ``as_json`` this value in their place."""
    if as_json:
        say_json(found)
        return
    for line in lines:
        say(line)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "Nothing yet.") -> None:
    """Print a table in aligned columns of plain text, the same on a terminal and in a file; ``empty`` where there is no
    row."""
    cells = [[cell(value) for value in row] for row in rows]
    if not cells:
        say(empty)
        return
    widths = [max(len(name), *(len(row[place]) for row in cells)) for place, name in enumerate(columns)]
    for line in [list(columns), *cells]:
        say("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def cell(value: object) -> str:
    """A value on one line, without control characters: labels and reasons come from devices and workers."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def span(seconds: float) -> str:
    """A duration as text: 48 s, 3 min 05 s, 2 h 04 min, 3 d 02 h."""
    whole = round(seconds)
    if whole < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


class TimeLeft:
    """How long the rest of some work takes, if it goes on as since the first call of ``of``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[float, float] | None = None

    def of(self, done: float, wanted: float) -> str:
        """``, 3 min 05 s left`` once ``done`` of ``wanted`` are; empty where that cannot be known yet, or nothing is
        left."""
        now = self._clock()
        if self._began is None:
            self._began = (done, now)
        first, began = self._began
        if done <= first or done >= wanted:
            return ""
        return f", {span((now - began) / (done - first) * (wanted - done))} left"


def _of_the_command_line(error: Exception) -> bool:
    """Whether typer and click handle the error themselves: exits, and wrong usage."""
    return isinstance(error, typer.Exit | typer.Abort) or type(error).__module__.partition(".")[0] in ("click", "typer")
