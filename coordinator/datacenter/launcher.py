"""torchrun as a supervised child: it ends with the process that started it, and takes its ranks along.

torchrun by itself does not watch its parent. Where an agent was killed, its ranks ended, torchrun took them for ranks
that had failed, and started others, ``max_restarts`` times. Its arguments are torchrun's.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from client_sdk.imports import end_uncollected, uncollected
from coordinator.child_processes import kill_family, when_parent_ends


def main() -> None:
    when_parent_ends(partial(kill_family, os.getpid()), also_children=True)
    end_uncollected()
    with uncollected():
        from torch.distributed.run import main as torchrun

    torchrun(sys.argv[1:])


if __name__ == "__main__":
    main()
