"""How many threads the numerical libraries of a process use: one, unless the user gives another number.

A machine runs many devices or ranks beside each other, and each of them would otherwise take every core; a
coordinator's requests wait where such a library's threads look for work on every core. In order:
``--threads``, then OMP_NUM_THREADS of the environment, then 1. Libraries read the environment when they are loaded,
so a process calls ``use_threads`` before it imports numpy or torch; a parent passes ``thread_variables`` to its
children.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        help="Threads of numerical libraries in each process (default: OMP_NUM_THREADS, else 1).",
    ),
]


def thread_variables(threads: int | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for a process that computes with ``threads``; None: as ``environment`` (this process's) says, and
    with one thread where it says nothing."""
    given = os.environ if environment is None else environment
    if threads is not None:
        return dict.fromkeys(VARIABLES, str(threads))
    usual = given.get("OMP_NUM_THREADS", "1")
    return {name: given.get(name, usual) for name in VARIABLES}


def use_threads(threads: int | None) -> None:
    """Set them for this process and its children. Call it before numerical libraries are imported."""
    os.environ.update(thread_variables(threads))
