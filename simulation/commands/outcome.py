"""What ``quorate simulate`` says at the end: a few lines or one JSON document, and how to go on.

This file knows histories and sentences. It has never heard of options.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from simulation.clients import Clients
from simulation.history import History


def document(history: History, clients: Clients, folder: Path | None) -> dict[str, Any]:
    """The whole outcome as JSON knows it: the run, its plan, every round and every score. Times are in seconds."""
    began = history.created_at
    rounds = []
    for row in history.rounds:
        plain = dataclasses.asdict(row)
        opened, closed = plain.pop("opened_at"), plain.pop("closed_at")
        rounds.append(plain | {"opened_s": opened - began, "closed_s": None if closed is None else closed - began})
    newest = history.checkpoints[len(history)]
    sizes = clients.sizes
    return {
        "run": history.run,
        "status": history.status,
        "reason": history.reason,
        "interrupted": history.interrupted,
        "committed": len(history),
        "checkpoint": newest.digest,
        "clients": {"count": len(clients), "examples": int(sizes.sum()), "how": clients.how},
        "folder": None if folder is None else str(folder),
        "wall_s": sum(history.wall),
        "rounds": rounds,
        "withdrawals": [dataclasses.asdict(one) for one in history.withdrawals],
        "metrics": [
            {"version": one.version, "source": one.source, "name": one.name, "value": one.value}
            for one in history.metrics
        ],
        "plan": history.plan.model_dump(mode="json"),
    }


def way_on(history: History, folder: Path | None, command: str) -> list[str]:
    """What can be done next with the run. ``command``: how it was started."""
    lines = []
    if history.interrupted:
        done = "1 round is" if len(history) == 1 else f"{len(history)} rounds are"
        lines.append(f"Stopped in round {len(history.rounds) or 1}: {done} committed.")
    if history.status != "finished" and folder is None and history.interrupted:
        lines.append("Nothing is kept: with --folder FOLDER a run goes on where it was stopped.")
    if folder is not None:
        if history.status != "finished":
            lines.append(f"The same command goes on from here: {command}")
        lines.append(
            f"Kept in {folder}; to look at it: quorate serve --data {folder}, and then quorate rounds {history.run}"
        )
    return lines
