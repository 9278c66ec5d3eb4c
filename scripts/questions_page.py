"""Plays the runs of ``quorate ask`` and writes docs/questions.md and its pictures, so that no measured number is typed.

``python -m scripts.questions_page [QUESTION ...]``: all questions, some minutes each, or these alone; the others stay
as they are on the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from simulation.questions import QUESTIONS, ask

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "questions.md"
HEAD = """# Questions that a simulation answers

`quorate ask QUESTION` plays a few runs in virtual time and writes one picture and one page. The runs differ in what is
asked for, and have the rest in common:

- **The fleet** are 20,000 phones [as the literature has them](simulation.md#behaviour-and-classes-of-devices), a third
  each *new*, *middle* and *old*: 6 to 10 % drop out, speeds are log-normal with sigma 0.6, and old phones need four
  times as long as new ones. A middle phone takes about a minute and a half for its task. A phone has about 48 examples
  to train on, and its own mixture of labels.
- **The data** is synthetic, and the model a softmax regression: what is answered here is how time, bytes and
  device-hours compare, not how fast your model learns. For yours, change the plan of `quorate simulate` in this way.
- **Device-hours** are those of all selected devices, with those whose work is in no model: who is too slow trains to
  its end.
- A run ends at an accuracy of 0.8 on the test set. Each is played on two fleets (seeds 0 and 1). The same options give
  the same answer; a question takes one to three minutes of one core.
- **In short**: more devices than are needed make rounds shorter and cost device-hours. An early deadline that drops
  unfinished work leaves slow phones out, and their labels with them; one that counts it hears nearly all.

(`python -m scripts.questions_page` writes this page; 2026-12-01.)
"""


def sections() -> dict[str, str]:
    """Question -> its section on the page as it is."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    found = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    titles = {f"## {question.title}": name for name, question in QUESTIONS.items()}
    return {titles[part.split("\n", 1)[0]]: part for part in found if part.split("\n", 1)[0] in titles}


def main(names: list[str]) -> None:
    """Plays these questions, or all, and writes the page."""
    for name in names or QUESTIONS:
        answer = ask(name, say=lambda line: print(line, flush=True))
        answer.draw(DOCS / "images" / f"question-{name}.svg")
        parts = {**sections(), name: answer.page(f"images/question-{name}.svg")}
        shown = [parts[known].strip() for known in QUESTIONS if known in parts]
        PAGE.write_text("\n\n".join([HEAD.strip(), *shown]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
