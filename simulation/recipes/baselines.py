"""Baselines to compare federation with: each client alone, and all data in one place.

Both train with the same ``Learner`` and the same task as a federated client, in steps of one round's amount of
training: w <- w + update, with a new optimizer each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from client_sdk.data import is_torch_dataset
from client_sdk.learners import evaluate, train
from client_sdk.protocol.devices import Score, Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation.clients import Clients
from simulation.clients.holdings import as_given
from simulation.history import Curve, HistoryError, WithCurves
from simulation.history.recorded_run import curves_of
from simulation.history.tables import newest_scores
from simulation.recipes.federated import each_round, work_of
from simulation.simulator import checks
from simulation.simulator.checks import ClassesLike, ClientsLike, InitLike, require_learner, require_whole
from simulation.simulator.first_model import first_model
from simulation.simulator.scoring import CENTRAL, CLIENTS, HIGH, LOW, by_source

if TYPE_CHECKING:
    from pandas import DataFrame


# ------------------------------------------------------------ baseline
# ``Baseline``: the result of training without federation, with the same curves as a ``History``.


@dataclass(repr=False)
class Baseline(WithCurves):
    """A run without a coordinator. ``metric``, ``final``, ``best`` and ``curves`` are those of a ``History``; a version
    is the model after one round's amount of training; 0 is the first model."""

    name: str
    interrupted: bool = False
    """Ctrl-C ended it."""
    scores: dict[tuple[int, str], Score] = field(default_factory=dict)
    """(version, source) -> score."""

    def __len__(self) -> int:
        """The amount of training, in rounds."""
        return max((version for version, _ in self.scores), default=0)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        standing = f"{self.name}: {len(self)} round{'s' * (len(self) != 1)}" + (
            ", interrupted" if self.interrupted else ""
        )
        return f"<Baseline {' · '.join([standing, *newest_scores(self.curves)])}>"

    @property
    def curves(self) -> Mapping[tuple[str, str], Curve]:
        """Every metric as a curve, by (source, name)."""
        return curves_of(
            ((source, name), (version, value))
            for (version, source), score in sorted(self.scores.items())
            for name, value in score.metrics.items()
        )

    def _called(self) -> str:
        return self.name

    def to_pandas(self) -> DataFrame:
        """A row for each score: version, source, name, value, examples. HistoryError where there is no pandas."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise HistoryError("Tables need pandas: pip install 'quorate[simulation]'.") from None
        rows = [
            {"version": version, "source": source, "name": name, "value": value, "examples": score.examples}
            for (version, source), score in sorted(self.scores.items())
            for name, value in sorted(score.metrics.items())
        ]
        return pd.DataFrame(rows, columns=["version", "source", "name", "value", "examples"])


# ------------------------------------------------------------ baselines


NAME = "simulation:learner"


def local_only(
    learner: Any,
    clients: ClientsLike,
    *,
    test: Any = None,
    rounds: int = 10,
    epochs: int | None = None,
    task_steps: int | None = None,
    batch_size: int = 10,
    learning_rate: float = 0.1,
    train_clients: int | Literal["all"] = "all",
    score_every: int = 1,
    classes: ClassesLike = None,
    init: InitLike = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Baseline:
    """Each client trains a model of its own on its own data, from the same first weights, without exchange.

    In a round each client performs the task (``epochs`` or ``task_steps``) once, so that ``rounds`` rounds are the work
    of a federated client that is selected ``rounds`` times. ``train_clients``: how many clients train, drawn by
    ``seed``; clients without examples are left out.
    Sources: ``clients``, ``clients.p10``, ``clients.p90`` and ``class.<name>``, each client's model on its own held-out
    examples;
    ``evaluator``, ``evaluator.p10`` and ``.p90``, each client's model on ``test``: mean and percentiles over the
    clients.
    ``progress`` as of ``simulate``. Ctrl-C ends it with what there is. ValueError.
    """
    require_learner(learner)
    whole, test = Clients.of(clients), as_given(test)
    members = [name for name in checks.scored_clients(train_clients, whole, seed) if whole.examples(name)]
    if not members:
        raise ValueError(f"train_clients={train_clients!r}: at least one client with examples is to be trained")
    first, of = first_model(init, learner, seed)[0](), checks.class_of(classes, whole)
    task = _task(epochs, task_steps, batch_size, learning_rate)
    models = dict.fromkeys(members, first)
    made = Baseline("local only")

    def score(version: int) -> None:
        found = by_source(members, _on_their_own(learner, whole, models), of, learner)
        if test is not None:
            found_on_all = [evaluate(learner, NAME, models[client], test, device=client) for client in members]
            # A mean over models: their states, or weights, say nothing together.
            scores = [Score(examples=one.examples, metrics=one.metrics) for one in found_on_all]
            central = by_source(members, scores, lambda _: "")
            found |= {CENTRAL: central[CLIENTS], f"{CENTRAL}.p10": central[LOW], f"{CENTRAL}.p90": central[HIGH]}
        made.scores.update({(version, source): score for source, score in found.items()})

    def train(round: int) -> None:
        for client in members:
            try:
                update = trained_by(learner, models[client], whole[client], task, client, round)
            except Exception as error:
                error.add_note(f"The client was {client!r}, in round {round}.")
                raise
            models[client] = moved(models[client], update)

    return _led(made, rounds, score_every, train, score, progress)


def centralized(
    learner: Any,
    clients: ClientsLike,
    *,
    test: Any = None,
    rounds: int = 100,
    per_round: int | None = None,
    epochs: int | None = None,
    task_steps: int | None = None,
    batch_size: int = 10,
    learning_rate: float = 0.1,
    score_clients: int | Literal["all"] = 0,
    score_every: int = 1,
    classes: ClassesLike = None,
    init: InitLike = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Baseline:
    """All clients' training data in one place, and plain SGD on it: an upper reference for federation.

    A round is as many optimizer steps as ``per_round`` clients of mean size do in a federated round with the same
    ``epochs`` or ``task_steps`` and ``batch_size``; ``per_round=None``: as all clients do. Sources as in ``simulate``:
    ``evaluator`` on ``test``; ``clients``, ``clients.p10``, ``clients.p90`` and ``class.<name>`` on clients' held-out
    examples.
    Data of arrays is copied into one array. ``progress`` as of ``simulate``. Ctrl-C ends it with what there is.
    ValueError.
    """
    require_learner(learner)
    whole, test = Clients.of(clients), as_given(test)
    per_round = len(whole) if per_round is None else each_round(per_round, whole)
    members = checks.scored_clients(score_clients, whole, seed)
    model, of = first_model(init, learner, seed)[0](), checks.class_of(classes, whole)
    local = _task(epochs, task_steps, batch_size, learning_rate)
    sizes = whole.sizes
    each = sum(local.planned_steps(int(size)) for size in sizes) / len(sizes)
    task = _task(None, max(1, round(each * per_round)), batch_size, learning_rate)
    everything = pooled(whole)
    made = Baseline("centralized")

    def score(version: int) -> None:
        if test is not None:
            made.scores[version, CENTRAL] = evaluate(learner, NAME, model, test)
        own = _on_their_own(learner, whole, dict.fromkeys(members, model))
        made.scores.update({(version, source): found for source, found in by_source(members, own, of, learner).items()})

    def train(round: int) -> None:
        nonlocal model
        model = moved(model, trained_by(learner, model, everything, task, "centralized", round))

    return _led(made, rounds, score_every, train, score, progress)


def pooled(clients: Clients) -> Any:
    """The training examples of all clients, client after client: (x, y), or a torch ConcatDataset. ValueError where
    some are datasets and some are arrays."""
    parts = [clients[client].train for client in clients]
    datasets = [is_torch_dataset(part) for part in parts]
    if all(datasets):
        from torch.utils.data import ConcatDataset

        return ConcatDataset(parts)
    if any(datasets):
        raise ValueError("some clients hold torch Datasets and some arrays: they cannot be put into one place")
    pairs = [part if isinstance(part, tuple | list) else (part.x, part.y) for part in parts]
    return tuple(np.concatenate([np.asarray(pair[side]) for pair in pairs]) for side in (0, 1))


def trained_by(learner: Any, model: Tensors, data: Any, task: Task, client: str, round: int) -> Update:
    """The learner's update, as ``simulate`` would have it."""
    return train(learner, model, data, task, device=client, round=round, deadline=None, seeds=True)


