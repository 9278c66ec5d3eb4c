"""How a process of a group ends. Needs no torch.

DistributedDataParallel keeps the group behind it alive, with Gloo's threads, also where the group was destroyed; so
Python's farewell runs beside them, frees what they use, and was seen to abort (`terminate called without an active
exception`, SIGABRT) in one of some thirty processes on a busy machine, with all work done. Its torchrun then takes a
job that is done for one that failed, and the torchruns of other machines, which have ended well, wait 300 s for it.
Where the group broke, the same threads can keep the farewell waiting.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process now, with what it said written out; functions registered with ``atexit`` do not run."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
