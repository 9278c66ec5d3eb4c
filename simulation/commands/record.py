"""``quorate record``: how the devices of a run behaved, into a file that a simulation plays again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.http.paging import PAGE, every_round
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, show_answer

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.insight import Lane


def record(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as 'quorate run list' shows it.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.json", help="A new file. (default: RUN.json)")
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Record how the devices of a run behaved, for `quorate simulate --behaviour FILE`.

    The file has the seconds of each selected device's phases and how it ended, of the rounds that have ended. It has
    no ids and no labels. Secure rounds are left out, since nobody knows what one device did in them.
    """
    from client_sdk.http.operator import OperatorClient
    from simulation.virtual.recorded import Recording

    file = out if out is not None else Path(f"{run}.json")
    if file.exists() or not file.absolute().parent.is_dir():
        fail(f"{file} exists, or has no folder: name a new file.")
    with OperatorClient(coordinator, key_file=key_file) as client:
        cohort = client.run(run).plan.get("cohort")
        if not isinstance(cohort, dict):
            fail(f"{run} has no plan with a cohort: there is nothing to record.")
        rounds = every_round(client, run)
        secure = sum(view.kind == "secure" for view in rounds)
        found = [
            (view, _lanes(client, run, view.round))
            for view in rounds
            if view.kind == "federated" and view.closed_at is not None
        ]
    if secure and not found:
        fail(
            f"All rounds of {run} are secure: the coordinator knows nothing of a single device, so they have no lanes."
        )
    recording = Recording.of(run, int(cohort["select"]), found)
    recording.write(file)
    lanes = sum(len(one.lanes) for one in recording.rounds)
    shown = {"run": run, "file": str(file), "rounds": len(recording.rounds), "lanes": lanes, "secure": secure}
    left = f" {secure} secure rounds have no lanes and are left out." if secure else ""
    text = f"Wrote {len(recording.rounds)} rounds with {lanes} lanes of {run} to {file}.{left}"
    show_answer(shown, text, as_json=as_json)


def _lanes(client: OperatorClient, run: str, round: int) -> list[Lane]:
    """All lanes of a round."""
    lanes: list[Lane] = []
    while page := client.insight.lanes(run, round, lanes[-1].device if lanes else "", PAGE).lanes:
        lanes += page
    return lanes
