"""Small Flower apps, written into a folder for a test."""

from __future__ import annotations

from pathlib import Path

from tests.flower import folders

CLIENTAPP = "counting.client_app:app"
"""The ClientApp of ``write_app``'s app."""

CLIENT = """\
import os
import signal
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    calls = int(context.state["calls"]["count"]) if "calls" in context.state else 0
    context.state["calls"] = ConfigRecord({"count": calls + 1, "messages": [message.metadata.message_id]})
    weights = message.content["arrays"].to_numpy_ndarrays()[0]
    partition = context.node_config["partition-id"]
    print("printed by the app", partition)
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord([weights + partition + context.run_config["rate"]]),
                "metrics": MetricRecord({"num-examples": 10, "calls": calls + 1, "node": context.node_id}),
            }
        ),
        reply_to=message,
    )


@app.query()
def query(message, context):
    calls = int(context.state["calls"]["count"]) if "calls" in context.state else 0
    return Message(RecordDict({"metrics": MetricRecord({"calls": calls, "pid": os.getpid()})}), reply_to=message)


@app.query("metadata")
def metadata(message, context):
    seen = message.metadata
    made = Message(RecordDict(), dst_node_id=9, message_type="query").metadata
    told = ConfigRecord({"group": seen.group_id, "made_by": made.src_node_id, "made_in": made.run_id})
    times = MetricRecord({"created_at": seen.created_at, "ttl": seen.ttl})
    return Message(RecordDict({"told": told, "times": times}), reply_to=message)


@app.train("fails")
def fails(message, context):
    context.state["calls"] = ConfigRecord({"count": 1000, "messages": []})
    raise ZeroDivisionError("no examples")


@app.train("hangs")
def hangs(message, context):
    time.sleep(600)


@app.train("dies")
def dies(message, context):
    os.kill(os.getpid(), signal.SIGKILL)


@app.train("leaves")
def leaves(message, context):
    if os.fork() == 0:
        time.sleep(600)  # as a data loader's process, which holds what its parent had open
    os._exit(3)


@app.train("asks")
def asks(message, context):
    input("learning rate? ")


@app.train("odd")
def odd(message, context):
    raise FileNotFoundError("no file caf\\udce9.npy")


@app.train("unsayable")
def unsayable(message, context):
    class Unsayable(Exception):
        def __str__(self):
            raise KeyError("text")

    raise Unsayable


@app.train("exits")
def exits(message, context):
    sys.exit("enough")


@app.train("returns")
def returns(message, context):
    return 5


@app.train("large")
def large(message, context):
    context.state["calls"] = ConfigRecord({"count": 1000, "messages": []})
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(1_000_000)])}), reply_to=message)


@app.train("errs")
def errs(message, context):
    from flwr.app import Error

    return Message(Error(code=77, reason="not today"), reply_to=message)
"""

SERVER = """\
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import numpy as np

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(4)]), num_rounds=context.run_config["rounds"])
"""


def write_app(folder: Path, client: str = CLIENT, server: str = SERVER) -> Path:
    """The app ``tests/counting`` in ``folder``, and the folder."""
    return folders.write_app(folder, "counting", server=server, client=client, config={"rounds": 3, "rate": 0.5})
