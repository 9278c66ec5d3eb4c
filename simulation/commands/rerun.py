"""``--only CLIENT --round N``: trains one client of one round again, and prints the result in a few lines.

It shows the learner's traceback where the client fails, and one sentence for other errors.
"""

from __future__ import annotations

import math
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import typer

from client_sdk.terminal import note, print_error, say, say_json
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from simulation import engines
from simulation.clients import Clients
from simulation.simulator import simulate as simulator
from simulation.virtual.behaviour import Behaviour
from simulation.virtual.recorded import Recording


def again(
    plan: Plan,
    learner: Any,
    clients: Clients,
    only: str,
    round: int,
    *,
    behaviour: Behaviour | Recording,
    init: Path | None,
    seed: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Train the client and print the result. The learner's errors are shown with their traceback, exit code 1."""
    try:
        update = simulator.simulate(
            plan, learner, clients, behaviour=behaviour, init=init, seed=seed, folder=folder, only=only, round=round
        )
    except Exception as error:
        if not _of_the_learner(error):
            raise
        note("".join(traceback.format_exception(error.__cause__ or error)).rstrip())
        print_error(f"client {only!r} failed in round {round}: {' '.join(str(error).split()) or type(error).__name__}")
        raise typer.Exit(1) from None
    _print_update(update, only, round, as_json)


def hint(client: str, round: int, folder: Path | None, init: str | None) -> str:
    """The command that trains a failed client again: this command line with the client and the round."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    where = [] if folder is not None or init is None else ["--init", init]
    return " ".join(["quorate", *arguments, "--only", client, "--round", str(round), *where])


def _print_update(update: Update, only: str, round: int, as_json: bool) -> None:
    norm = math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in update.delta.values()))
    work = update.work
    steps = None if work is None else {"steps": work.steps, "steps_planned": work.steps_planned}
    if as_json:
        found = {"client": only, "round": round, "examples": update.examples, "delta_norm": norm}
        say_json(found | (steps or {}) | {"metrics": dict(update.metrics)})
        return
    did = "" if work is None else f", {work.steps} of {work.steps_planned} steps"
    scores = "".join(f", {name} {value:.4g}" for name, value in sorted(update.metrics.items()))
    say(f"{only} in round {round}: {update.examples} examples{did}{scores}; the update's norm is {norm:.4g}")


def _of_the_learner(error: Exception) -> bool:
    """Whether the error was raised while the client trained, not before."""
    return any(frame.filename == engines.kernel.__file__ for frame in traceback.extract_tb(error.__traceback__))
