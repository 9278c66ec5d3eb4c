"""A process to be killed: ``python torn_writer.py URL`` writes transactions without end and acknowledges each."""

from __future__ import annotations

import sys

from coordinator.store import open_store
from tests.coordinator.store import rows


def main(url: str) -> None:
    store = open_store(url)
    with store.transaction() as tx:
        rows.world(tx, devices=7)
    number = 0
    while True:
        with store.transaction("r1") as tx:
            for step in range(1, 8):
                tx.append("r1", [(0.0, "k", {"transaction": number})])
                tx.put_waiting([rows.waiting(f"d{step}", examples=number)])
            tx.put_metrics([rows.metric("number", value=float(number))])
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
