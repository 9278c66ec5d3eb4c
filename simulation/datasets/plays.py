"""Reads the speeches and their speakers from plays as Project Gutenberg prints them.

A text is paragraphs, separated by blank lines. A speech begins with a line that names its speaker (`HAMLET.`, `FIRST
WITCH.`, `1. CAR.`, `LYSANDER`; in three plays `Ham.`), and goes on until the next speaker or scene. Stage directions
stand in brackets. What is printed before the first act is no speech.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ACT = re.compile(r"^[ \t]*(?:ACT|Act)\b.{0,12}$", flags=re.MULTILINE)
_HEADING = re.compile(r"(?:ACT|SCENE|Act|Scene)\b")
_DIRECTION = re.compile(r"\[(?:[^\[\]\n]|\n(?![ \t]*\n))*\]?|\{(?:[^{}\]\n]|\n(?![ \t]*\n))*[}\]]?")
"""From `[` to `]`, or to the end of the paragraph where the closing bracket is missing."""

_NUMBER = r"(?:(?:[1-9]|I{1,3})\.? )?"
_CAPITALS = re.compile(rf"({_NUMBER}[A-Z][A-Za-z'.,& -]*[A-Za-z'])[.:,]*")
_TITLE = re.compile(rf"({_NUMBER}(?:P\. )?[A-Z][a-z]+(?: +(?:and )?[A-Z][a-z]+){{0,2}})\.")
_INLINE = re.compile(r"([A-Z]{3,}(?: [A-Z]+){0,3})\.  ?(\S.*)")

_ROMAN = re.compile(r"[IVX]+")
"""The number of a song's stanza."""

_FEW = 10
"""A play in which fewer speeches than this begin with a name in capitals prints names as `Ham.`"""

_LONGEST_NAME = 40
"""In characters. A longer line is a line of verse."""


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """(role, speech) of a play, in order. Roles are in capitals without final dots, as the play abbreviates them.

    The lines of a speech are separated by one newline, without blanks at their ends or doubled ones. A speech that a
    stage direction interrupts is one speech. Yields nothing where the text has no acts.
    """
    act = _ACT.search(text)
    paragraphs = _paragraphs(text[act.start() :]) if act else []
    in_capitals = [name for lines in paragraphs if (name := _capitals(lines[0])) is not None]
    named = _capitals if len(in_capitals) >= _FEW else _title
    known = set(in_capitals)
    role: str | None = None
    lines: list[str] = []
    for paragraph in paragraphs:
        head, body = paragraph[0], paragraph[1:]
        if _HEADING.match(head):
            next_role, body = None, []
        elif (name := named(head)) is not None and (body or named is _capitals):
            next_role = name
        elif (inline := _INLINE.fullmatch(head)) is not None and inline[1] in known:
            next_role, body = inline[1], [inline[2], *body]
        else:
            lines += paragraph
            continue
        if role is not None and lines:
            yield role, "\n".join(lines)
        role, lines = next_role, body
    if role is not None and lines:
        yield role, "\n".join(lines)


def _paragraphs(text: str) -> list[list[str]]:
    """The non-empty lines of each paragraph that has any, without stage directions."""
    plain = _DIRECTION.sub("", text)
    lines = [[" ".join(line.split()) for line in block.split("\n")] for block in re.split(r"\n[ \t]*\n", plain)]
    return [filled for block in lines if (filled := [line for line in block if line])]


def _capitals(line: str) -> str | None:
    """The role that a line such as `FIRST WITCH.` or `CAESAR, ANTONY, and LEPIDUS.` names."""
    match = _CAPITALS.fullmatch(line)
    if match is None or len(match[1]) > _LONGEST_NAME or _HEADING.match(line) or _ROMAN.fullmatch(match[1]):
        return None
    letters = [letter for letter in match[1] if letter.isalpha()]
    capitals = sum(letter.isupper() for letter in letters)
    return match[1].upper() if len(letters) > 1 and 2 * capitals > len(letters) and len(match[1].split()) < 5 else None


def _title(line: str) -> str | None:
    """The role that a line such as `Ham.` or `Lady Capulet.` names."""
    match = _TITLE.fullmatch(line)
    return match[1].upper() if match is not None and len(match[1]) <= _LONGEST_NAME else None
