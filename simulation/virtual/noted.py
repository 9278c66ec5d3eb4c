"""The training that a run's folder notes for a call that resumes it: a client's job, its model, its update's digest.

It is no part of the run: without it a resumed run is the same, and is not held against what was trained before.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from coordinator.datafolder import write_private
from simulation.engines.port import Job

_FILE = "{run}.noted.json"


def note(folder: Path, run: str, model: str, job: Job, digest: str) -> None:
    """Replaces what is noted of this run. ``model``: digest of the checkpoint from which the client trained."""
    body = {"model": model, "job": asdict(job), "digest": digest}
    write_private(folder / _FILE.format(run=run), json.dumps(body).encode())


def noted(folder: Path, run: str) -> tuple[str, Job, str] | None:
    """(model, job, digest) of what was noted last; None where that cannot be read."""
    try:
        body = json.loads((folder / _FILE.format(run=run)).read_bytes())
        return str(body["model"]), Job(**body["job"]), str(body["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
