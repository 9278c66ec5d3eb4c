"""Trains and evaluates on the partition that the node has."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from strategies_app import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local steps from the model that was sent."""
    partition, config = int(context.node_config["partition-id"]), message.content["config"]
    model = message.content["arrays"].to_numpy_ndarrays()
    trained, loss = task.train(model, partition, config.get("proximal-mu", 0.0), config["steps"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(task.data(partition)[0])})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The loss of the model that was sent."""
    partition = int(context.node_config["partition-id"])
    loss = task.loss(message.content["arrays"].to_numpy_ndarrays(), partition)
    metrics = MetricRecord({"loss": loss, "num-examples": len(task.data(partition)[0])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
