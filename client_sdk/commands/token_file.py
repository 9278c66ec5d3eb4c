"""The enrolment token of a command: from a file, from standard input or from the environment, never from its arguments.

Every user of a machine can read the arguments of every process.

::

    --token-file FILE           the first line of the file; ``-`` is standard input
    QUORATE_ENROLMENT_TOKEN     the text of the token, where no file is named
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from client_sdk.terminal import fail, note

VARIABLE = "QUORATE_ENROLMENT_TOKEN"
_LONGEST = 4096
"""Bytes that are read of a file: a token is shorter, and a wrong file may be large."""
_SHOWN = re.compile(r"--enrolment-token(=.*)?|(--[a-z-]+=)?qe1_[A-Za-z0-9_-]{40,}", re.DOTALL)
SENTENCE = (
    "An enrolment token on a command line can be read by every user of this machine: put it into a file with mode 0600 "
    f"and give --token-file FILE, or set {VARIABLE}."
)

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="A file with an enrolment token, which 'quorate authority token' makes; - reads it from standard input. "
        f"Needed once. (default: the token in {VARIABLE})",
    ),
]


def token_is_shown(arguments: Sequence[str]) -> bool:
    """Whether a command line holds an enrolment token, or the former option for one."""
    return any(_SHOWN.fullmatch(word) for word in arguments)


def enrolment_token(file: Path | None, *, enrolled: bool = False) -> str | None:
    """The text of the token in this file, or else in the environment; None where neither is given, and where who is
    ``enrolled`` names a file that is not there any more, or an empty standard input.

    Failure, which does not show the content, where the file cannot be read or is empty, and where there is no token in
    it. Prints a note where other users can read the file.
    """
    if file is None:
        given = os.environ.get(VARIABLE, "").strip()
        return _checked(given, VARIABLE) if given else None
    if str(file) == "-":
        where, line = "standard input", _first_line_of_input()
    else:
        where, line = f"the token file {file}", "" if enrolled and _is_gone(file) else _first_line(file)
    if not line and enrolled:
        return None
    if not line:
        fail(f"There is no enrolment token in {where}: its first line is empty.")
    return _checked(line, where)


def _first_line_of_input() -> str:
    try:
        return sys.stdin.readline(_LONGEST).strip()
    except UnicodeDecodeError:
        fail("There is no enrolment token in standard input: it is not text.")


def _is_gone(file: Path) -> bool:
    return not _SHOWN.match(str(file)) and not file.expanduser().exists()


def _first_line(file: Path) -> str:
    if _SHOWN.match(str(file)):
        fail(SENTENCE)
    try:
        with file.expanduser().open("rb") as opened:
            found = os.fstat(opened.fileno())
            line = opened.readline(_LONGEST).decode("ascii").strip()
    except OSError as error:
        fail(f"The token file {file} cannot be read: {error.strerror or 'an error of the disk'}.")
    except UnicodeDecodeError:
        fail(f"There is no enrolment token in the token file {file}: it is not ASCII.")
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        note(f"Others can read or write the token file {file}: make it its owner's only, by chmod 600.")
    return line


def _checked(text: str, where: str) -> str:
    from client_sdk.credentials.enrolment_token import EnrolmentToken
    from client_sdk.credentials.errors import BadCredential

    try:
        return EnrolmentToken.parse(text).text
    except BadCredential as error:
        fail(f"In {where}: {error}")
