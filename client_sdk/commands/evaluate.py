"""``quorate evaluate``: scores each checkpoint of a run on this machine's held-out data and reports the metrics.

This file reads options and prints lines; ``http.evaluator`` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from client_sdk.commands.joining import FILES, Learners, Share, Target
from client_sdk.commands.long_running import Threads, use_threads
from client_sdk.commands.stopping import stopped_by_signals
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, note, show_answer


def evaluate(
    run: Annotated[str, typer.Argument(help="The run's id; 'quorate status' lists them.")],
    data: Annotated[
        str,
        typer.Option("--data", metavar=FILES, help="Held-out data: its test part, or all of it where it has none."),
    ],
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    target: Target = None,
    shard: Share = None,
    learner: Learners = None,
    source: Annotated[str, typer.Option(help="The name of the data among the metrics.")] = "evaluator",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Score each checkpoint of a run on held-out data and report the metrics. Ends when the run ends. Where devices
    send states of metrics, it also computes their values.

    The plan's learner must be installed here, or named with --learner where the plan names it so; it is then the only
    one. With --json there is
    a line for each checkpoint scored now, and a last line with their number.

    Example: quorate evaluate run-1 --data mnist
    """
    use_threads(threads)
    from client_sdk import learners
    from client_sdk.data import Shard, load_data, with_target
    from client_sdk.http.evaluator import follow
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.devices import Score
    from client_sdk.protocol.operators import CheckpointView
    from client_sdk.tensors import Tensors

    loaded = load_data(with_target(data, target), Shard.parse(shard) if shard is not None else None)
    catalogue = learners.catalogue_for(learner or [])  # after the data: learners may import torch, which takes seconds
    with OperatorClient(coordinator, key_file=key_file) as operator, stopped_by_signals() as stop:
        view = operator.run(run)
        if view.flower is not None:
            fail(f"{run} is a Flower run: it has no checkpoints, and its ServerApp scores its models itself.")
        task = view.plan.get("task")
        name = task.get("learner") if isinstance(task, dict) else None
        if not isinstance(name, str):
            fail(f"The plan of {run} names no learner.")
        scorer = catalogue.load(name)
        held_out = loaded.test if loaded.test is not None else loaded.train

        def values(states: Mapping[str, Sequence[float]]) -> dict[str, float]:
            return learners.values_of(scorer, states)

        def score(model: Tensors) -> Score:
            return learners.evaluate(scorer, name, model, held_out)

        task = task if isinstance(task, dict) else {}
        states = bool(task.get("score_held_out")) and bool(getattr(scorer, "stateful", ()))
        scored = 0

        def print_score(checkpoint: CheckpointView, found: Score) -> None:
            nonlocal scored
            scored += 1
            document = {"examples": found.examples, "metrics": found.metrics}
            shown = {"kind": "scored", "run": run, "version": checkpoint.version, "source": source, **document}
            values = ", ".join(f"{metric} {value:.4f}" for metric, value in found.metrics.items())
            text = f"{run} version {checkpoint.version}: {values} ({found.examples} examples)"
            show_answer(shown, text, as_json=as_json)

        view = follow(
            operator,
            run,
            score,
            source=source,
            values=values if states else None,
            on_score=print_score,
            on_trouble=note,
            stop=stop,
        )
        over = f"{run} is {view.status}: {view.reason or 'scored so far'}."
        if not scored and not stop.is_set():
            over += f" There was nothing to score: all of its checkpoints have metrics of {source}."
    end = {"kind": "ended", "run": run, "source": source, "scored": scored, "status": view.status, "reason": over}
    show_answer(end, over, as_json=as_json)
