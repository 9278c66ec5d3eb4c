"""How every command of ``quorate`` speaks: plain lines or JSON, errors as one sentence with the fix, exit codes 0, 1
and 2.

This file knows terminals. It has never heard of what any command does.

Exit codes: 0 done; 1 it could not be done, one sentence on standard error says why; 2 the command was called wrongly.
With ``--json`` standard output carries JSON only, one value a line, and errors are the same sentence on standard error.
With ``QUORATE_DEBUG=1`` errors show their traceback too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from client_sdk.protocol.names import message_of
from client_sdk.protocol.problems import ProblemError

DEFAULT_URL = "http://127.0.0.1:8470"
"""Where ``quorate serve`` listens when nothing else is said."""

Url = Annotated[
    str,
    typer.Option("--coordinator", "--url", envvar="QUORATE_URL", metavar="URL", help="The coordinator's address."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line, instead of text.")]

_MODULE_EXTRAS = {
    "torch": "torch",
    "alembic": "coordinator",
    "fastapi": "coordinator",
    "prometheus_client": "coordinator",
    "psycopg": "coordinator",
    "pydantic_settings": "coordinator",
    "rich": "coordinator",
    "sqlalchemy": "coordinator",
    "starlette": "coordinator",
    "structlog": "coordinator",
    "uvicorn": "coordinator",
    "psutil": "datacenter",
    "pytorch_optimizer": "datacenter",
    "pooch": "datasets",
    "pyarrow": "datasets",
    "unearth": "datasets",
    "matplotlib": "simulation",
    "pandas": "simulation",
    "coordinator": "coordinator",
    "simulation": "simulation",
}
"""Module -> an extra that declares it; tests/packaging/test_dependencies.py holds it to pyproject.toml."""

P = ParamSpec("P")
R = TypeVar("R")


class Failure(Exception):
    """It could not be done: one plain sentence, with the fix where there is one."""


def fail(sentence: str) -> NoReturn:
    """End the command with exit code 1 and this sentence."""
    raise Failure(sentence)


def spoken(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose errors are sentences. Goes under ``@app.command()``; ``main`` of ``client_sdk.cli`` does the same
    for all.

    Failure, problem documents, connection errors, refused values (ValueError), the disk's errors and the rooms' own
    errors are told in one sentence; a missing module names its extra; Ctrl-C ends with 130, a
    reader of the output that went away with 141, both silently. Anything else is a bug,
    told as such.
    """

    @wraps(command)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever read the output has seen enough, as in `quorate rounds mnist | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except Exception as error:
            if _of_the_command_line(error):
                raise
            if os.environ.get("QUORATE_DEBUG"):
                traceback.print_exc()
            complain(sentence_of(error))
            raise typer.Exit(1) from None

    return speaking


def complain(sentence: str) -> None:
    """What went wrong, on standard error."""
    note(f"Error: {sentence}")


def note(sentence: str) -> None:
    """Something beside the result, on standard error."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def sentence_of(error: Exception) -> str:
    """What people are told of an error."""
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
    module = type(error).__module__.partition(".")[0]
    if module in ("httpx2", "httpcore2"):
        return f"The coordinator did not answer ({' '.join(str(error).split()) or type(error).__name__})."
    words = " ".join(str(error).split())
    if isinstance(error, ValueError) or module in ("client_sdk", "coordinator", "simulation", "dashboards"):
        return words or type(error).__name__
    return f"A bug in quorate, please report it: {type(error).__name__}: {words} (QUORATE_DEBUG=1 shows where)."


def missing_module(name: str) -> str:
    """Which extra to install for a module that is not there."""
    top = name.partition(".")[0]
    extra = _MODULE_EXTRAS.get(top)
    if extra is None:
        return f"The Python module {name} is not installed; install the package that has it."
    return f"This needs {top}, which is not installed: pip install 'quorate[{extra}]'"


def say(line: str) -> None:
    """A line of text on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """A value, a message or a list of messages as one line of JSON on standard output, at once."""
    say(json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Messages as what JSON knows, inside lists and mappings too."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "Nothing yet.") -> None:
    """A table in aligned columns of plain text, the same on a terminal and in a file; ``empty`` where there is no
    row."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        say(empty)
        return
    widths = [max(len(name), *(len(row[place]) for row in cells)) for place, name in enumerate(columns)]
    for line in [list(columns), *cells]:
        say("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    """On one line, and nothing that a terminal obeys: labels and reasons come from devices and workers."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _of_the_command_line(error: Exception) -> bool:
    """Whether typer and click handle it themselves: exits, and wrong usage."""
    return isinstance(error, typer.Exit | typer.Abort) or type(error).__module__.partition(".")[0] in ("click", "typer")
