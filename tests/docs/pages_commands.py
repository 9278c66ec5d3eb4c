"""The commands of ``quorate`` that stand in the pages, and what the real command line makes of them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from client_sdk.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
PLACEHOLDERS = {"...": "1", "S+V": "1", "N": "1", "LEARNER": "a:b", "DATA": "mnist", "C": "c.safetensors", "TOKEN": "t"}
"""Words that stand for a value in a page."""


@dataclass(frozen=True)
class PageCommand:
    """One command: its page, the words after ``quorate``, and whether it stands in a block, to be typed as it is."""

    page: str
    words: tuple[str, ...]
    in_block: bool

    def __str__(self) -> str:
        return f"{self.page}: quorate {' '.join(self.words)}"


@cache
def commands() -> tuple[PageCommand, ...]:
    """Every command that a page names, in order."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        name = page.relative_to(ROOT).as_posix()
        for line in lines_of_blocks(text):
            found += [PageCommand(name, words, in_block=True) for words in of_line(line)]
        outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for line in re.findall(r"`(quorate [^`\n]+)`", outside):
            found += [PageCommand(name, words, in_block=False) for words in of_line(line)]
    return tuple(found)


def lines_of_blocks(text: str) -> list[str]:
    """The lines of a page's blocks of shell commands (those without a language) that name ``quorate``."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shell = [block for language, block in blocks if language in ("", "sh", "bash", "console")]
    return [line for block in shell for line in block.splitlines() if "quorate " in line or "python " in line]


def of_line(line: str) -> list[tuple[str, ...]]:
    """The words after each ``quorate`` of a shell's line: several commands, loops, redirections and comments."""
    plain = re.sub(r"\$\{?i\}?", "1", line.removeprefix("$ "))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    found: list[list[str]] = []
    words: list[str] | None = None
    begins = True
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise ValueError(f"{error} in {line!r}") from None
    for token in tokens:
        if re.fullmatch(r"[;&|<>]+", token) or token in ("do", "done"):
            words, begins = None, True
        elif token == "quorate" and begins:
            words, begins = [], False
            found.append(words)
        elif words is not None:
            words.append(token)
        else:
            begins = begins and re.match(r"\w+=|\(", token) is not None
    return [tuple(words) for words in found]


@cache
def command_line() -> Any:
    """``quorate`` as Click reads it, which takes 20 ms to make."""
    return get_command(app)


def parsed(command: PageCommand) -> dict[str, Any]:
    """The values of the command's parameters. A usage error, as the user would see it, where it is wrong; of a command
    in running text arguments and options may be left out."""
    words = [PLACEHOLDERS.get(word, word) for word in command.words]
    found = command_line()
    context = found.make_context("quorate", [], resilient_parsing=True)
    while words and hasattr(found, "commands"):
        inner = found.get_command(context, words[0])
        if inner is None and hasattr(found, "default_command"):
            words.insert(0, found.default_command)
            inner = found.get_command(context, words[0])
        if inner is None and (found.invoke_without_command or words[0].startswith("-")):
            break
        if inner is None:
            raise ValueError(f"{command}: there is no command {words[0]!r}")
        found, context = inner, inner.make_context(words.pop(0), [], resilient_parsing=True)
    if command.in_block:
        return dict(found.make_context(found.name, list(words)).params)
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    if unknown:
        raise ValueError(f"{command}: there is no option {unknown[0]}")
    return {}
