"""One node's training."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_app.task import EXAMPLES, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the model of the message."""
    model = [np.array(array) for array in message.content.array_records["arrays"].to_numpy_ndarrays()]
    loss = train(model, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": EXAMPLES, "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)
