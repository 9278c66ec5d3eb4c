"""``--only CLIENT --round N``: one client's part in one round, trained again, and told in a few lines.

This file knows a failing client's own traceback from a mistake on the command line. It trains nothing itself.
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


def again(
    plan: Plan,
    learner: Any,
    clients: Clients,
    only: str,
    round: int,
    *,
    behaviour: Behaviour,
    init: Path | None,
    seed: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Trains the client and says what came of it. The learner's own errors are shown with their traceback, exit code
    1."""
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
    """The command that trains a failed client again: the one that was given, and which client."""
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
    """Whether it was raised while the client trained, not before."""
    return any(frame.filename == engines.kernel.__file__ for frame in traceback.extract_tb(error.__traceback__))
