"""``quorate ask``: a question about a deployment, answered by a few runs in virtual time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from client_sdk.terminal import Json, fail, note, say, say_json


def ask(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="over-selection, deadline, partial, never-heard or cost.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where QUESTION.svg and QUESTION.md go.")
    ] = Path(),
    seeds: Annotated[int, typer.Option(min=1, help="How many fleets each run is played on.")] = 2,
    devices: Annotated[int, typer.Option(min=10, help="How many phones there are.")] = 20_000,
    goal: Annotated[int, typer.Option(min=2, help="Reports that close a round; other numbers scale with it.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="The most rounds of a run.")] = 60,
    target: Annotated[float, typer.Option(min=0, max=1, help="The accuracy at which a run ends.")] = 0.8,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each run.")] = False,
    as_json: Json = False,
) -> None:
    """Answer a question about a deployment: a few runs in virtual time, one picture and one page.

    The fleet are phones as the literature has them, and the data is synthetic. The same options give the same answer;
    it takes minutes on one core.
    """
    from simulation.questions import QUESTIONS, Setting
    from simulation.questions import ask as answered

    if question not in QUESTIONS:
        fail(f"There is no question {question}; there are {', '.join(QUESTIONS)}.")
    if not out.is_dir():
        fail(f"There is no folder {out}.")
    setting = Setting(devices=devices, goal=goal, rounds=rounds, target=target, seeds=seeds)
    answer = answered(question, setting, (lambda line: None) if quiet else note)
    picture, page = out / f"{question}.svg", out / f"{question}.md"
    answer.draw(picture)
    page.write_text(answer.page(picture.name), encoding="utf-8")
    if as_json:
        arms = {arm: [asdict(run) for run in runs] for arm, runs in answer.arms.items()}
        say_json({"question": question, "picture": str(picture), "page": str(page), "runs": arms})
    else:
        say(f"{answer.sentence} See {page} and {picture}.")
