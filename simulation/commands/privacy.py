"""``quorate privacy``: what noise is worth by the books, and what it is really worth.

This file reads options and prints lines; ``client_sdk.privacy.accounting`` and ``simulator.privacy_audit`` compute.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from client_sdk.terminal import Json, fail, say, say_json
from coordinator.commands import ledger

_TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.add_typer(ledger.app, name="ledger")


@app.callback(
    help="Differential privacy: what noise is worth.",
    epilog="Example: quorate privacy plan --noise 4 --rounds 10 --delta 1e-6 --goal 256 --values 50890",
)
def privacy() -> None:
    pass


@app.command(
    help="Compute epsilon from noise, or noise from epsilon, for a device that counts in so many rounds. Nothing is "
    "gained by chance in who takes part: devices that check in are no random sample.",
    epilog="Example: quorate privacy plan --noise 4 --rounds 10 --delta 1e-6 --goal 256 --values 50890",
)
def plan(
    rounds: Annotated[int, typer.Option(min=1, help="In how many rounds one device counts (cohort.most_rounds).")],
    delta: Annotated[float, typer.Option(help="The chance that the bound does not hold (privacy.delta).")],
    noise: Annotated[float | None, typer.Option(help="The noise multiplier (privacy.noise).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The target (privacy.epsilon).")] = None,
    goal: Annotated[int, typer.Option(min=1, help="By how many devices a sum is divided (cohort.goal).")] = 256,
    values: Annotated[int | None, typer.Option(min=1, help="Values of the model.")] = None,
    of: Annotated[
        int | None, typer.Option("--of", min=1, help="How many rounds the run has: compares the mechanisms.")
    ] = None,
    apart: Annotated[int, typer.Option(min=1, help="How far a device's rounds are apart (cohort.apart).")] = 1,
    roster: Annotated[
        int | None, typer.Option(min=3, help="In secure rounds (mechanism distributed, strict): devices of a roster.")
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Into how many groups it is divided (secure.groups).")] = 1,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1, help="Clients of a simulation: what drawing --goal of them by chance in each of --of would gain."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from client_sdk.privacy.accounting import amplified_of, epsilon_of, estimate_of, noise_for, rho_of
    from client_sdk.secagg.errors import BadParameters
    from client_sdk.secagg.header import GraphRule, hidden_among

    if (noise is None) == (epsilon is None):
        fail("Give --noise, or the --epsilon that it shall reach.")
    if clients is not None and (of is None or clients < goal):
        fail("With --clients, give --of, the rounds of the simulation, and a --goal of at most so many clients.")
    try:
        used = noise_for(epsilon, delta, rounds) if epsilon is not None else float(noise or 0.0)
        if not 0 < used < math.inf:
            fail(f"A noise multiplier is a number above 0, not {used:g}.")
        found = epsilon_of(rho_of(used, rounds), delta)
        table = {target: noise_for(target, delta, rounds) for target in _TARGETS}
        sampled = None if clients is None else amplified_of(used, goal / clients, of or 1, delta)
        honest = None if roster is None else hidden_among(GraphRule(profile="strict"), roster // groups)
    except BadParameters as error:
        fail(f"A roster of {roster} in {groups} groups: {error}.")
    except ValueError as error:
        fail(f"{error}.")
    spread = used / goal if honest is None else used / math.sqrt(goal * honest)
    compared = {} if of is None else _mechanisms(of, apart, rounds, used)
    if as_json:
        say_json(
            {
                "noise": used,
                "rounds": rounds,
                "delta": delta,
                "epsilon": found,
                "estimate": estimate_of(rho_of(used, rounds), delta),
                "rho": rho_of(used, rounds),
                "amplified": sampled,
                "goal": goal,
                "honest": honest,
                "deviation_of_mean": spread,
                "norm_of_mean": None if values is None else spread * math.sqrt(values),
                "noise_for": {f"{target:g}": needed for target, needed in table.items()},
                "mechanisms": {name: {"noise": needed, "in_sum": total} for name, (needed, total) in compared.items()},
            }
        )
        return
    say(f"noise {used:.4g} x clip in a sum, {rounds} rounds of one device:")
    say(f"  epsilon {found:.4g} at delta {delta:g}, zCDP {rho_of(used, rounds):.4g}")
    say(f"  an estimate, not proven: {estimate_of(rho_of(used, rounds), delta):.4g}, that of continuous noise")
    if clients is not None:
        say(f"  amplified by sampling: {sampled:.4g}, in a simulation only, where each of {of:,} rounds draws each of")
        say(f"    {clients:,} clients with chance {goal / clients:.4g} and nobody sees whom; an estimate, not proven")
    if roster is not None:
        group = "the roster" if groups == 1 else f"a group of {roster // groups}"
        say(f"  each device adds as much as it takes for any {honest} of {group} to have all of it")
    say(f"  in the mean of {goal} devices each value is off by {spread:.3g} x clip")
    if values is not None:
        length = spread * math.sqrt(values)
        say(f"  over {values:,} values that is a vector of {length:.3g} x clip; the mean update is at most clip long")
    say("  a target takes")
    for target, needed in table.items():
        cohort = math.ceil(goal * needed / used)
        say(f"    epsilon {target:<4g} noise {needed:.4g}, or as small an error in the mean with {cohort:,} devices")
    if compared:
        say(f"  the same epsilon in a run of {of:,} rounds, those of a device {apart:,} or more apart, takes")
    for name, (needed, total) in compared.items():
        say(f"    {name:<9} noise {needed:.4g}; in the sum of all rounds there is {total:.4g} x clip of it")


def _mechanisms(steps: int, apart: int, times: int, independent: float) -> dict[str, tuple[float, float]]:
    """Mechanism -> (its noise multiplier, and the noise in the sum of all rounds, over the clip) for the epsilon that
    independent noise has with this multiplier."""
    from client_sdk.privacy.correlated import (
        MOST_STEPS,
        Independent,
        Pattern,
        Strategy,
        Tree,
        buffers_for,
        cost_of_a_step,
    )

    pattern = Pattern(steps, apart, times)
    found: dict[str, Strategy] = {"gaussian": Independent(), "tree": Tree()}
    if steps <= MOST_STEPS:
        found["blt"] = buffers_for(pattern)
    scale = independent / math.sqrt(times)
    needed = {name: scale * math.sqrt(cost_of_a_step(one, pattern) * times) for name, one in found.items()}
    return {name: (needed[name], needed[name] * float(one.spread(steps)[-1])) for name, one in found.items()}


@app.command(
    help="Look for canaries in the models of a simulated run with the plan's noise and clip: a lower bound on its "
    "epsilon, and an interval. Exit code 1 where what was found is more than the plan claims.",
    epilog="Example: quorate privacy audit plan.toml",
)
def audit(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan's file.")],
    canaries: Annotated[int, typer.Option(min=16, max=2000, help="How many devices, each of them a canary.")] = 400,
    confidence: Annotated[float, typer.Option(help="Of the interval: above 0.5 and below 1.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Draws the canaries, and the noise of the simulation.")] = 0,
    as_json: Json = False,
) -> None:
    from coordinator.engine.plan import Plan
    from simulation.simulator.privacy_audit import audit as audited

    read = Plan.from_toml(plan)
    try:
        found = audited(read, canaries=canaries, seed=seed, confidence=confidence)
    except ValueError as error:
        fail(f"{plan}: {error}.")
    if as_json:
        say_json({**asdict(found), "holds": found.holds})
    else:
        say(f"{found.canaries} canaries in {found.rounds} rounds of {found.values:,} values, at delta {found.delta:g}:")
        say(f"  claimed   epsilon {found.claimed:.4g}")
        at = f"with confidence {found.confidence:g}"
        say(f"  found     epsilon {found.estimate:.4g}, from {found.low:.4g} to {found.high:.4g} {at}")
        said = "is no proof against the claim" if found.holds else "PROVES THE CLAIM WRONG"
        say(f"  what was found {said}")
    if not found.holds:
        raise typer.Exit(1)