def _on_their_own(learner: Any, whole: Clients, models: Mapping[str, Tensors]) -> list[Score | None]:
    """The score of each client's model on its held-out examples; None where it holds none out."""
    parts = {client: whole[client].test for client in models}
    return [
        None if part is None else evaluate(learner, NAME, models[client], part, device=client)
        for client, part in parts.items()
    ]


def moved(model: Tensors, update: Update) -> Tensors:
    """w + delta in each tensor's own type; tensors that the update does not name stay as they are."""
    changed = {name: (model[name] + delta).astype(model[name].dtype) for name, delta in update.delta.items()}
    return {**model, **changed}


def _led(
    made: Baseline,
    rounds: int,
    score_every: int,
    train: Callable[[int], None],
    score: Callable[[int], None],
    progress: bool | None,
) -> Baseline:
    require_whole("rounds", rounds, 1)
    require_whole("score_every", score_every, 1)
    shown = sys.stderr.isatty() if progress is None else progress
    try:
        score(0)
        if not made.scores:
            raise ValueError("nothing here would be scored: give test=, or clients that hold examples out")
        for number in range(1, rounds + 1):
            train(number)
            if number == rounds or number % score_every == 0:
                score(number)
            if shown:
                newest = [(source, found) for (version, source), found in made.scores.items() if version == number]
                scores = "".join(
                    f", {name} {value:.4g}" for _, one in newest[:1] for name, value in one.metrics.items()
                )
                sys.stderr.write(f"{made.name}, round {number} of {rounds}{scores}\n")
    except KeyboardInterrupt:
        made.interrupted = True
    return made


def _task(epochs: int | None, task_steps: int | None, batch_size: int, learning_rate: float) -> Task:
    try:
        return Task(learner=NAME, batch_size=batch_size, learning_rate=learning_rate, **work_of(epochs, task_steps))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{first['loc'][0]}={first['input']!r}: {first['msg']}") from None
