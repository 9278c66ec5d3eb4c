"""``quorate new DIR`` writes the files of a project: a learner, a plan, data to replace, a test and a page."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated

import typer

from client_sdk.terminal import Json, fail, say, say_json

_FILES = {
    ".gitignore": "gitignore.txt",
    "README.md": "README.md.txt",
    "{name}.py": "learner.py.txt",
    "make_data.py": "make_data.py.txt",
    "plan.toml": "plan.toml.txt",
    "test_learner.py": "test_learner.py.txt",
}


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The project's folder, new or empty; it names the project.")
    ],
    as_json: Json = False,
) -> None:
    """Start a project: a learner, a plan, data to replace, and a test that trains it in a simulation."""
    name = module_name(folder.absolute().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(f"{folder} exists and is not an empty folder; name a new one.")
    folder.mkdir(parents=True, exist_ok=True)
    written = [path.format(name=name) for path in _FILES]
    for path, template in zip(written, _FILES.values(), strict=True):
        text = (files("simulation.commands") / "project" / template).read_text("utf-8")
        (folder / path).write_text(Template(text).substitute(name=name, plan=name.replace("_", "-")), "utf-8")
    if as_json:
        say_json({"folder": str(folder), "name": name, "files": written})
        return
    say(f"Wrote {', '.join(written)} to {folder}.")
    say(f"Next: cd {quote(str(folder))}; python -m pytest; the README says how to go on.")


def module_name(folder: str) -> str:
    """The name of a Python module that a folder's name gives. Failure where it gives none, or one that is taken."""
    name = re.sub(r"[^a-z0-9]+", "_", _without_accents(folder).lower()).strip("_")
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > 48:
        fail(f"{folder!r} gives no name for a Python module: choose a folder such as wards or credit-risk.")
    if name in ("make_data", "test_learner") or name in sys.stdlib_module_names or find_spec(name) is not None:
        fail(f"A Python module {name} exists already, and the project's would hide it: choose another folder's name.")
    return name


def _without_accents(text: str) -> str:
    """``Crédit`` as ``Credit``; letters that are not Latin stay."""
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
