"""Answers queries, and remembers what it was asked in its Context.state."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from queries_app import task

app = ClientApp()


@app.query("count")
def count(message: Message, context: Context) -> Message:
    """A number that grows with each query."""
    before = context.state["count"]["total"] if "count" in context.state else 0
    context.state["count"] = MetricRecord({"total": before + message.content["config"]["step"]})
    counted = MetricRecord(
        {
            "partition": int(context.node_config["partition-id"]),
            "partitions": int(context.node_config["num-partitions"]),
            "total": context.state["count"]["total"],
            "mean": float(task.data(int(context.node_config["partition-id"]))[0].mean()),
        }
    )
    return Message(RecordDict({"counted": counted}), reply_to=message)


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    """Replies with the records of the message."""
    return Message(RecordDict({"config": ConfigRecord(dict(message.content["config"]))}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Partition 2 raises."""
    if int(context.node_config["partition-id"]) == 2:
        raise ValueError("there is no data")
    return Message(RecordDict(), reply_to=message)
