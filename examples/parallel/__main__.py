"""Trains each example on the ranks that torchrun has started, and prints how far it is from one process.

torchrun --nproc-per-node 2 -m examples.parallel
"""

from __future__ import annotations

import sys

from client_sdk.learning.group import joined
from examples.parallel import channel, embedding, experts, spatial

if __name__ == "__main__":
    with joined("cpu", hang_s=60) as group:
        try:
            found = {
                "images split by rows": spatial.difference(),
                "convolutions split by channels": channel.difference(),
                "a table divided by rows": embedding.compare().difference,
                "a mixture of experts": experts.difference(),
            }
        except ValueError as error:  # each rank finds it
            sys.exit(str(error) if group.rank == 0 else 1)
        for name, difference in found.items() if group.rank == 0 else ():
            print(f"{name:<32}{difference:.0e} from one process, {group.world} ranks")
