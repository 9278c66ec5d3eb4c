"""``quorate secagg parameters``: the neighbours and shares that a secure round needs, and its security in bits.

This file reads options and prints lines; ``secagg.parameters`` computes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

import typer

from client_sdk.terminal import Json, fail, say, say_json

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback(
    help="Secure aggregation: what a round needs, and what it promises.",
    epilog="Example: quorate secagg parameters --n 300 --drop 44 --corrupt 0.1 --sigma 80",
)
def secagg() -> None:
    pass


@app.command(
    help="Compute the fewest neighbours, and for them the lowest threshold, with which a secure round of N devices "
    "keeps its promises against a server that lies once the devices are chosen: sigma bits of secrecy, eta bits of "
    "correctness (Bell et al. 2020). Bits above 128 are given as 128, the strength of the ciphers.",
    epilog="Example: quorate secagg parameters --n 300 --drop 44 --corrupt 0.1 --sigma 80",
)
def parameters(
    n: Annotated[int, typer.Option("--n", min=3, help="Devices of the round.")],
    drop: Annotated[int, typer.Option(min=0, help="How many of them may vanish: a count.")],
    corrupt: Annotated[str, typer.Option(metavar="FRACTION", help="How many of them may collude: a fraction, as 0.1.")],
    sigma: Annotated[int, typer.Option(min=1, max=128, help="No secret leaks, except with chance 2^-sigma.")] = 40,
    eta: Annotated[int, typer.Option(min=1, max=128, help="The sum can be had, except with chance 2^-eta.")] = 40,
    as_json: Json = False,
) -> None:
    from client_sdk.secagg.parameters import fast, require_faults

    if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}|[0-9]{1,9}/0*[1-9][0-9]{0,8}", corrupt):
        fail(f"--corrupt is a fraction such as 0.1 or 1/10, not {corrupt[:40]!r}.")
    fraction = Fraction(corrupt)
    found = fast(n, drop, fraction, sigma, eta)
    colluding = require_faults(n, drop, fraction)
    if as_json:
        say_json(
            {
                "n": n,
                "drop": drop,
                "colluding": colluding,
                "neighbours": found.neighbours,
                "threshold": found.threshold,
                "signers": found.signers,
                "sigma": found.sigma,
                "eta": found.eta,
                "complete": found.complete,
            }
        )
        return
    graph = "everybody is everybody's neighbour" if found.complete else f"{found.neighbours} neighbours a device"
    say(f"{n} devices, {drop} may vanish, {colluding} collude with a semi-malicious server:")
    say(f"  {graph}, {found.threshold} of {found.holders} shares rebuild a secret")
    say(f"  sigma {found.sigma:g}: no secret leaks, except with chance 2^-{found.sigma:g}")
    say(f"  eta   {found.eta:g}: the sum can be had, except with chance 2^-{found.eta:g}")
