"""A Quorate learner as a Flower ClientApp, so that it runs under Flower's own tools::

    # client_app.py of a Flower app
    from client_sdk.flower import client_app

    app = client_app(learner(), lambda context: my_partition(context.node_config["partition-id"]))

It answers *train* and *evaluate* as Flower's strategies ask: with the record ``arrays`` of the message, and ``metrics``
with ``num-examples``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_sdk.data import held_out_part
from client_sdk.learners import Catalogue, LearnerError, evaluate, tied_names, train, untied
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors

NAME = "flower:learner"
OTHER_NAMES = {"lr": "learning_rate", "local_epochs": "epochs", "proximal_mu": "mu"}
"""Names by which Flower's apps and strategies call fields of a Task."""


def client_app(learner: Any, data: Any, task: Task | None = None) -> ClientApp:
    """A ClientApp that trains and evaluates ``learner``.

    ``learner``: what a device takes: an object with ``train``, or a function ``train(model, data, task)``. ``data``:
    what the learner takes, or a function of the Context that gives it. ``task``: how to train (None: its defaults).
    Its fields are replaced by those of the same names in the run's configuration, and these by the message's: ``lr``
    or ``learning-rate``, ``local-epochs`` or ``epochs``, ``batch-size``, ``proximal-mu`` or ``mu``, and so on.

    LearnerError where ``learner`` is none. What a message asks for wrongly becomes Flower's error reply.
    """
    loaded = Catalogue({NAME: learner}, installed=()).load(NAME)
    asked = task if task is not None else Task(learner=NAME)
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        key, given = _model(message.content)
        model = untied(loaded, given)
        config = _config(message.content)
        update = train(
            loaded,
            model,
            _data(data, context),
            _task(asked, context.run_config, config),
            device=_device(context),
            round=int(config.get("server-round", 1)),
            deadline=_time_left(message),
        )
        delta = update.delta
        bad = next((name for name, array in delta.items() if not np.isfinite(array).all()), None)
        if bad is not None:
            raise LearnerError(f"The update cannot be counted: the delta of {bad!r} holds NaN or infinity.")
        trained = {
            name: (array + delta[name]).astype(array.dtype) if name in delta else array for name, array in model.items()
        }
        trained |= {name: trained[first] for name, first in tied_names(loaded).items() if name in given}
        trained = {name: trained[name] for name in given}
        arrays = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in trained.items()})
        metrics = MetricRecord({"num-examples": update.examples, **update.metrics})
        return Message(RecordDict({key: arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        model = untied(loaded, _model(message.content)[1])
        found = _data(data, context)
        part = held_out_part(found)
        score = evaluate(loaded, NAME, model, part if part is not None else found, device=_device(context))
        metrics = MetricRecord({"num-examples": score.examples, **score.metrics})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _model(content: RecordDict) -> tuple[str, Tensors]:
    """The name of the message's only record of arrays, and its arrays."""
    records = content.array_records
    if len(records) != 1:
        raise LearnerError(f"A learner needs one record of arrays, its model; the message has {len(records)}.")
    [(key, record)] = records.items()
    return key, {name: array.numpy() for name, array in record.items()}


def _config(content: RecordDict) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for record in content.config_records.values():
        merged |= record
    return merged


def _data(data: Any, context: Context) -> Any:
    return data(context) if callable(data) else data


def _device(context: Context) -> str:
    return str(context.node_config.get("partition-id", context.node_id))


def _task(task: Task, *configs: Mapping[str, Any]) -> Task:
    """The task with the fields that the configurations set, the last one first of all."""
    fields = task.model_dump()
    for config in configs:
        for key, value in config.items():
            name = key.replace("-", "_")
            name = OTHER_NAMES.get(name, name)
            if name in fields and name not in ("learner", "learner_version", "codec"):
                fields[name] = value
                if name in ("epochs", "steps"):
                    fields["steps" if name == "epochs" else "epochs"] = None
    return Task.model_validate(fields)


def _time_left(message: Message) -> Callable[[], float]:
    """Seconds until the message's time is over."""
    ends_at = message.metadata.created_at + message.metadata.ttl
    return lambda: ends_at - time.time()
