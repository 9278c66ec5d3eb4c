"""Asks each node several things, over its own loop of messages: no strategy."""

from __future__ import annotations

from time import sleep

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from queries_app.task import leave

app = ServerApp()


def ask(grid: Grid, kind: str, group: str, **config: int | str | bytes | list[float]) -> list[Message]:
    """The replies of all nodes to one message each."""
    records = RecordDict({"config": ConfigRecord(config)})
    nodes = sorted(grid.get_node_ids())
    return list(grid.send_and_receive([Message(records, node, kind, group_id=group) for node in nodes], timeout=600))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Leave what the nodes answered, by partition."""
    while len(list(grid.get_node_ids())) < 5:
        sleep(0.2)
    numbers: dict[str, object] = {}
    for time in range(int(context.run_config.get("times", 3))):
        counted = ask(grid, "query.count", str(time), step=time + 1)
        numbers[f"count {time}"] = sorted(list(dict(reply.content["counted"]).values()) for reply in counted)
        context.state["seen"] = MetricRecord({"times": time + 1, "replies": len(counted)})
    echoed = ask(grid, "query.echo", "", data=b"\x00\xff", name="caf\u00e9", values=[0.5, 1e300])
    numbers["echo"] = [
        [reply.content["config"]["name"], list(reply.content["config"]["data"]), reply.content["config"]["values"]]
        for reply in echoed
    ]
    refused = ask(grid, "train", "last")
    numbers["errors"] = sorted(reply.error.code if reply.has_error() else -1 for reply in refused)
    numbers["state"] = dict(context.state["seen"])
    leave(numbers)
